"""The commands of `quire bookie`. Exit codes: 0; 1 if something failed or the answer is no; 2 for a
wrong option. What does the work on directories is imported when a command runs."""

from __future__ import annotations

import dataclasses
import re
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import click
import trio

from quire.cli_options import read_config, role_options
from quire.role import run_role
from quire.tools.bookie import (
    auto_recovery,
    cluster_admin,
    cluster_view,
    cookies,
    decommission,
    local_cluster,
    recover,
)
from quire.tools.bookie.client import AdminClient
from quire.tools.bookie.rebuild_index import rebuild_index
from quire.tools.bookie.target import URL_VARIABLE, find_target, token_option
from quire.tools.ledger.options import alias
from quire.tools.output import show, show_one
from runtime.config import parse_properties
from runtime.logs import setup_logging

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from quire.tools.bookie.target import Target

Command = TypeVar("Command", bound="Callable[..., None]")

EXIT_NO = 1
POLL_SECONDS = 0.2
_MARK = re.compile(r"Journal Id - (\d+)\(")


@click.group(invoke_without_command=True)
@click.option(
    "--config",
    "--conf",
    "config_path",
    type=click.Path(exists=True, dir_okay=False),
    help="Runs a bookie with this bk_server.conf.",
)
@click.option("--child-of", type=int, hidden=True, help="Ends when the process of that id does.")
@role_options
@click.pass_context
def bookie(
    context: click.Context,
    config_path: str | None,
    child_of: int | None,
    settings: dict[str, str],
    log_level: str,
) -> None:
    """Runs a storage node (--config bk_server.conf, without a command), or looks after one: one
    that runs, or the directories of one that does not.

    A running server is found by --url, by the environment's QUIRE_ADMIN_URL, or by what `quire
    standalone --metrics HOST:PORT` left in its data directory."""
    if context.invoked_subcommand is not None:
        return
    if config_path is None:
        raise click.UsageError("a command, or --config with a bk_server.conf, is needed", context)
    from quire.bookie_node import BookieOptions, run

    properties = read_config(config_path)
    # One stream for all: whose line it is must be in it.
    name = "" if child_of is None else parse_properties(properties).get("bookieId", "")
    setup_logging(log_level, process=name)
    run_role(partial(run, BookieOptions(properties, settings)), parent_pid=child_of)


bookie.add_command(rebuild_index)
for _commands in (
    cluster_view,
    cluster_admin,
    cookies,
    auto_recovery,
    recover,
    decommission,
    local_cluster,
):
    _commands.register(bookie)


def _target(command: Command) -> Command:
    """The options that say what to work on and how to show it."""
    for option in reversed(
        (
            click.option("--url", help=f"A running server's pages. [env: {URL_VARIABLE}]"),
            click.option(
                "--data-dir",
                type=click.Path(file_okay=False),
                default="data",
                show_default=True,
                help="Of `quire standalone`.",
            ),
            click.option(
                "--conf",
                type=click.Path(exists=True, dir_okay=False),
                help="A bk_server.conf that names the directories, instead of --data-dir.",
            ),
            token_option,
            click.option("--json", "as_json", is_flag=True, help="JSON instead of a table."),
        )
    ):
        command = option(command)
    return command


def _find(options: dict[str, Any]) -> tuple[Target, bool]:
    return (
        find_target(options["url"], options["data_dir"], options["conf"], options["token_file"]),
        options["as_json"],
    )


@bookie.command()
@_target
def info(**options: Any) -> None:  # noqa: ANN401  # click's
    """Disk space of the ledger directories."""
    target, as_json = _find(options)
    if target.url is not None:
        from quire.tools.bookie.offline import space_row

        found = AdminClient(target.url, target.token).get("bookie/info")
        rows = [space_row("all", found["totalSpace"], found["freeSpace"])]
    else:
        from quire.tools.bookie.offline import space

        rows = space(target)
    show(rows, as_json=as_json)


