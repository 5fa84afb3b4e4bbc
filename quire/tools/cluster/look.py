"""`quire cluster status|brokers|bookies|partitions|why`: what a cluster looks like."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from quire.tools.ledger.options import cluster_options, exit_unless, on_cluster
from quire.tools.output import show, show_one

if TYPE_CHECKING:
    from collections.abc import Callable

EXIT_NO = 1


def _output_option(command: Callable[..., None]) -> Callable[..., None]:
    return click.option(
        "--output",
        type=click.Choice(("table", "json")),
        default="table",
        show_default=True,
        help="As --json.",
    )(cluster_options(command))


def _is_json(options: dict[str, Any]) -> bool:
    return bool(options["as_json"]) or options["output"] == "json"


@click.command()
@_output_option
def status(**options: Any) -> None:  # noqa: ANN401  # click's
    """How many of each there are, who is the controller, what is without a leader; exit code 1 if
    something is not as it should be."""
    from quire.tools.cluster import rows

    found = on_cluster(options, rows.status)
    show_one(found, as_json=_is_json(options))
    exit_unless(not found["problems"])


@click.command()
@_output_option
def brokers(**options: Any) -> None:  # noqa: ANN401  # click's
    """The brokers that are registered, and what they lead."""
    from quire.tools.cluster import rows

    show(on_cluster(options, rows.broker_rows), as_json=_is_json(options))


@click.command()
@_output_option
def bookies(**options: Any) -> None:  # noqa: ANN401  # click's
    """The bookies that have a cookie or are registered, and their space."""
    from quire.tools.cluster import rows

    show(on_cluster(options, rows.bookie_rows), as_json=_is_json(options))


@click.command()
@_output_option
@click.argument("topic", required=False)
def partitions(topic: str | None, **options: Any) -> None:  # noqa: ANN401  # click's
    """Partitions, of all topics or of one: who leads, epochs, ledgers."""
    from quire.tools.cluster import rows

    show(on_cluster(options, partial(rows.partition_rows, only=topic)), as_json=_is_json(options))


@click.command()
@_output_option
@click.argument("partition", metavar="TOPIC-PARTITION")
@click.option("--pages", "pages_url", help="The leader's pages, if metadata cannot be asked.")
def why(
    partition: str,
    pages_url: str | None,
    **options: Any,  # noqa: ANN401  # click's
) -> None:
    """Why a partition is stuck, or that it is not (exit code 0)."""
    from quire.tools.cluster.why import explain, show_report, without_metadata

    topic, _, number = partition.rpartition("-")
    if not topic or not number.isascii() or not number.isdigit():
        raise click.UsageError(f"{partition!r} is no TOPIC-PARTITION, as orders-0")
    work = partial(explain, topic=topic, number=int(number))
    try:
        report = on_cluster(options, work)
    except click.UsageError:
        raise
    except click.ClickException as error:
        report = without_metadata(partition, error, pages_url)
    show_report(report, as_json=_is_json(options))
    exit_unless(not report["is_stuck"])


LOOK_COMMANDS = (status, brokers, bookies, partitions, why)
