"""A report of odd numbers and names: times at the epoch, logs that start in their open ledger,
clocks that are wrong, groups that are named to deceive a terminal."""

import sys

import pytest

from broker.log.life.chain import Chain
from broker.log.life.ledger_info import LedgerInfo
from ledger.errors import NotEnoughBookiesError
from quire.tools.output import show
from spark_jobs.command import _show_tables
from spark_jobs.facts import ClusterFacts, LedgerFacts
from spark_jobs.lag import Committed
from spark_jobs.report import _ends
from spark_jobs.report_page import _growth
from spark_jobs.report_tables import time_rows, topic_rows
from tests.pyspark_quire.in_memory import Cluster, closed, topic

T = topic()


def ledger(number, minimum, maximum):
    base, times = 10 * number, {"min_timestamp": minimum, "max_timestamp": maximum}
    info = closed(number, base, base + 10, **times)
    return LedgerFacts(T, 0, info, None)


def test_a_record_of_the_epoch_is_the_oldest():
    """Time 0 is what producers without a clock send."""
    [row] = time_rows([ledger(0, 0, 5), ledger(1, 50, 60)])
    assert (row["min_ts_ms"], row["max_ts_ms"]) == (0, 60)


def test_a_log_that_starts_in_its_open_ledger_has_no_negative_count():
    """DeleteRecords up to 50, of a ledger that begins at 0 and is open."""
    [row] = topic_rows({(T, 0): Chain(0, 50, (LedgerInfo(1, 0, 0, 0),))}, [])
    assert row["offsets"] >= 0


class Axes:
    def __getattr__(self, _name):
        return lambda *_args, **_more: None


@pytest.mark.parametrize("day_ms", [10**17, -(10**17)])
def test_a_clock_that_is_wrong_stops_no_page(day_ms):
    """Of a broker that made a ledger; the tables show such a time as a number."""
    _growth(Axes(), [{"day_ms": day_ms, "size_bytes": 1, "since_first_bytes": 1}])


NAME = "g\x1b]0;changed\x07\nforged\tt-0\t0\t0\t0\t0"


def test_a_groups_name_writes_no_rows_and_no_commands(capsys):
    """Whoever may commit an offset chooses it."""
    row = {"group": NAME, "partition": "t-0", "committed": 1, "end": 2, "behind": 1, "behind_ms": 0}
    _show_tables({"lag": [row], "problems": [f"topic {NAME}"]})
    out, err = capsys.readouterr()
    assert "\x1b" not in out + err
    assert not any(line.startswith("forged") for line in (out + err).splitlines())


def test_a_groups_name_is_no_markup_on_a_terminal(monkeypatch, capsys):
    """`\\[/b]`: a backslash in front of a bracket takes away the one that quotes it."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    show([{"group": "a\\[/b]", "behind": 1}], as_json=False)
    assert "[/b]" in capsys.readouterr().out


class Silent:
    async def open_ledger(self, ledger_id, *, recover):
        raise NotEnoughBookiesError(ledger_id, "no bookie answers")


@pytest.mark.parametrize("is_deleted", [True, False], ids=["deleted meanwhile", "silent bookies"])
async def test_one_partition_that_cannot_be_looked_at_stops_no_report(is_deleted):
    """`problems` is there for that, and what is deleted meanwhile is passed over elsewhere."""
    cluster, info = Cluster(), LedgerInfo(1, 0, 0, 0)
    if not is_deleted:
        await cluster.add(T, info)
        cluster.ledgers = Silent()
    facts = ClusterFacts(chains={(T, 0): Chain(0, 0, (info,))})
    found = await _ends(cluster, facts, [Committed("g", "t", 0, 5)])
    assert found.keys() <= {("t", 0)}
