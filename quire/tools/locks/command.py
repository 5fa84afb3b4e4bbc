"""The commands of `quire locks`. Exit codes: 0; 1 if something failed or a record was wrongly
accepted; 2 for a wrong option. They ask a cluster by Kafka's protocol."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, TypeVar

import click

from quire.cli_options import Address
from quire.tools.output import progress, show, show_one

if TYPE_CHECKING:
    from collections.abc import Callable

    from quire.tools.groups.client import KafkaClient

F = TypeVar("F", bound="Callable[..., object]")
#: Violations that are told one by one.
TOLD_MAX = 100

bootstrap_option = click.option(
    "--bootstrap-server",
    "bootstrap",
    type=Address(),
    default="127.0.0.1:9092",
    show_default=True,
    help="Where Kafka clients connect.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="JSON instead of a table.")


@click.group()
def locks() -> None:
    """Looks at topics with optimistic locks, and measures them."""


@locks.command()
@click.argument("name", metavar="TOPIC[-PARTITION]")
@bootstrap_option
@json_option
def position(name: str, bootstrap: tuple[str, int], as_json: bool) -> None:
    """Shows the position that an application has which has applied all there is."""
    from quire.tools.groups.client import KafkaClient
    from quire.tools.locks.reading import bounds

    with KafkaClient(bootstrap) as client:
        topic, found = bounds(client, name)
    rows = [
        {"partition": f"{topic}-{one.partition}", "first": one.first, "position": one.end}
        for one in found
    ]
    show(rows, as_json=as_json)


@locks.command()
@click.argument("name", metavar="TOPIC[-PARTITION]")
@bootstrap_option
@json_option
def validate(name: str, bootstrap: tuple[str, int], as_json: bool) -> None:
    """Reads all records, and tells those that a lock should have refused.

    That is a record with a READ or WRITE lock that another one wrote between its position and
    itself. What was written while the topic had no locks is told as well. Exit code 1 if there is
    any."""
    from quire.tools.groups.client import KafkaClient

    with KafkaClient(bootstrap) as client:
        told = _validate(client, name)
    if as_json:
        show_one(told, as_json=True)
    else:
        violations = told.pop("violations")
        show_one(told, as_json=False)
        if violations:
            assert isinstance(violations, list)
            show(violations, as_json=False)
    if told["violation_count"]:
        raise SystemExit(1)


def _validate(client: KafkaClient, name: str) -> dict[str, object]:
    from quire.tools.locks.audit_core import Audit
    from quire.tools.locks.reading import bounds, read

    topic, found = bounds(client, name)
    audits: list[Audit] = []
    violations: list[dict[str, object]] = []
    count = 0
    total = sum(one.end - one.first for one in found)
    with progress(f"validating {name}", total, is_bytes=False) as step:
        for one in found:
            audit = Audit()
            audits.append(audit)
            for offset, record in read(client, topic, one):
                wrong = audit.look(offset, record.headers)
                count += len(wrong)
                for each in wrong[: TOLD_MAX - len(violations)]:
                    violations.append({"partition": one.partition, **asdict(each)})
                step(1)
    return {
        "topic": topic,
        "partitions": len(found),
        "records": sum(audit.records for audit in audits),
        "records_with_locks": sum(audit.locked for audit in audits),
        "violation_count": count,
        "violations": violations,
    }


def _count(default: int, of: click.IntRange, name: str, text: str) -> Callable[[F], F]:
    return click.option(name, type=of, default=default, show_default=True, help=text)


@locks.command()
@click.argument("name", metavar="TOPIC[-PARTITION]")
@_count(8, click.IntRange(1, 1000), "--producers", "Threads, each with connections of its own.")
@_count(1000, click.IntRange(1), "--records", "Records of each producer.")
@_count(512, click.IntRange(0, 1 << 20), "--size", "Bytes of a record's value.")
@click.option(
    "--interval-ms",
    type=click.FloatRange(0, 60_000),
    default=10.0,
    show_default=True,
    help="Mean of a producer's pauses between records, which are exponential.",
)
@_count(0, click.IntRange(0), "--locks", "Ids of which each record WRITEs one; 0: no locks.")
@_count(0, click.IntRange(), "--seed", "Of pauses, partitions and locks.")
@bootstrap_option
@json_option
def bench(
    name: str,
    producers: int,
    records: int,
    size: int,
    interval_ms: float,
    locks: int,
    seed: int,
    bootstrap: tuple[str, int],
    as_json: bool,
) -> None:
    """WRITES records into the topic that you name, and into no other, and tells how quickly.

    The records stay there. Each producer reads on, sends a record with the position that it has
    read to, and when it is refused reads on up to the conflict and tries again. The times are those
    from a record's submission until it was acknowledged and read back. A refusal is false if nobody
    had written the lock since that position."""
    from quire.tools.groups.client import KafkaClient
    from quire.tools.locks.bench import Shape, locks_of, run
    from quire.tools.locks.reading import bounds

    with KafkaClient(bootstrap) as client:
        topic, found = bounds(client, name)
        if locks and locks_of(client, topic) == "off":
            raise click.ClickException(f"{topic} has quire.locks=off: nothing would be refused")
    if not found:
        raise click.ClickException(f"{topic} has no partition with a leader")
    shape = Shape(producers, records, size, interval_ms / 1000, locks, seed)
    show_one(
        {
            "topic": topic,
            "partitions": len(found),
            **shape._asdict(),
            **run(bootstrap, topic, found, shape),
        },
        as_json=as_json,
    )
