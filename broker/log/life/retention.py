"""Which ledgers a partition no longer keeps. Pure: a chain, a topic's settings and a time in, the
new log start out (feature 30, Kafka's retention.ms and retention.bytes)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.log.life.chain import Chain
    from broker.log.life.ledger_info import LedgerInfo

#: A ledger is rolled so often that what retention.ms has condemned is at most this share of it late
#: in going, and never more often than once in ROLL_AGE_MS_MIN.
RETENTION_SHARE = 4
ROLL_AGE_MS_MIN = 1_000
#: Fibonacci hashing: neighbouring numbers come to lie far apart in the upper bits.
_MIX, _MIX_MASK, _MIX_SHIFT = 0x9E37_79B9_7F4A_7C15, (1 << 64) - 1, 20


def roll_age_ms(segment_ms: int, retention_ms: int, compaction_lag_ms: int | None = None) -> int:
    """The age at which an open ledger that holds records is closed. `compaction_lag_ms`: a
    compacted topic's max.compaction.lag.ms.

    Only closed ledgers can be deleted, so a retention.ms shorter than segment.ms would otherwise
    not act for up to segment.ms. Nor can others be compacted. Both may be shorter than a ledger's
    life is worth (ROLL_AGE_MS_MIN); who sets segment.ms gets that."""
    age_ms = segment_ms
    if compaction_lag_ms is not None:
        age_ms = min(age_ms, max(compaction_lag_ms, ROLL_AGE_MS_MIN))
    if retention_ms < 0:
        return age_ms
    return min(age_ms, max(retention_ms // RETENTION_SHARE, ROLL_AGE_MS_MIN))


def roll_jitter_ms(segment_ms: int, segment_jitter_ms: int, ledger_id: int) -> int:
    """By how much earlier a ledger is closed, so that partitions roll apart: below
    segment.jitter.ms, spread over the ledgers, and the same whenever it is asked for one."""
    bound = min(segment_ms, segment_jitter_ms)
    return (((ledger_id + 1) * _MIX & _MIX_MASK) >> _MIX_SHIFT) % bound if bound > 0 else 0


def new_log_start(
    chain: Chain, *, retention_ms: int, retention_bytes: int, open_size_bytes: int, now_ms: int
) -> int:
    """The offset that the log should start at: whole closed ledgers go, from the front.

    Negative settings mean «no limit»; `open_size_bytes` is what the open ledger holds."""
    start = chain.log_start_offset
    closed = [info for info in chain.ledgers if not info.is_open]
    total = open_size_bytes + sum(info.size_bytes for info in closed)
    for info in closed:
        too_old = retention_ms >= 0 and 0 <= age_reference(info) < now_ms - retention_ms
        too_much = retention_bytes >= 0 and total - info.size_bytes >= retention_bytes
        if not too_old and not too_much:
            break
        total -= info.size_bytes
        start = max(start, info.end_offset)
    return start


def age_reference(info: LedgerInfo) -> int:
    """Kafka takes the largest record timestamp; without any, when the ledger was made."""
    return info.max_timestamp if info.max_timestamp >= 0 else info.created_ms
