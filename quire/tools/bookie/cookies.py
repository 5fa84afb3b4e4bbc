"""`quire bookie cookie create|delete|get|update|generate`: bookies' identities in the metadata.

Files are those that bookies, ours and Java's, have in their directories (bookie/cookie.py).
"""

from __future__ import annotations

import copy
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from quire.tools.ledger.options import cluster_options, on_cluster
from quire.tools.output import show_one

if TYPE_CHECKING:
    from quire.tools.ledger.cluster import Cluster

cookie_file_option = click.option(
    "--cookie-file",
    "-cookie-file",
    "-cf",
    required=True,
    type=click.Path(exists=True, dir_okay=False),
    help="The cookie's text.",
)


@click.group()
def cookie() -> None:
    """Cookies in the metadata: who a bookie is, and which directories it has."""


@cookie.command()
@cluster_options
@cookie_file_option
@click.argument("bookie_id")
def create(cookie_file: str, bookie_id: str, **options: Any) -> None:  # noqa: ANN401  # click's
    """Stores a bookie's cookie, which it must not have yet."""
    data = _read_cookie(cookie_file)
    on_cluster(options, partial(create_cookie, bookie_id=bookie_id, data=data))


@cookie.command()
@cluster_options
@cookie_file_option
@click.argument("bookie_id")
def update(cookie_file: str, bookie_id: str, **options: Any) -> None:  # noqa: ANN401  # click's
    """Replaces a bookie's cookie."""
    data = _read_cookie(cookie_file)
    on_cluster(options, partial(update_cookie, bookie_id=bookie_id, data=data))


@cookie.command()
@cluster_options
@click.argument("bookie_id")
def delete(bookie_id: str, **options: Any) -> None:  # noqa: ANN401  # click's
    """Deletes a bookie's cookie: one that comes back with its data is refused then."""
    on_cluster(options, partial(delete_cookie, bookie_id=bookie_id))


@cookie.command()
@cluster_options
@click.argument("bookie_id")
def get(bookie_id: str, **options: Any) -> None:  # noqa: ANN401  # click's
    """Shows a bookie's cookie."""
    text = on_cluster(options, partial(get_cookie, bookie_id=bookie_id))
    if options["as_json"]:
        show_one({"bookie": bookie_id, "cookie": text}, as_json=True)
    else:
        click.echo(text, nl=False)


@cookie.command()
@cluster_options
@click.option("--journal-dirs", "-journal-dirs", "-j", required=True, help="Its journals, A,B,C.")
@click.option("--ledger-dirs", "-ledger-dirs", "-l", required=True, help="Its ledgers, A,B,C.")
@click.option("--index-dirs", "-index-dirs", "-ix", hidden=True, help="Not used by our bookies.")
@click.option("--instance-id", "-instance-id", "-i", help="[default: the cluster's]")
@click.option(
    "--output-file",
    "-output-file",
    "-o",
    required=True,
    type=click.Path(dir_okay=False, writable=True),
    help="Where the cookie's text goes.",
)
@click.argument("bookie_id")
def generate(
    journal_dirs: str,
    ledger_dirs: str,
    index_dirs: str | None,
    instance_id: str | None,
    output_file: str,
    bookie_id: str,
    **options: Any,  # noqa: ANN401  # click's
) -> None:
    """Makes a cookie's text for a bookie, in a file."""
    from bookie.cookie import Cookie
    from quire.tools.bookie.cluster_view import instance_id as ask_instance_id

    ledgers = [path for path in ledger_dirs.split(",") if path]
    if not ledgers:
        raise click.UsageError("--ledger-dirs: none is named")
    if instance_id is None:
        instance_id = on_cluster(options, ask_instance_id)
    text = Cookie(bookie_id, journal_dirs, ledgers[0], instance_id, tuple(ledgers[1:])).encode()
    if index_dirs:
        indexes = index_dirs.split(",")
        words = "\\t".join((str(len(indexes)), *indexes))
        text += f'indexDirs: "{words}"\n'
    Path(output_file).write_text(text, encoding="utf-8")


def _read_cookie(path: str) -> bytes:
    """ClickException unless it is a cookie."""
    from bookie.cookie import parse_cookie

    try:
        text = Path(path).read_text(encoding="utf-8")
        parse_cookie(text)
    except (OSError, ValueError) as error:
        raise click.ClickException(f"{path}: {error}") from error
    return text.encode()


def _path(cluster: Cluster, bookie_id: str) -> str:
    return f"{cluster.root}/cookies/{bookie_id}"


async def create_cookie(cluster: Cluster, bookie_id: str, data: bytes) -> None:
    from metadata.store import NodeExistsError

    try:
        await cluster.store.create(_path(cluster, bookie_id), data, make_parents=True)
    except NodeExistsError as error:
        raise click.ClickException(f"bookie {bookie_id} has a cookie; see update") from error


async def update_cookie(cluster: Cluster, bookie_id: str, data: bytes) -> None:
    from metadata.store import NoNodeError

    path = _path(cluster, bookie_id)
    try:
        await cluster.store.put(path, data, (await cluster.store.get(path)).version)
    except NoNodeError as error:
        raise click.ClickException(f"bookie {bookie_id} has no cookie; see create") from error


async def delete_cookie(cluster: Cluster, bookie_id: str) -> None:
    from metadata.store import NoNodeError

    try:
        await cluster.store.delete(_path(cluster, bookie_id))
    except NoNodeError as error:
        raise click.ClickException(f"bookie {bookie_id} has no cookie") from error


async def get_cookie(cluster: Cluster, bookie_id: str) -> str:
    from metadata.store import NoNodeError

    try:
        return (await cluster.store.get(_path(cluster, bookie_id))).data.decode(errors="replace")
    except NoNodeError as error:
        raise click.ClickException(f"bookie {bookie_id} has no cookie") from error


def register(group: click.Group) -> None:
    group.add_command(cookie)
    for command in (create, delete, get, update, generate):
        assert command.name is not None
        other = copy.copy(command)
        other.name, other.hidden = f"cookie_{command.name}", True
        command.epilog = f"In `bookkeeper shell`: {other.name}."
        group.add_command(other)
