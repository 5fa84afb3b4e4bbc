"""What a run prints in the end."""

from collections.abc import Sequence
from dataclasses import dataclass

from .kafka_writers import Rows, TopicWorkload
from .workloads import LedgerWriting, Workload

TWO_AT_A_TIME = "two of them at a time"
#: How long after the mend a stall still counts as a fault's.
AFTER_S = 2.0


@dataclass
class Strike:
    name: str
    victim: str
    since: float
    until: float


def quantile(values: Sequence[float], percent: int) -> float:
    """Of sorted values."""
    return values[min(len(values) * percent // 100, len(values) - 1)]


def describe_gaps(work: Workload, started: float) -> str:
    """Between two acknowledgements, or records read, of one partition."""
    every = sorted(gap for each in work.gaps.values() for gap in each.all_ms())
    longest = sorted(
        (pair for each in work.gaps.values() for pair in each.longest()), key=lambda pair: -pair[1]
    )
    if not every:
        return f"{work.name}: no two words"
    where = ", ".join(f"{gap_ms:.0f} ms at {at - started:.1f} s" for at, gap_ms in longest[:5])
    return (
        f"{work.name}: gaps p50 {quantile(every, 50):.1f} ms, p99 {quantile(every, 99):.0f} ms, "
        f"max {every[-1]:.0f} ms; the longest: {where}"
    )


def describe_topic(work: TopicWorkload, rows: Rows) -> str:
    read = sum(map(len, rows.values()))
    return f"{work.name}: {work.record_count} records acked, {read} read back{work.remarks()}"


def describe_ledgers(work: LedgerWriting, found: dict[int, dict]) -> list[str]:
    acked = sum(ledger.last_acked + 1 for ledger in work.ledgers.values())
    good = sum(each["good"] for each in found.values())
    lost = sum(
        max(ledger.last_acked - found.get(ledger.ledger_id, {"last": -1})["last"], 0)
        for ledger in work.ledgers.values()
    )
    over = work.gaps[0].over_breaks_ms()
    replaced = (
        f"; the writer was replaced {len(work.gaps[0].breaks) // 2} times, with gaps p50 "
        f"{quantile(over, 50):.0f} ms, max {over[-1]:.0f} ms"
        if over
        else ""
    )
    fenced = sum(ledger.fence_count for ledger in work.ledgers.values())
    recoveries = sorted(work.recovery_s)
    recovered = (
        f"{len(recoveries)} recoveries of an open ledger p50 "
        f"{1000 * quantile(recoveries, 50):.0f} ms, max {1000 * recoveries[-1]:.0f} ms"
        if recoveries
        else "no recoveries"
    )
    return [
        f"ledgers: {len(work.ledgers)} ledgers, {acked} entries acked, {good} read back as they "
        f"were written, {lost} lost",
        f"ledgers: {recovered}; {fenced} writers found themselves fenced{replaced}",
        *(f"ledgers: {count} times {kind}" for kind, count in sorted(work.failures.items())),
    ]


def stalls_ms(strikes: list[Strike], workloads: list[Workload]) -> list[dict[str, float]]:
    """Of each strike: the longest stall of each workload that began between then and a little after
    the mend, but not after the next strike's. Of a workload with partitions, that of one of them.
    """
    ends = []
    for each in strikes:
        later = [other.since for other in strikes if other.since > each.until]
        ends.append(min([each.until + AFTER_S, *later]))
    return [
        {work.name: work.longest_ms(each.since, end) for work in workloads}
        for each, end in zip(strikes, ends, strict=True)
    ]


def is_alone(strike: Strike, strikes: list[Strike]) -> bool:
    """No other was unmended meanwhile."""
    return not any(
        other is not strike and other.since < strike.until and strike.since < other.until
        for other in strikes
    )


def strikes_table(strikes: list[Strike], workloads: list[Workload]) -> list[str]:
    """A table as in docs/durability.md: the longest stall of each kind of fault, if it was the only
    one at the time; and of all that were not."""
    # kcat is started anew all the time: its gaps say nothing.
    shown = [work for work in workloads if work.name != "kcat"]
    rows: dict[str, list[dict[str, float]]] = {}
    for strike, stalls in zip(strikes, stalls_ms(strikes, shown), strict=True):
        name = strike.name if is_alone(strike, strikes) else TWO_AT_A_TIME
        rows.setdefault(name, []).append(stalls)
    head = ["fault", "times", *(f"{work.name} stalled p50 / max" for work in shown)]
    lines = [_row(head), "|" + "---|" * len(head)]
    for name, mine in sorted(rows.items()):
        cells = [name, str(len(mine))]
        for work in shown:
            values = sorted(stalls[work.name] for stalls in mine)
            cells.append(f"{quantile(values, 50):.0f} / {values[-1]:.0f} ms")
        lines.append(_row(cells))
    return lines


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
