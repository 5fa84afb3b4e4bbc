"""A broker cut off from ZooKeeper, from the bookies, from its clients, and one way only.

In network namespaces of the run's own, as a process of its own that is inside of one.
"""

import os
import subprocess
import sys

import pytest
from chaos import network
from harness import figures, paths, servers

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(servers.target() != "quire", reason="about our own processes"),
]

FAULTS = [
    "broker cut from ZooKeeper",
    "broker cut from bookies, only what it should get",
    "broker cut from clients, only what it sends",
    "broker cut from all",
]


@pytest.mark.timeout(600)
def test_a_broker_cut_off():
    reason = network.why_not()
    if reason is not None:
        pytest.skip(reason)
    command = [sys.executable, "-m", "compat_tests.chaos", "cluster", "--network", "--seed", "11"]
    command += ["--bookies", "3", *(word for fault in FAULTS for word in ("--fault", fault))]
    process = subprocess.Popen(
        command,
        cwd=paths.ROOT,
        env={name: value for name, value in os.environ.items() if name != network.INSIDE},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        said, _ = process.communicate(timeout=580)
    finally:
        # So that it takes its processes and namespaces with it.
        process.terminate()
        process.communicate()
    assert process.returncode == 0, said[-8000:]
    lines = said.splitlines()
    assert lines[-1] == "all promises kept", said[-8000:]
    table = [line for line in lines if line.startswith("|")]
    for fault in FAULTS:
        assert sum(line.startswith(f"| {fault} | 1 |") for line in table) == 1, said
    for line in (*(line for line in lines if "acked" in line), *table):
        figures.add(f"cut off: {line}")
    left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    assert f"quire-chaos-{process.pid}" not in left.stdout
