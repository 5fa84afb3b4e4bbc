"""What the tables of the benchmarks say."""

import pytest

from bench import rounds


@pytest.fixture(autouse=True)
def silent(monkeypatch):
    monkeypatch.setattr(rounds, "note", lambda words: None)


class Server:
    """One of the two that are compared; `start` and `discard` are noted."""

    def __init__(self, name, noted):
        self.name, self.noted = name, noted

    def discard(self):
        self.noted.append(f"discard {self.name}")


def test_a_table_has_medians_extremes_and_ratios():
    table = rounds.Table(["Kafka", "quire"], "quire")
    for value in (10.0, 40.0, 20.0):
        table.add("Kafka", ("produce", "MB/s", value))
    for value in (100.0, 50.5, 1234.4):
        table.add("quire", ("produce", "MB/s", value))
    table.add("quire", ("only ours", "s", 0.123))
    assert table.markdown().splitlines() == [
        "| case | unit | Kafka | quire | quire / Kafka |",
        "| --- | --- | --- | --- | --- |",
        "| produce | MB/s | 20 (10-40) | 100 (50.5-1,234) | 10.00 (1.26-61.72) |",
        "| only ours | s |  | 0.12 |  |",
    ]


def test_ratios_are_those_of_rounds_or_of_medians_where_rounds_differ():
    assert rounds.ratios([2.0, 9.0, 4.0], [1.0, 3.0, 4.0]) == [2.0, 3.0, 1.0]
    assert rounds.ratios([2.0, 9.0, 4.0], [8.0]) == [0.5]
    assert (
        rounds.ratios([2.0], [0.0])
        == rounds.ratios(None, [1.0])
        == rounds.ratios([1.0], None)
        == []
    )


def test_a_table_without_ours_has_no_ratios():
    table = rounds.Table(["Kafka"], "quire")
    table.add("Kafka", ("failed", "", 0.0))
    assert table.markdown().splitlines()[-1] == "| failed |  | 0 |"


def test_servers_take_turns_and_a_failed_case_is_left_out_for_that_server():
    noted = []
    servers = [Server("a", noted), Server("b", noted)]

    def measure(server, number):
        noted.append(f"{server.name}{number}")
        if server.name == "a" and number == 1:
            raise RuntimeError("gone")
        yield "case", "s", float(number + 1)

    table = rounds.Table(["a", "b"])
    rounds.run_rounds(table, servers, {"case": measure}, 3)
    assert noted == ["a0", "b0", "a1", "b1", "b2"]
    assert table.rows == {("case", "s"): {"a": [1.0], "b": [1.0, 2.0, 3.0]}}


def test_the_table_is_printed_and_servers_end_whatever_happens(capsys):
    noted = []
    server = Server("a", noted)
    table = rounds.Table(["a"])

    def interrupted():
        with rounds.running(table, [server], lambda each: noted.append(f"start {each.name}")):
            table.add("a", ("case", "s", 1.0))
            raise SystemExit(1)

    with pytest.raises(SystemExit):
        interrupted()
    assert noted == ["start a", "discard a"]
    assert "| case | s | 1 |" in capsys.readouterr().out


def test_a_workspace_is_gone_at_the_end():
    with rounds.workspace("test-rounds") as directory:
        (directory / "file").write_text("x")
    assert not directory.exists()
