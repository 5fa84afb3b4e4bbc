"""What the page of kept runs says."""

import pytest

from bench import page, rounds, runs
from bench.machine import Machine

MACHINE = Machine("A processor", 2, 23.4, "Linux 6", "ext4", "3.11.7", False, 200.0, 0.1, 0.2, 512)


def run(date, ours, theirs=(100.0, 110.0, 90.0)):
    table = rounds.Table(["Kafka", "quire"], "quire")
    for name, values in (("Kafka", theirs), ("quire", ours)):
        for value in values:
            table.add(name, ("produce", "MB/s", value))
            for number, percentile in enumerate(page.PERCENTILES):
                table.add(name, (f"produce: {percentile}", "ms", value / 100 + number))
    return runs.Run(date, "0123456789ab", "python -m bench.compare", 1.5, MACHINE, table)


@pytest.fixture(autouse=True)
def silent(monkeypatch):
    monkeypatch.setattr(rounds, "note", lambda words: None)


def test_a_run_is_read_back_as_it_was_kept(tmp_path):
    one = run("2026-11-27 17:45", [200.0, 210.0, 205.0])
    path = runs.save(one, tmp_path)
    assert path.name == "2026-11-27-1745-0123456789ab.json"
    assert runs.load(path) == one


def test_what_is_no_run_is_named(tmp_path):
    (tmp_path / "a.json").write_text('{"rows": []}')
    with pytest.raises(ValueError, match=r"a\.json: not a kept run"):
        runs.load_all(tmp_path)


def test_a_slow_down_is_told_where_no_round_reached_the_run_before():
    older = run("2026-11-01 10:00", [200.0, 220.0, 180.0])
    same = run("2026-11-02 10:00", [190.0, 220.0, 160.0])
    slower = run("2026-11-03 10:00", [100.0, 120.0, 95.0])
    assert page.page([older, same]).count("| slower |") == 0
    told = page.page([older, same, slower])
    assert (
        "| produce | Kafka | 2.00 (2.00-2.00) | 1.90 (1.78-2.00) | 1.06 (1.00-1.09) | slower |"
        in told
    )
    assert page.page([slower, older]).count("| faster |") == 1
    assert "built without --enable-optimizations" in told
    assert told.index("2026-11-03 10:00 0123456789ab, `python -m bench.compare`") < told.index(
        "| case"
    )


def test_a_case_that_the_newest_run_does_not_have_is_not_compared():
    older = run("2026-11-01 10:00", [200.0, 220.0, 180.0])
    newest = run("2026-11-02 10:00", [], [])
    newest.table.rows.clear()
    assert "| produce | Kafka | 2.00 (2.00-2.00) |  |  |" in page.page([older, newest])


def test_plots_are_drawn_and_the_same_runs_give_the_same_bytes(tmp_path):
    found = [run("2026-11-01 10:00", [200.0] * 3), run("2026-11-02 10:00", [100.0] * 3)]
    page.draw(found, tmp_path)
    plots = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert set(plots) == {"throughput.svg", "latency.svg", "history.svg"}
    page.draw(found, tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == plots
    assert b"produce" in plots["latency.svg"]
    assert b"2026-11-02 10:00" in plots["history.svg"]
