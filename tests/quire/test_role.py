"""What a process does before it says that it is ready, and when it is to end."""

import gc
import signal
import subprocess
import sys

import pytest
import trio

from quire.role import _serve
from runtime.loop_watch import watch_of_run


async def test_what_is_done_to_the_collector_at_the_start_is_not_warned_of(monkeypatch, caplog):
    """Nobody waits for that turn: only turns of a server that is ready count."""
    now = [1.0]
    looks = []
    watch = watch_of_run()
    watch.clock = watch.cpu_clock = lambda: now[0]
    serving = trio.Event()
    begin_serving = watch.begin_serving

    def look():
        looks.append(1)
        now[0] += 0.2

    def begun():
        begin_serving()
        serving.set()

    monkeypatch.setattr(gc, "freeze", look)
    monkeypatch.setattr(gc, "set_threshold", lambda *numbers: None)
    monkeypatch.setattr(type(watch), "begin_serving", lambda self: begun())

    async def role(*, task_status):
        watch.start()
        task_status.started(("127.0.0.1", 1))
        await serving.wait()
        await trio.lowlevel.checkpoint()
        now[0] += 0.3
        await trio.lowlevel.checkpoint()
        watch.stop()

    await _serve(role, has_parent=False)
    assert looks == [1]
    held = [record.args for record in caplog.records if record.getMessage() == "loop_held"]
    assert [told["milliseconds"] for told in held] == [300]
    assert watch.histogram.max_seconds < 0.4


#: Its end takes until it has seen a file.
SLOW_TO_END = """
import os, sys, time
import trio
from quire.role import run_role

async def role(*, task_status):
    task_status.started(("127.0.0.1", 1))
    try:
        await trio.sleep_forever()
    finally:
        print("ending", flush=True)
        deadline = time.monotonic() + 60
        while not os.path.exists(sys.argv[1]) and time.monotonic() < deadline:
            time.sleep(0.01)
        print("ended", flush=True)

run_role(role, parent_pid=os.getppid() if sys.argv[2] == "child" else None)
"""


@pytest.mark.parametrize(
    ("kind", "code", "words"), [("child", 0, "ended\n"), ("own", -signal.SIGTERM, "")]
)
def test_a_second_signal_ends_at_once_who_has_no_parent(tmp_path, kind, code, words):
    """Of a parent's two processes, both may be stopped by a third, and the child by both."""
    done = tmp_path / "done"
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW_TO_END, str(done), kind],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            assert process.stdout.readline().startswith("ready ")
            process.send_signal(signal.SIGTERM)
            assert process.stdout.readline() == "ending\n"
            process.send_signal(signal.SIGTERM)
            if kind == "child":
                done.touch()
            assert process.stdout.readline() == words
            assert process.wait(60) == code
        finally:
            process.kill()
