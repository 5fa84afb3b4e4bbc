"""The commands of `quire cluster`. Exit codes: 0; 1 if something failed or the answer is no; 2 for
a wrong option. What does the work is imported when a command runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from quire.cli_options import check_levels, parse_settings
from quire.tools.cluster.look import LOOK_COMMANDS

if TYPE_CHECKING:
    from collections.abc import Callable

COUNT_MAX = 100
DIRECTORY_DEFAULT = "quire-cluster"


@click.group()
def cluster() -> None:
    """A cluster of brokers and bookies: runs one on this machine, or shows any."""


def _directory_option(command: Callable[..., None]) -> Callable[..., None]:
    return click.option(
        "--directory",
        type=click.Path(file_okay=False, path_type=Path),
        default=DIRECTORY_DEFAULT,
        show_default=True,
        help="Where the cluster's data, settings and logs are.",
    )(command)


@cluster.command()
@click.option("--brokers", type=click.IntRange(1, COUNT_MAX), default=3, show_default=True)
@click.option("--bookies", type=click.IntRange(1, COUNT_MAX), default=4, show_default=True)
@_directory_option
@click.option(
    "--listen-from",
    type=click.IntRange(1, 65535 - COUNT_MAX),
    help="The first broker's port, the next ones follow. [default: as last time, else free ones]",
)
@click.option("--autorecovery", is_flag=True, help="With a process that repairs lost copies.")
@click.option(
    "--broker-set",
    "broker_settings",
    multiple=True,
    metavar="KEY=VALUE",
    callback=parse_settings,
    help="A setting of all brokers, by Kafka's name. May be repeated.",
)
@click.option(
    "--bookie-set",
    "bookie_settings",
    multiple=True,
    metavar="KEY=VALUE",
    callback=parse_settings,
    help="A setting of all bookies, by BookKeeper's name. May be repeated.",
)
@click.option("--log-level", default="warning", show_default=True, callback=check_levels)
def up(
    brokers: int,
    bookies: int,
    directory: Path,
    listen_from: int | None,
    autorecovery: bool,
    broker_settings: dict[str, str],
    bookie_settings: dict[str, str],
    log_level: str,
) -> None:
    """Runs a whole cluster on this machine: ZooKeeper, bookies and brokers, each a process.

    In the foreground, until Ctrl-C. Data stay in the directory, and the next start finds them.
    ZooKeeper is fetched with Maven the first time, and needs Java."""
    from quire.role import run_role
    from quire.tools.cluster.layout import UpOptions
    from quire.tools.cluster.up import ClusterUp
    from quire.tools.cluster.zookeeper_jars import ensure_jars, find_java
    from runtime.logs import setup_logging

    setup_logging(log_level)
    java = find_java()
    options = UpOptions(
        directory,
        brokers,
        bookies,
        listen_from,
        autorecovery,
        broker_settings,
        bookie_settings,
    )
    try:
        together = ClusterUp(options, java, ensure_jars())
    except OSError as error:
        raise click.ClickException(str(error)) from error
    run_role(together.run)


def _process_command(name: str, words: str, action: str) -> None:
    @cluster.command(name, help=words)
    @click.argument("process")
    @_directory_option
    def run(process: str, directory: Path) -> None:
        from quire.tools.cluster import control

        getattr(control, action)(directory, process)


_process_command("kill", "Ends a process of `quire cluster up` as a crash does (SIGKILL).", "kill")
_process_command("stop", "Ends a process of `quire cluster up` cleanly, and waits.", "stop")
_process_command("start", "Has `quire cluster up` start a process that has ended.", "start")

for _command in LOOK_COMMANDS:
    cluster.add_command(_command)
