"""The commands of `quire topics`. Exit codes: 0; 1 if something failed or the answer is no; 2 for a
wrong option. They talk to the administration pages of running servers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import trio

from quire.tools.bookie.client import AdminClient
from quire.tools.bookie.target import URL_VARIABLE, find_target, read_token, token_option
from quire.tools.ledger.options import cluster_options, exit_unless, on_cluster
from quire.tools.output import progress, show

if TYPE_CHECKING:
    from collections.abc import Sequence

    from quire.tools.ledger.cluster import Cluster
    from quire.tools.output import Step

POLL_SECONDS = 0.2
PAGE = "quire/compaction/"


@click.group()
def topics() -> None:
    """Looks after topics of a running server or cluster."""


@topics.command()
@click.argument("name", metavar="TOPIC[-PARTITION]")
@click.option("--url", help=f"A running server's pages. [env: {URL_VARIABLE}]")
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False),
    default="data",
    show_default=True,
    help="Of `quire standalone`, which leaves a note there of where its pages are.",
)
@token_option
@click.option("--show", "is_show", is_flag=True, help="Only shows how it stands.")
@click.option("--no-wait", is_flag=True, help="Only asks for it.")
@cluster_options
def compact(
    name: str,
    url: str | None,
    data_dir: str,
    token_file: str | None,
    is_show: bool,
    no_wait: bool,
    **options: Any,  # noqa: ANN401  # click's
) -> None:
    """Has a topic, or one partition, compacted now, whatever its dirty ratio is.

    A pass looks at closed ledgers only: what lies in the open one waits until that is rolled
    (segment.ms, segment.bytes). Exit code 1 if a pass failed."""
    urls, token = _targets(url, data_dir, token_file, options)
    clients = [AdminClient(each, token) for each in urls]
    found = _ask(clients, name, is_post=not is_show)
    if not is_show and not no_wait:
        found = _wait(clients, name)
    show([_row(facts) for facts in found], as_json=bool(options["as_json"]))
    exit_unless(not any(facts.get("last_error") for facts in found))


def _targets(
    url: str | None, data_dir: str, token_file: str | None, options: dict[str, Any]
) -> tuple[Sequence[str], str | None]:
    """Of the pages of one server, or of all brokers of a cluster that have some; their token."""
    if url is None and (options["metadata_service_uri"] or options["conf"]):
        found = on_cluster(options, _pages)
        if not found:
            raise click.ClickException(
                "no broker has pages: start them with --metrics HOST:PORT, or give --url"
            )
        return found, read_token(token_file)
    target = find_target(url, data_dir, None, token_file)
    return [target.needed_url()], target.token


async def _pages(cluster: Cluster) -> list[str]:
    from quire.tools.cluster import facts

    pages = await facts.pages(cluster)
    return [pages[node_id] for node_id in sorted(pages)]


def _ask(clients: Sequence[AdminClient], name: str, *, is_post: bool) -> list[dict[str, Any]]:
    """Of each partition, by who holds it. ClickException: nobody does, or one says no."""
    found: list[dict[str, Any]] = []
    for client in clients:
        answer = client.post(PAGE + name) if is_post else client.find(PAGE + name)
        found += answer or []
    if not found:
        raise click.ClickException(f"no server that was asked holds {name}")
    return sorted(found, key=lambda facts: _order(facts["partition"]))


def _order(partition: str) -> tuple[str, int]:
    topic, _, number = partition.rpartition("-")
    return topic, int(number)


def _wait(clients: Sequence[AdminClient], name: str) -> list[dict[str, Any]]:
    seen: dict[str, tuple[str, int]] = {}
    with progress(f"compacting {name}", None) as step:
        while True:
            found = _ask(clients, name, is_post=False)
            for facts in found:
                _tell(facts, seen, step)
            if not any(facts.get("is_asked") or facts.get("is_running") for facts in found):
                return found
            trio.run(trio.sleep, POLL_SECONDS)


def _tell(facts: dict[str, Any], seen: dict[str, tuple[str, int]], step: Step) -> None:
    running = facts.get("running")
    if running is None:
        return
    name = facts["partition"]
    phase, done = seen.get(name, ("", 0))
    if phase != running["phase"]:
        done = 0
    step(running["done_bytes"] - done)
    seen[name] = running["phase"], running["done_bytes"]


def _row(facts: dict[str, Any]) -> dict[str, Any]:
    last = facts.get("last") or {}
    return {
        "partition": facts["partition"],
        "size_bytes": facts["size_bytes"],
        "ledgers": facts["ledgers"],
        "cleaned_to": facts["cleaned_to"],
        "high_watermark": facts["high_watermark"],
        "dirty_ratio": facts.get("dirty_ratio"),
        "blocked_by": facts.get("blocked_by"),
        "passes": facts.get("passes", 0),
        "records_dropped": last.get("records_dropped"),
        "bytes_before": last.get("bytes_before"),
        "bytes_after": last.get("bytes_after"),
        "error": facts.get("last_error"),
    }
