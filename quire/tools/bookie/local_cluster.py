"""`quire bookie format`, `active-ledgers`: directories of a bookie, with an eye on the cluster."""

from __future__ import annotations

import os
import shutil
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from quire.tools.bookie.target import find_target
from quire.tools.ledger.options import alias, cluster_options, on_cluster
from quire.tools.output import show

if TYPE_CHECKING:
    from quire.tools.ledger.cluster import Cluster

CURRENT = "current"


@click.command("format")
@cluster_options
@click.option("--data-dir", type=click.Path(file_okay=False), default="data", hidden=True)
@click.option("--force", "-force", "-f", is_flag=True, help="With -n: delete what is there.")
@click.option("--non-interactive", "--nonInteractive", "-nonInteractive", "-n", is_flag=True)
@click.option(
    "--delete-cookie",
    "--deleteCookie",
    "-deleteCookie",
    "-d",
    is_flag=True,
    help="Also from the metadata, without which the bookie does not start again.",
)
def format_bookie(
    data_dir: str,
    force: bool,
    non_interactive: bool,
    delete_cookie: bool,
    **options: Any,  # noqa: ANN401  # click's
) -> None:
    """Deletes all that a bookie, which must not be running, has in the directories of --conf.

    Its ledgers are lost there: recover them to other bookies first."""
    journal, ledgers = find_target(None, data_dir, options["conf"]).directories()
    paths = list(dict.fromkeys((journal, *ledgers)))
    used = [path for path in paths if os.path.isdir(path) and os.listdir(path)]
    if used and non_interactive and not force:
        raise click.ClickException(f"{used[0]} is not empty; --force deletes it")
    if used and not non_interactive:
        click.confirm(f"Delete all that is in {', '.join(used)}?", abort=True)
    bookie_id = _bookie_id(ledgers[0]) if delete_cookie else None
    clear(used)
    if bookie_id is not None:
        from quire.tools.bookie.cookies import delete_cookie as delete

        on_cluster(options, partial(delete, bookie_id=bookie_id))


def _bookie_id(directory: str) -> str:
    """As the cookie in the directory says. ClickException."""
    from bookie.cookie import FILE_NAME, parse_cookie

    path = os.path.join(directory, CURRENT, FILE_NAME)
    try:
        with open(path, encoding="utf-8") as file:
            return parse_cookie(file.read()).bookie_id
    except (OSError, ValueError) as error:
        raise click.ClickException(
            f"{path}: {error}: whose cookie is to be deleted? See `quire bookie cookie delete`"
        ) from error


def clear(paths: list[str]) -> None:
    """Deletes what is in these directories; ClickException, and nothing is deleted, while a bookie
    has one of them."""
    from bookie.cookie import LOCK_NAME
    from runtime.real_disk import RealDisk

    disk = RealDisk()
    with ExitStack() as stack:
        for path in paths:
            if not os.path.isdir(os.path.join(path, CURRENT)):
                continue
            try:
                stack.callback(disk.lock(os.path.join(path, CURRENT, LOCK_NAME)))
            except BlockingIOError as error:
                raise click.ClickException(f"{path} is in use by a bookie") from error
        for path in paths:
            for name in os.listdir(path):
                full = os.path.join(path, name)
                if os.path.isdir(full) and not os.path.islink(full):
                    shutil.rmtree(full)
                else:
                    os.unlink(full)


@click.command("active-ledgers")
@cluster_options
@click.option("--data-dir", type=click.Path(file_okay=False), default="data", hidden=True)
@click.argument("log", required=False)
@click.option("--log-id", "--logId", "-logId", "-l", help="The entry log, as its file is named.")
@click.option("--timeout", "-timeout", "-t", type=int, hidden=True)
def active_ledgers(
    data_dir: str,
    log: str | None,
    log_id: str | None,
    timeout: int | None,
    **options: Any,  # noqa: ANN401  # click's
) -> None:
    """The ledgers with entries in an entry LOG (1f, or 1f.log) of --conf's ledger directories, and
    whether the cluster still has them."""
    del timeout  # BookKeeper's; metadata has a time-out of its own
    if (log is None) == (log_id is None):
        raise click.UsageError("name one entry log: as an argument, or with --log-id")
    _, directories = find_target(None, data_dir, options["conf"]).directories()
    found = ledgers_in_log(directories, log or log_id or "")
    rows = on_cluster(options, partial(_with_state, found=found))
    show(rows, as_json=options["as_json"])


def ledgers_in_log(directories: tuple[str, ...], name: str) -> dict[int, int]:
    """Bytes by ledger, from the log's map or, without one, its records. ClickException."""
    import trio

    from bookie.errors import CorruptionError
    from bookie.storage.entry_log_format import read_ledgers_map
    from bookie.storage.log_scan import LogScanner
    from runtime.real_disk import RealDisk

    file_name = name.removesuffix(".log").lower() + ".log"
    paths = [os.path.join(directory, CURRENT, file_name) for directory in directories]
    path = next((path for path in paths if os.path.isfile(path)), None)
    if path is None:
        raise click.ClickException(f"no ledger directory has {file_name}")
    disk = RealDisk()
    file = disk.open(path)

    async def scan() -> dict[int, int]:
        sizes: dict[int, int] = {}
        scanner = LogScanner(disk, file, file.size())
        while (records := await scanner.next()) is not None:
            for (ledger_id, _), size in zip(records.keys, records.sizes, strict=True):
                sizes[ledger_id] = sizes.get(ledger_id, 0) + size
        return sizes

    try:
        sizes = read_ledgers_map(file)
        return trio.run(scan) if sizes is None else sizes
    except (CorruptionError, OSError) as error:
        raise click.ClickException(str(error)) from error
    finally:
        file.close()


async def _with_state(cluster: Cluster, found: dict[int, int]) -> list[dict[str, Any]]:
    from ledger.metadata import ledger_path

    rows: list[dict[str, Any]] = []
    ids = sorted(found)
    for start in range(0, len(ids), 100):
        batch = ids[start : start + 100]
        nodes = await cluster.store.get_many([ledger_path(cluster.root, i) for i in batch])
        rows += [
            {"ledger": ledger_id, "log_bytes": found[ledger_id], "active": node is not None}
            for ledger_id, node in zip(batch, nodes, strict=True)
        ]
    return rows


def register(group: click.Group) -> None:
    for command, name in ((format_bookie, "bookieformat"), (active_ledgers, "activeledgers")):
        group.add_command(command)
        alias(group, command, name)
