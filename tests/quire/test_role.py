"""What a process does before it says that it is ready."""

import gc

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
