"""Which signals ask for a clean stop, and what comes of those that come behind them, or with them:
in processes of their own, as handlers are a process's."""

import signal
import subprocess
import sys
import time

import pytest

from quire.stop_signals import STOP_SIGNALS

#: `say` is what it waits for on stdin: how a test is in step with it. `held` takes signals while
#: the loop stands still, `before` as soon as there are handlers, `late` when it is over.
CODE = """
import logging, os, signal, sys, time
import trio
from quire import role as module, stop_signals
from quire.role import run_role

kind, moment, *sent = sys.argv[1:]
logging.basicConfig(level="INFO", stream=sys.stderr, format="%(message)s")

def send():
    for number in sent:
        os.kill(os.getpid(), int(number))

# The tests themselves may have been started by `nohup`.
ignored = moment == "ignored"
signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
if moment == "before":
    made = stop_signals.StopSignals.wait
    async def wait(signals):
        send()
        return await made(signals)
    stop_signals.StopSignals.wait = wait

async def role(*, task_status):
    if moment == "in the start":
        send()
        await trio.sleep_forever()
    task_status.started(("127.0.0.1", 1))
    await trio.sleep(0.01)
    if moment in ("held", "ignored"):
        send()
    if moment == "ignored":
        return
    if moment == "by itself":
        return
    await trio.sleep_forever()

run_role(role, parent_pid=os.getppid() if kind == "child" else None)
print("over", flush=True)
if moment in ("late", "by itself"):
    send()
    time.sleep(0.05)
    print("still there", flush=True)
"""


def run(kind, moment, *sent, first=None):
    """Exit code, and the words on stdout."""
    words = [sys.executable, "-c", CODE, kind, moment, *(str(int(number)) for number in sent)]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            said = []
            if first is not None:
                said.append(process.stdout.readline())
                process.send_signal(first)
            said += process.stdout.readlines()
            assert "Traceback" not in process.stderr.read()
            return process.wait(60), [line.split()[0] for line in said]
        finally:
            process.kill()


@pytest.mark.parametrize("kind", ["own", "child"])
@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_each_asks_for_a_clean_stop(kind, number):
    assert run(kind, "", first=number) == (0, ["ready", "over"])


@pytest.mark.parametrize("kind", ["own", "child"])
@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_one_that_comes_during_the_start_does_so_too(kind, number):
    assert run(kind, "in the start", number) == (0, ["over"])


@pytest.mark.parametrize("kind", ["own", "child"])
@pytest.mark.parametrize("moment", ["held", "before"])
@pytest.mark.parametrize(
    "sent",
    [
        (signal.SIGTERM, signal.SIGINT),
        (signal.SIGINT, signal.SIGTERM),
        (signal.SIGTERM, signal.SIGTERM),
        (signal.SIGHUP, signal.SIGTERM, signal.SIGINT),
    ],
)
def test_those_of_one_moment_are_one_wish(kind, moment, sent):
    code, said = run(kind, moment, *sent)
    assert (code, said[-1]) == (0, "over")


@pytest.mark.parametrize("number", STOP_SIGNALS)
@pytest.mark.parametrize("moment", ["late", "by itself"])
def test_a_child_hears_none_in_its_last_moment(number, moment):
    first = signal.SIGTERM if moment == "late" else None
    assert run("child", moment, number, first=first) == (0, ["ready", "over", "still"])


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_nor_while_its_interpreter_ends(number):
    """Sent again and again until it is gone."""
    words = [sys.executable, "-c", CODE, "child", ""]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout.readline().startswith(b"ready")
            while process.poll() is None:
                process.send_signal(number)
                time.sleep(0.0005)  # else it comes to nothing but its handler
            assert process.returncode == 0
        finally:
            process.kill()


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_the_next_one_ends_who_has_no_parent(number):
    """Also when its clean stop is over already."""
    assert run("own", "late", number, first=signal.SIGTERM) == (-number, ["ready", "over"])


def test_a_terminal_that_is_gone_stops_nobody_who_was_told_to_ignore_it():
    """`nohup`."""
    assert run("own", "ignored", signal.SIGHUP) == (0, ["ready", "over"])
