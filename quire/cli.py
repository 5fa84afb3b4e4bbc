"""The command line.

A command parses its options and hands them to the composition that runs the role; what is the
process's, from signals to exit codes, is in quire/role.py.
"""

from __future__ import annotations

from functools import partial

import click

from quire.cli_options import Address, read_config, role_options
from quire.options import StandaloneOptions
from quire.role import run_role
from quire.tools.bookie.command import bookie
from quire.tools.cluster.command import cluster
from quire.tools.dump.command import dump
from quire.tools.groups.command import groups
from quire.tools.ledger.command import ledger
from quire.tools.topics.command import topics
from runtime.logs import setup_logging

BOOKIES_MAX = 100


@click.group()
@click.version_option(package_name="quire", prog_name="quire", message="%(prog)s %(version)s")
def main() -> None:
    """A Kafka-protocol log server on Apache BookKeeper ledgers."""


main.add_command(bookie)
main.add_command(cluster)
main.add_command(dump)
main.add_command(groups)
main.add_command(ledger)
main.add_command(topics)


@main.command()
@click.option(
    "--listen",
    type=Address(),
    help="Where Kafka clients connect, without TLS or a login; without it, the listeners of"
    " --config, or 127.0.0.1:9092.",
)
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False),
    default="data",
    show_default=True,
    help="Where everything is kept; made if missing.",
)
@click.option(
    "--config",
    "config_path",
    type=click.Path(exists=True, dir_okay=False),
    help="A properties file with Kafka's setting names.",
)
@click.option("--metrics", type=Address(), help="Serve Prometheus metrics there.")
@click.option(
    "--bookies",
    type=click.IntRange(1, BOOKIES_MAX),
    default=1,
    show_default=True,
    help="More than one: each is a process of its own, and topics have up to three copies.",
)
@role_options
def standalone(
    listen: tuple[str, int] | None,
    data_dir: str,
    config_path: str | None,
    settings: dict[str, str],
    metrics: tuple[str, int] | None,
    bookies: int,
    log_level: str,
) -> None:
    """Runs broker, bookie and metadata in one process, or several bookies as processes."""
    from quire.standalone import run  # its imports are of no use to --help and --version

    setup_logging(log_level)
    options = StandaloneOptions(
        listen=listen,
        data_dir=data_dir,
        properties=read_config(config_path),
        overrides=settings,
        metrics=metrics,
        bookies=bookies,
        log_levels=log_level,
    )
    run_role(partial(run, options))


@main.command()
@click.option(
    "--config",
    "config_path",
    required=True,
    type=click.Path(exists=True, dir_okay=False),
    help="server.properties, with Kafka's setting names and BookKeeper's metadataServiceUri.",
)
@click.option("--metrics", type=Address(), help="Serve Prometheus metrics there.")
@click.option("--child-of", type=int, hidden=True, help="Ends when the process of that id does.")
@role_options
def broker(
    config_path: str,
    settings: dict[str, str],
    metrics: tuple[str, int] | None,
    child_of: int | None,
    log_level: str,
) -> None:
    """Runs a Kafka broker on the bookies of a BookKeeper cluster."""
    from quire.broker_node import BrokerOptions, run

    setup_logging(log_level)
    options = BrokerOptions(read_config(config_path), settings, metrics)
    run_role(partial(run, options), parent_pid=child_of)


@main.command()
@click.option(
    "--config",
    "--conf",
    "config_path",
    required=True,
    type=click.Path(exists=True, dir_okay=False),
    help="A bk_server.conf: the cluster, for which bookie, and BookKeeper's settings of this.",
)
@click.option("--metrics", type=Address(), help="Serve Prometheus metrics there.")
@click.option("--child-of", type=int, hidden=True, help="Ends when the process of that id does.")
@role_options
def autorecovery(
    config_path: str,
    settings: dict[str, str],
    metrics: tuple[str, int] | None,
    child_of: int | None,
    log_level: str,
) -> None:
    """Notices lost copies in a BookKeeper cluster, and makes them again. Any number may run."""
    from quire.autorecovery_node import AutoRecoveryOptions, run

    setup_logging(log_level)
    options = AutoRecoveryOptions(read_config(config_path), settings, metrics)
    run_role(partial(run, options), parent_pid=child_of)


if __name__ == "__main__":
    main()
