"""Rows of a report at the edges of what they count."""

from broker.log.life.chain import Chain
from broker.log.life.ledger_info import LedgerInfo
from spark_jobs.facts import LedgerFacts
from spark_jobs.report_tables import time_rows, topic_rows


class _Topic:
    name = "t"


TOPIC = _Topic()


def test_the_epoch_is_a_time():
    infos = [
        LedgerInfo(1, 0, 0, 0, 9, 10, 100, 50, min_timestamp=0),
        LedgerInfo(2, 10, 0, 0, 19, 10, 100, 90, min_timestamp=60),
    ]
    [row] = time_rows([LedgerFacts(TOPIC, 0, info, None) for info in infos])
    assert (row["min_ts_ms"], row["max_ts_ms"]) == (0, 90)


def test_there_are_never_fewer_than_no_offsets():
    """The log starts within its open ledger (DeleteRecords)."""
    chain = Chain(leader_epoch=1, log_start_offset=50, ledgers=(LedgerInfo(1, 0, 1, 0),))
    [row] = topic_rows({(TOPIC, 0): chain}, [])
    assert row["offsets"] >= 0