@bookie.command("last-mark")
@_target
def last_mark(**options: Any) -> None:  # noqa: ANN401  # click's
    """Up to where the journal is in entry logs and index."""
    target, as_json = _find(options)
    if target.url is not None:
        ((words, position),) = (
            AdminClient(target.url, target.token).get("bookie/last_log_mark").items()
        )
        match = _MARK.search(words)
        assert match is not None, words
        journal_id, offset = int(match[1]), int(position.removeprefix("Pos - "))
    else:
        from quire.tools.bookie import offline

        mark = offline.last_mark(target)
        journal_id, offset = mark.journal_id, mark.offset
    row = {"journal_id": journal_id, "journal": f"{journal_id:x}.txn", "position": offset}
    show([row], as_json=as_json)


@bookie.command("list-ledgers")
@_target
@click.option("--meta", is_flag=True, help="With what the metadata says of each.")
def list_ledgers(meta: bool, **options: Any) -> None:  # noqa: ANN401  # click's
    """The ledgers that the metadata knows."""
    target, as_json = _find(options)
    show([_ledger_row(*each) for each in _ledgers(target, meta)], as_json=as_json)


def _ledgers(target: Target, meta: bool) -> Iterator[tuple[int, dict[str, Any]]]:
    if target.url is None:
        from quire.tools.bookie import offline

        yield from offline.ledgers_of(target, meta)
        return
    query = {"print_metadata": "true", "decode_meta": "true"} if meta else {}
    for name, metadata in AdminClient(target.url, target.token).get("ledger/list", **query).items():
        yield int(name), metadata or {}


