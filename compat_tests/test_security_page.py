"""docs/security.md, followed as it is written: every command of «A secured cluster in ten minutes»,
in an empty directory, by a shell. Only the ports are others, and what the page says to start in a
terminal of its own is started in the background."""

import os
import re
import signal
import subprocess
import time

import pytest
from harness import paths, servers, tools
from harness.servers import HOST, die_with_parent, free_port

pytestmark = [
    pytest.mark.skipif(servers.target() != "quire", reason="about our own processes"),
    pytest.mark.timeout(400),
]

PAGE = paths.ROOT / "docs" / "security.md"
SECTION = "A secured cluster in ten minutes"
OWN_TERMINAL = re.compile(r"zkServer\.sh|quire (bookie|broker) ")
#: The page's, and how many there are in a row from it on.
PORTS = {"2281": 1, "3181": 3, "9091": 3}
READY = {"quire bookie": r"event=bookie_registered|^ready ", "quire broker": r"^ready "}


def blocks():
    """Indented lines of the section, a block to each run of them."""
    text = re.search(rf"^## {SECTION}\n(.*?)^## ", PAGE.read_text(), re.S | re.M)[1]
    found, here = [], []
    for line in [*text.splitlines(), ""]:
        if line.startswith("    "):
            here.append(line[4:])
        elif here:
            found.append("\n".join(here))
            here = []
    return found


def with_ports(text, moved):
    for port, first in moved.items():
        stem = port[:-1]
        for number in range(PORTS[port]):
            text = text.replace(str(int(port) + number), f"@{first + number}@")
        if PORTS[port] > 1:
            text = text.replace(f"{stem}$n", f"@$(({first - 1} + n))@")
    return text.replace("@", "")


class Terminal:
    """A shell that keeps its variables, and terminals beside it."""

    def __init__(self, directory):
        self.directory = directory
        self.processes = []
        binaries = tools.kafka_path(directory.parent / "kafka") / "bin"
        zookeeper = binaries / "zkServer.sh"
        jars = paths.jars("zookeeper")
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        zookeeper.write_text(f'#!/bin/sh\nexec java -Xmx256m -cp "{jars}/*" {main} "$2"\n')
        zookeeper.chmod(0o755)
        path = f"{paths.python_script('quire').parent}:{binaries}:{os.environ['PATH']}"
        self.environment = {**os.environ, **tools.java_environment(), "PATH": path}
        self.before = ""

    def run(self, block):
        """Its output. Assignments of earlier blocks are in force, as in one terminal."""
        script = f"set -euo pipefail\n{self.before}\n{block}\n"
        done = subprocess.run(
            ["bash", "-c", script], cwd=self.directory, env=self.environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=180, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{block}\n{done.stdout}"
        self.before += "\n" + "\n".join(re.findall(r"^(?:umask .*|\w+=[^\s$(]+)$", block, re.M))
        return done.stdout

    def start(self, command):
        name = f"{len(self.processes)}.out"
        output = self.directory.parent / name
        with output.open("w") as out:
            process = subprocess.Popen(
                ["bash", "-c", f"umask 077\nexec {command}"], cwd=self.directory,
                env=self.environment, stdout=out, stderr=out, preexec_fn=die_with_parent,
            )  # fmt: skip
        self.processes.append(process)
        return process, output

    def end(self):
        for process in reversed(self.processes):
            process.send_signal(signal.SIGKILL)
            process.wait()


def wait_for(condition, process, output):
    deadline = time.monotonic() + 120
    while not condition():
        assert process.poll() is None, output.read_text()
        assert time.monotonic() < deadline, output.read_text()
        time.sleep(0.1)


@pytest.fixture
def terminal(tmp_path):
    directory = tmp_path / "cluster"
    directory.mkdir()
    made = Terminal(directory)
    yield made
    made.end()


def test_a_stranger_secures_a_cluster(terminal):
    moved = {port: free_port(count) for port, count in PORTS.items()}
    said = ""
    for written in blocks():
        block = with_ports(written, moved)
        if not OWN_TERMINAL.match(block):
            said += terminal.run(block)
            continue
        started = [terminal.start(command) for command in block.splitlines()]
        for process, output in started:
            if block.startswith("zkServer"):
                where = f"{HOST}:{moved['2281']}"
                check = ["openssl", "s_client", "-connect", where]
                wait_for(
                    lambda check=check: b"BEGIN CERTIFICATE" in subprocess.run(
                        check, stdin=subprocess.DEVNULL, capture_output=True, check=False
                    ).stdout,
                    process, output,
                )  # fmt: skip
            else:
                ready = READY[" ".join(block.split()[:2])]
                wait_for(
                    lambda output=output, ready=ready: re.search(ready, output.read_text(), re.M),
                    process, output,
                )  # fmt: skip
    assert re.search(r"^hello$", said, re.M), said
    assert "Processed a total of 1 messages" in said
    assert re.search(r"Authorization failed", said), said
    assert re.search(r"^refused$", said, re.M), said
    logs = [output.read_text() for output in terminal.directory.parent.glob("*.out")]
    assert any(
        re.search(r"kafka\.authorizer\.logger event=Denied .*User:alice", each) for each in logs
    )
    # Who does not log in gets nowhere, and who has no right is told so.
    address = f"{HOST}:{moved['9091']}"
    refused = terminal.run(f"quire groups why readers --bootstrap-server {address} 2>&1 || true")
    assert "does not answer" in refused
    for secret in terminal.directory.glob("*.password"):
        for output in terminal.directory.parent.glob("*.out"):
            assert secret.read_text().strip() not in output.read_text()
