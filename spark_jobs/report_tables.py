"""The report's numbers. Pure: what the metadata say in, tables out.

A table is a list of rows, a row a dict with the same names in each; sizes are bytes of payload
(`_bytes`), times milliseconds (`_ms`). A copy counts for its bookie as the share of the ledger's
entries that the bookie is to have.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from broker.log.life.chain import Chain
    from spark_jobs.facts import LedgerFacts
    from spark_jobs.lag import Committed
    from wire.bookkeeper.ledger_metadata import LedgerMetadata

Row = dict[str, Any]

DAY_MS = 86_400_000
#: A closed ledger below this share of its topic's segment.bytes is small.
SMALL_SHARE = 16


def topic_rows(
    chains: Mapping[tuple[Any, int], Chain], ledgers: Iterable[LedgerFacts]
) -> list[Row]:
    """By topic, the largest first."""
    rows: dict[str, Row] = {}
    for (topic, _), chain in chains.items():
        row = rows.setdefault(topic.name, _topic_row(topic.name))
        row["partitions"] += 1
        # Of an open ledger, in which the log may start, nothing is counted.
        row["offsets"] += max(chain.closed_end_offset - chain.log_start_offset, 0)
        row["waiting_to_be_deleted"] += len(chain.all_deleting)
    for each in ledgers:
        row = rows[each.topic.name]
        row["ledgers"] += 1
        row["open"] += each.info.is_open
        row["size_bytes"] += each.info.size_bytes
        copies = each.metadata.write_quorum_size if each.metadata is not None else 0
        row["stored_bytes"] += copies * each.info.size_bytes
        row["compacted"] += each.info.is_compacted
    return sorted(rows.values(), key=lambda row: (-row["size_bytes"], row["topic"]))


def _topic_row(name: str) -> Row:
    counts = ("partitions", "offsets", "ledgers", "open", "compacted", "size_bytes",
              "stored_bytes", "waiting_to_be_deleted")  # fmt: skip
    return {"topic": name, **dict.fromkeys(counts, 0)}


def bookie_rows(ledgers: Iterable[LedgerFacts], registered: Iterable[str]) -> list[Row]:
    """What each bookie is to have of the closed ledgers; also one that is not there any more."""
    sizes: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for each in ledgers:
        if each.metadata is None:
            continue
        for bookie, share in shares(each.metadata).items():
            counts[bookie] += 1
            sizes[bookie] += round(share * each.info.size_bytes)
    there = set(registered)
    mean = sum(sizes.values()) / max(len(there | set(sizes)), 1)
    return [
        {
            "bookie": bookie,
            "registered": bookie in there,
            "ledgers": counts[bookie],
            "size_bytes": sizes[bookie],
            "of_mean": round(sizes[bookie] / mean, 2) if mean else 0.0,
        }
        for bookie in sorted(there | set(counts))
    ]


def shares(metadata: LedgerMetadata) -> dict[str, float]:
    """Bookie -> which share of the ledger's entries it is to have; of an open one, without the
    segment that is being written."""
    total = metadata.last_entry_id + 1
    found: dict[str, float] = defaultdict(float)
    starts = [first for first, _ in metadata.segments]
    for (first, ensemble), end in zip(
        metadata.segments, [*starts[1:], max(total, starts[-1])], strict=True
    ):
        count = max(min(end, total) - first, 0) if metadata.is_closed else 0
        part = count / total if total > 0 else 0.0
        for bookie in ensemble:
            found[bookie] += part * metadata.write_quorum_size / metadata.ensemble_size
    return dict(found)


def growth_rows(ledgers: Iterable[LedgerFacts]) -> list[Row]:
    """What is there now, by the day (UTC) on which its ledger was made."""
    sizes: Counter[int] = Counter()
    counts: Counter[int] = Counter()
    for each in ledgers:
        day = each.info.created_ms // DAY_MS * DAY_MS
        sizes[day] += each.info.size_bytes
        counts[day] += 1
    rows, total = [], 0
    for day in sorted(sizes):
        total += sizes[day]
        rows.append(
            {
                "day_ms": day,
                "ledgers": counts[day],
                "size_bytes": sizes[day],
                "since_first_bytes": total,
            }
        )
    return rows


def small_ledger_rows(
    ledgers: Iterable[LedgerFacts], segment_bytes: Mapping[str, int]
) -> list[Row]:
    """Partitions with many closed ledgers that are far below segment.bytes: each costs a node of
    metadata and an index, and a reader a task. The worst first."""
    found: dict[str, Row] = {}
    for each in ledgers:
        info, limit = each.info, segment_bytes[each.topic.name] // SMALL_SHARE
        if info.is_open or info.size_bytes >= limit:
            continue
        row = found.setdefault(
            each.name, {"partition": each.name, "small_ledgers": 0, "size_bytes": 0}
        )
        row["small_ledgers"] += 1
        row["size_bytes"] += info.size_bytes
        row["below_bytes"] = limit
    return sorted(found.values(), key=lambda row: (-row["small_ledgers"], row["partition"]))


def lag_rows(
    committed: Sequence[Committed], ends: Mapping[tuple[str, int], int], now_ms: int
) -> list[Row]:
    """What groups have not committed yet: in offsets, and as the age of the first such record.
    `ends`: where logs end; a partition that is not there is none of the topics looked at."""
    rows = []
    for each in committed:
        end = ends.get((each.topic, each.partition))
        if end is None:
            continue
        behind = max(end - each.offset, 0)
        age = max(now_ms - each.next_timestamp_ms, 0) if each.next_timestamp_ms >= 0 else None
        rows.append(
            {
                "group": each.group,
                "partition": f"{each.topic}-{each.partition}",
                "committed": each.offset,
                "end": end,
                "behind": behind,
                "behind_ms": age if behind else 0,
            }
        )
    return sorted(rows, key=lambda row: (-row["behind"], row["group"], row["partition"]))


def time_rows(ledgers: Iterable[LedgerFacts]) -> list[Row]:
    """By topic: the times of the records in closed ledgers, as far as the chains know them."""
    rows: dict[str, Row] = {}
    for each in ledgers:
        info = each.info
        if info.is_open:
            continue
        row = rows.setdefault(
            each.topic.name,
            {"topic": each.topic.name, "min_ts_ms": None, "max_ts_ms": None, "unknown": 0},
        )
        if info.min_timestamp < 0:
            row["unknown"] += 1
        else:
            known = row["min_ts_ms"]
            row["min_ts_ms"] = (
                info.min_timestamp if known is None else min(known, info.min_timestamp)
            )
        if info.max_timestamp >= 0:
            row["max_ts_ms"] = max(row["max_ts_ms"] or 0, info.max_timestamp)
    return [rows[name] for name in sorted(rows)]
