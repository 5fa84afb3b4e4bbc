"""Report and audit of a real server, made in this process; and the page of it."""

import pytest

from pyspark_quire.connection import Where
from spark_jobs.audit import AuditOptions, make_audit
from spark_jobs.report import make_report
from spark_jobs.report_page import page
from spark_jobs.runner import runner

TABLES = ("topics", "times", "bookies", "growth", "small_ledgers", "lag")


def test_a_report_of_one_topic(served, topic):
    served.create(topic, 2)
    served.fill(topic, 50)
    served.wait_rolled(topic, 0)
    with runner(None, "report") as run:
        made = make_report(Where(served.metadata), run, [topic])
    [row] = made["topics"]
    assert (row["topic"], row["partitions"], row["offsets"]) == (topic, 2, 50)
    assert row["ledgers"] == len(served.chain(topic, 0).ledgers)
    [times] = made["times"]
    assert (times["min_ts_ms"], times["max_ts_ms"]) == (
        1_700_000_000_000,
        1_700_000_000_000 + 49_000,
    )
    assert made["problems"] == []


@pytest.mark.parametrize("piece_bytes", [1, 1 << 20])
def test_an_audit_looks_at_every_entry(served, topic, piece_bytes):
    served.create(topic)
    served.fill(topic, 50)
    served.wait_rolled(topic, 0)
    steps, counts = [], []

    def start(count):
        counts.append(count)
        return steps.append

    with runner(None, "audit") as run:
        options = AuditOptions(topics=(topic,), piece_bytes=piece_bytes)
        found = make_audit(Where(served.metadata), run, options, start)
    closed = [info for info in served.chain(topic, 0).ledgers if not info.is_open]
    assert found.ledgers == len(served.chain(topic, 0).ledgers)
    assert found.entries >= sum(info.entry_count for info in closed)
    assert (found.findings, found.unreadable) == ([], {})
    assert found.is_whole
    assert not found.has_faults
    assert sum(steps) == counts[0] == found.entries


def test_a_page_needs_nothing_and_trusts_nothing():
    """Without rows it has no plot; what is data is no markup."""
    report = {"made_ms": 0, "problems": ["<b>bad</b>"], **{name: [] for name in TABLES}}
    text = page(report)
    assert "1970-01-01 00:00:00 UTC" in text
    assert "&lt;b&gt;bad" in text
    assert "<b>" not in text
    report["times"] = [{"topic": "<i>", "min_ts_ms": 2**63 - 1, "max_ts_ms": None, "unknown": 1}]
    text = page(report)
    assert "&lt;i&gt;" in text
    assert "9223372036854775807 ms" in text
    assert "src=" not in text