def _ledger_row(ledger_id: int, metadata: dict[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {"ledger": ledger_id}
    if metadata:
        names = ("state", "lastEntryId", "length", "ctime", "digestType", "customMetadata")
        row |= {name: metadata.get(name) for name in names}
        sizes = ("ensembleSize", "writeQuorumSize", "ackQuorumSize")
        row["quorums"] = "/".join(str(metadata.get(name)) for name in sizes)
        row["ensembles"] = {
            first: [each["id"] for each in members]
            for first, members in metadata.get("allEnsembles", {}).items()
        }
    return row


@bookie.command("list-files")
@_target
@click.option(
    "--type",
    "kind",
    type=click.Choice(["journal", "entrylog", "index"]),
    help="Only these.",
)
def list_files(kind: str | None, **options: Any) -> None:  # noqa: ANN401  # click's
    """The files on disk: journals, entry logs, the index's tables."""
    target, as_json = _find(options)
    rows: list[dict[str, Any]] = []
    if target.url is not None:
        query = {"file_type": kind} if kind else {}
        for name, names in (
            AdminClient(target.url, target.token).get("bookie/list_disk_file", **query).items()
        ):
            rows += [
                {"type": name.removesuffix(" files"), "name": each}
                for each in names.split("\t")
                if each
            ]
    else:
        from quire.tools.bookie import offline

        for name, files in offline.files(target).items():
            if kind in (None, name):
                rows += [{"type": name, **dataclasses.asdict(each)} for each in files]
    show(rows, as_json=as_json)


@bookie.command()
@_target
def sanity(**options: Any) -> None:  # noqa: ANN401  # click's
    """Writes a ledger and reads it back; without a server: compares the index with the logs."""
    target, as_json = _find(options)
    if target.url is not None:
        found = AdminClient(target.url, target.token).get("bookie/sanity")
    else:
        from quire.tools.bookie import work

        found = work.check_index(target)
    show_one(found, as_json=as_json)
    _exit_unless(found["passed"])


def _exit_unless(is_fine: bool) -> None:
    if not is_fine:
        raise SystemExit(EXIT_NO)


@bookie.command()
@_target
def state(**options: Any) -> None:  # noqa: ANN401  # click's
    """Whether a running bookie takes writes, and what its garbage collection is doing."""
    target, as_json = _find(options)
    client = AdminClient(target.needed_url(), target.token)
    (details,) = client.get("bookie/gc_details")
    found = {
        **client.get("bookie/state"),
        **client.get("bookie/gc/suspend_compaction"),
        **details,
    }
    show_one(found, as_json=as_json)


@bookie.command("is-ready")
@_target
def is_ready(**options: Any) -> None:  # noqa: ANN401  # click's
    """Whether a running bookie takes requests: exit code 0, else 1."""
    target, as_json = _find(options)
    ready = AdminClient(target.needed_url(), target.token).is_ready()
    show_one({"ready": ready}, as_json=as_json)
    _exit_unless(ready)


@bookie.command()
@_target
def gc(**options: Any) -> None:  # noqa: ANN401  # click's
    """Deletes what the metadata does not know any more, now. A running server's ledger goes a
    minute after it was first found missing. Without a server it goes at once, after two looks:
    nobody else has the metadata file open, so what is read there is what there is."""
    _collect(options, minor=False, major=False)


@bookie.command()
@_target
@click.option("--minor", is_flag=True, help="Entry logs that are mostly garbage.")
@click.option("--major", is_flag=True, help="All entry logs with garbage worth the work.")
@click.option("--entry-location", is_flag=True, help="The index.")
def compact(
    minor: bool,
    major: bool,
    entry_location: bool,
    **options: Any,  # noqa: ANN401  # click's
) -> None:
    """Compacts entry logs or the index, now; garbage is collected first."""
    if not (minor or major or entry_location):
        raise click.UsageError("say what: --minor, --major, --entry-location")
    if minor or major:
        _collect(options, minor=minor, major=major)
    if entry_location:
        _compact_index(options)


def _collect(options: dict[str, Any], *, minor: bool, major: bool) -> None:
    target, as_json = _find(options)
    if target.url is None:
        from quire.tools.bookie import work

        report = work.collect(target, minor=minor, major=major)
        show_one(report, as_json=as_json)
        _exit_unless(bool(report["is_complete"]))
        return
    client = AdminClient(target.url, target.token)
    client.put("bookie/gc", {"forceMinor": minor, "forceMajor": major})
    _wait_until(lambda: client.get("bookie/gc")["is_in_force_gc"] == "false")
    (details,) = client.get("bookie/gc_details")
    show_one(details, as_json=as_json)


def _compact_index(options: dict[str, Any]) -> None:
    target, as_json = _find(options)
    if target.url is None:
        from quire.tools.bookie import work

        show_one(work.compact_index(target), as_json=as_json)
        return
    client = AdminClient(target.url, target.token)
    page = "bookie/entry_location_compact"
    client.put(page, {"entryLocationRocksDBCompact": True})
    _wait_until(lambda: not any(client.get(page).values()))
    show_one({"compacted": list(client.get(page))}, as_json=as_json)


def _wait_until(is_done: Callable[[], bool]) -> None:
    while not is_done():
        trio.run(trio.sleep, POLL_SECONDS)


@bookie.command()
@_target
def scrub(**options: Any) -> None:  # noqa: ANN401  # click's
    """Reads all entry logs and checks every record; exit code 1 if something is damaged."""
    target, as_json = _find(options)
    if target.url is not None:
        client = AdminClient(target.url, target.token)
        client.put("bookie/scrub", {})
        _wait_until(lambda: not client.get("bookie/scrub")["is_running"])
        found = client.get("bookie/scrub")
    else:
        from quire.tools.bookie import work

        found = work.scrub(target)
    show_one(found, as_json=as_json)
    _exit_unless(not found["damaged_entries"])


def _which_compaction(command: Command) -> Command:
    command = click.option("--minor", is_flag=True, help="Only the minor one.")(command)
    return click.option("--major", is_flag=True, help="Only the major one.")(command)


@bookie.command("suspend-compaction")
@_target
@_which_compaction
def suspend_compaction(
    minor: bool,
    major: bool,
    **options: Any,  # noqa: ANN401  # click's
) -> None:
    """A running bookie compacts nothing until that is resumed."""
    _suspend_or_resume("suspend", minor, major, options)


@bookie.command("resume-compaction")
@_target
@_which_compaction
def resume_compaction(
    minor: bool,
    major: bool,
    **options: Any,  # noqa: ANN401  # click's
) -> None:
    """Takes suspend-compaction back."""
    _suspend_or_resume("resume", minor, major, options)


def _suspend_or_resume(verb: str, minor: bool, major: bool, options: dict[str, Any]) -> None:
    target, as_json = _find(options)
    client = AdminClient(target.needed_url(), target.token)
    both = minor == major
    body = {f"{verb}Minor": both or minor, f"{verb}Major": both or major}
    client.put(f"bookie/gc/{verb}_compaction", body)
    show_one(client.get("bookie/gc/suspend_compaction"), as_json=as_json)


alias(bookie, last_mark, "lastmark")
alias(bookie, sanity, "bookiesanity")
alias(bookie, list_files, "listfilesondisc")
