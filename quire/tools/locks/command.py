"""The commands of `quire locks`. Exit codes: 0; 1 if something failed or a record was wrongly
accepted; 2 for a wrong option. They ask a cluster by Kafka's protocol."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from quire.cli_options import Address
from quire.tools.output import progress, show, show_one

if TYPE_CHECKING:
    from quire.tools.groups.client import KafkaClient

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
    """Looks at topics with optimistic locks."""


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
