"""What the compatibility suite makes of its servers' lines about their loops."""

from compat_tests.harness.loop_turns import ServerLog, Tally

HEAD = b"time=2026-03-01T12:00:00.123Z level=info logger=runtime.loop_watch event="
ROSE = HEAD + b"loop_turns pid=7 longest_milliseconds=6.1 by=Fetch turns=0.1:5,10:1\n"
HELD = HEAD + b'loop_held by="a b" milliseconds=61 cpu_milliseconds=9 untold=2\n'
STOPPED = HEAD + b"loop_turns pid=7 longest_milliseconds=61.0 by=none turns=0.1:9,10:2,100:1\n"
KILLED = HEAD + b"loop_turns pid=8 longest_milliseconds=900.0 by=Produce turns=0.1:1,1000:1\n"


def test_the_last_line_of_each_process_counts_and_each_line_is_read_once(tmp_path):
    path = tmp_path / "server.log"
    log, tally = ServerLog(path, 0), Tally()
    tally.note(log.news())
    assert tally.summary() == []
    path.write_bytes(b"ready listen=x\n" + ROSE + HELD[:-20])
    tally.note(log.news())
    assert not tally.held, "that line is not whole"
    path.write_bytes(b"ready listen=x\n" + ROSE + HELD + STOPPED)
    tally.note(log.news())
    assert log.news() == []
    other = Tally()
    other.note([KILLED.rstrip(), HELD.rstrip()])
    tally.add(other.as_plain())
    lines = tally.summary()
    assert lines[0].startswith("worst turn: at most 1000 ms; 14 turns of 2 processes; 1 of them")
    assert lines[1:5] == ["   0.1 ms: 10", "    10 ms: 2", "   100 ms: 1", "  1000 ms: 1"]
    assert "1000 ms by Produce" in lines[5]
    assert "10 ms by Fetch" in lines[6]
    assert lines[7].startswith('warned: "a b" 6 times, longest 61 ms, 9 of them its own, in ')
