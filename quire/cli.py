"""The command line.

A command parses its options and hands them to the composition that runs the role; what is the
process's, from signals to exit codes, is in quire/role.py.
"""

from __future__ import annotations

from functools import partial

import click

from quire.cli_options import Address, read_config, role_options, warn_of_arguments
from quire.importing_group import ImportingGroup
from quire.options import AdminOptions, StandaloneOptions
from quire.passwords import read_password
from quire.role import run_role
from runtime.logs import setup_logging

BOOKIES_MAX = 100
PROCESSES_MAX = 64


#: The tools, of which a server that starts imports none.
TOOLS = {
    "bookie": "quire.tools.bookie.command",
    "cluster": "quire.tools.cluster.command",
    "dump": "quire.tools.dump.command",
    "groups": "quire.tools.groups.command",
    "ledger": "quire.tools.ledger.command",
    "locks": "quire.tools.locks.command",
    "topics": "quire.tools.topics.command",
    "user": "quire.tools.users.command",
}


@click.group(cls=ImportingGroup, places=TOOLS)
@click.version_option(package_name="quire", prog_name="quire", message="%(prog)s %(version)s")
def main() -> None:
    """A Kafka-protocol log server on Apache BookKeeper ledgers."""


@main.command()
@click.option(
    "--listen",
    type=Address(),
    help="Where Kafka clients connect, without TLS or a login: 127.0.0.1:9092, unless the file has"
    " `listeners`.",
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
@click.option(
    "--processes",
    type=click.IntRange(1, PROCESSES_MAX),
    default=1,
    show_default=True,
    help="More than one: partitions are spread over so many brokers, each a process. Process i"
    " listens on the ports given plus i.",
)
@click.option(
    "--bookie-listen",
    type=Address(),
    help="Let other processes of this machine read ledgers there, by BookKeeper's protocol (Spark)."
    " Off by default. It asks for no login, and knows no ACLs.",
)
@click.option(
    "--admin",
    metavar="NAME[:MECHANISM]",
    help="A user of SCRAM who is made if nobody has, or had, that name.",
)
@click.option(
    "--admin-password-file",
    metavar="FILE",
    help="Its one line is that user's password; «-»: of standard input. Without it one is made,"
    " and written to a file in the data directory.",
)
@role_options
def standalone(
    listen: tuple[str, int] | None,
    data_dir: str,
    config_path: str | None,
    settings: dict[str, str],
    metrics: tuple[str, int] | None,
    bookies: int,
    processes: int,
    bookie_listen: tuple[str, int] | None,
    admin: str | None,
    admin_password_file: str | None,
    log_level: str,
) -> None:
    """Runs broker, bookie and metadata in one process; several bookies, or brokers, as more."""
    from quire.standalone import run  # its imports are of no use to --help and --version

    setup_logging(log_level)
    warn_of_arguments(settings)
    options = StandaloneOptions(
        listen=listen,
        data_dir=data_dir,
        properties=read_config(config_path),
        overrides=settings,
        metrics=metrics,
        bookies=bookies,
        processes=processes,
        bookie_listen=bookie_listen,
        admin=_admin(admin, admin_password_file),
        log_levels=log_level,
    )
    run_role(partial(run, options))


def _admin(who: str | None, password_file: str | None) -> AdminOptions | None:
    """UsageError."""
    from broker.security.users.administrator import parse_user  # as in `standalone`

    if who is None:
        if password_file is not None:
            raise click.UsageError("--admin-password-file: whose? --admin NAME tells")
        return None
    try:
        name, mechanisms = parse_user(who)
    except ValueError as error:
        raise click.UsageError(f"--admin {error}") from None
    option = "--admin-password-file"
    password = None if password_file is None else read_password(password_file, option)
    return AdminOptions(name, mechanisms, password)


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
@click.option("--data-dir", hidden=True, help="What clients are told that their data are in.")
@role_options
def broker(
    config_path: str,
    settings: dict[str, str],
    metrics: tuple[str, int] | None,
    child_of: int | None,
    data_dir: str | None,
    log_level: str,
) -> None:
    """Runs a Kafka broker on the bookies of a BookKeeper cluster."""
    from quire.broker_node import BrokerOptions, run

    setup_logging(log_level)
    warn_of_arguments(settings)
    options = BrokerOptions(
        *(read_config(config_path), settings, metrics, data_dir), is_child=child_of is not None
    )
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
