"""The commands of `quire groups`. Exit codes: 0; 1 if something failed or the group is stuck; 2 for
a wrong option. They ask a cluster by Kafka's protocol, and the pages of its brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from quire.cli_options import Address
from quire.tools.bookie.client import AdminClient
from quire.tools.bookie.target import URL_VARIABLE, find_target, read_token, token_option
from quire.tools.ledger.options import cluster_options, exit_unless, on_cluster
from runtime.env import RealClock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from quire.tools.ledger.cluster import Cluster

PAGE = "quire/groups/"


@click.group()
def groups() -> None:
    """Looks after groups of consumers of a running server or cluster."""


@groups.command()
@click.argument("name", metavar="GROUP")
@click.option(
    "--bootstrap-server",
    "bootstrap",
    type=Address(),
    default="127.0.0.1:9092",
    show_default=True,
    help="Where Kafka clients connect.",
)
@click.option(
    "--command-config",
    type=click.Path(exists=True, dir_okay=False),
    help="A file of Kafka's client settings: security.protocol, ssl.*, sasl.*.",
)
@click.option("--url", help=f"The pages of the group's coordinator. [env: {URL_VARIABLE}]")
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False),
    default="data",
    show_default=True,
    help="Of `quire standalone`, which leaves a note there of where its pages are.",
)
@token_option
@cluster_options
def why(
    name: str,
    bootstrap: tuple[str, int],
    command_config: str | None,
    url: str | None,
    data_dir: str,
    token_file: str | None,
    **options: Any,  # noqa: ANN401  # click's
) -> None:
    """Tells who has what, who is late and since when, and how far behind the group is.

    Exit code 1 if the group waits for somebody, or does not go on."""
    # Of no use to --help.
    from quire.tools.groups import facts
    from quire.tools.groups.client import KafkaClient
    from quire.tools.groups.report import report, show_report
    from quire.tools.groups.security import read_command_config

    with KafkaClient(bootstrap, read_command_config(command_config)) as client:
        found = facts.ask(client, name, RealClock().time_ms())
    urls, token = _targets(url, data_dir, token_file, options)
    told = report(found, _page(name, urls, token))
    show_report(told, as_json=bool(options["as_json"]))
    exit_unless(not told["is_stuck"])


def _targets(
    url: str | None, data_dir: str, token_file: str | None, options: dict[str, Any]
) -> tuple[Sequence[str], str | None]:
    """Of one server's pages, or of all brokers of a cluster that have some; their token."""
    if url is None and (options["metadata_service_uri"] or options["conf"]):
        return on_cluster(options, _pages), read_token(token_file)
    target = find_target(url, data_dir, None, token_file)
    return [] if target.url is None else [target.url], target.token


async def _pages(cluster: Cluster) -> list[str]:
    from quire.tools.cluster import facts

    pages = await facts.pages(cluster)
    return [pages[node_id] for node_id in sorted(pages)]


def _page(name: str, urls: Sequence[str], token: str | None) -> dict[str, Any] | None:
    """What the coordinator tells; the others do not know the group. A broker that does not answer
    may be it."""
    for url in urls:
        try:
            found: dict[str, Any] | None = AdminClient(url, token).find(PAGE + quote(name, safe=""))
        except click.ClickException as error:
            click.echo(error.message, err=True)
            continue
        if found is not None:
            return found
    return None
