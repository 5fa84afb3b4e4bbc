"""What all commands on a cluster have in common.

The cluster is that of --metadata-service-uri (or the environment's), or of the bk_server.conf given
with --conf; of a running `quire standalone` with several bookies it is
quire+unix:///<data directory>/metadata.sock. Exit codes: 0; 1 if something failed or the answer is
no; 2 for a wrong option.

Commands have BookKeeper's names too, and options BookKeeper's spellings, hidden from the lists.
"""

from __future__ import annotations

import copy
import functools
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from quire.cli_options import check_levels, read_config

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    from metadata.store import MetadataStore
    from quire.tools.ledger.cluster import Cluster
    from runtime.config import ConfigValue
    from runtime.env import Env

    #: Makes the store, not started, and tells the root of the ledgers in it; from settings by
    #: BookKeeper's names. A click context's `obj` may hold one, to be used instead of the one that
    #: metadataServiceUri names.
    OpenStore = Callable[[Mapping[str, ConfigValue], Env], tuple[MetadataStore, str]]

T = TypeVar("T")
Command = TypeVar("Command", bound="Callable[..., None]")

URI_VARIABLES = ("QUIRE_METADATA_SERVICE_URI", "BK_metadataServiceUri")
EXIT_NO = 1


def cluster_options(command: Command) -> Command:
    """--metadata-service-uri, --conf, --json and --log-level."""
    for option in reversed(
        (
            click.option(
                "--metadata-service-uri",
                "-u",
                envvar=list(URI_VARIABLES),
                show_envvar=True,
                help="As zk+null://host:2181/ledgers, or quire+unix:///path/of/socket.",
            ),
            click.option(
                "--conf",
                "-conf",
                type=click.Path(exists=True, dir_okay=False),
                help="A bk_server.conf that tells metadataServiceUri; goes before the environment.",
            ),
            click.option("--json", "as_json", is_flag=True, help="JSON instead of a table."),
            click.option(
                "--log-level",
                default="error",
                show_default=True,
                metavar="LEVEL[,LOGGER=LEVEL]",
                callback=check_levels,
                help="debug, info, warning or error.",
            ),
        )
    ):
        command = option(command)
    return command


ledger_id_option = click.option(
    "--ledger-id",
    "--ledgerid",
    "-ledgerid",
    "-l",
    "ledger_id",
    type=click.IntRange(0),
    help="The ledger.",
)
ledger_argument = click.argument("ledger", type=click.IntRange(0), required=False)


def the_ledger(ledger: int | None, ledger_id: int | None) -> int:
    """The one that the argument or the option names."""
    if (ledger is None) == (ledger_id is None):
        raise click.UsageError("name one ledger: as an argument, or with --ledger-id")
    return ledger if ledger is not None else ledger_id or 0


def alias(group: click.Group, command: click.Command, *names: str) -> None:
    """BookKeeper's names for a command: they work, and only its own help tells."""
    words = ", ".join(names)
    command.epilog = f"In `bookkeeper shell`: {words}."
    for name in names:
        other = copy.copy(command)
        other.name, other.hidden = name, True
        group.add_command(other)


def exit_unless(is_fine: bool) -> None:
    if not is_fine:
        raise SystemExit(EXIT_NO)


def on_cluster(
    options: Mapping[str, Any],
    work: Callable[[Cluster], Awaitable[T]],
    *,
    needs_layout: bool = True,
) -> T:
    """Connects, runs `work` and disconnects. UsageError for bad settings; ClickException for what
    went wrong, also where there is no cluster (unless not `needs_layout`)."""
    import trio  # slow to import, and of no use to --help

    from joined.metadata_service import metadata_store
    from ledger.config_definitions import network_config
    from quire.tools.ledger.cluster import connected
    from runtime.config import ConfigError
    from runtime.env import real_env
    from runtime.logs import setup_logging

    setup_logging(options["log_level"])
    open_store: OpenStore = click.get_current_context().obj or metadata_store
    env = real_env()
    try:
        values = _settings(options)
        store, root = open_store(values, env)
        network = network_config(values)
    except ConfigError as error:
        raise click.UsageError(str(error)) from error

    async def run() -> T:
        async with connected(store, root, env, network) as cluster:
            if needs_layout and not await store.exists(f"{root}/LAYOUT"):
                raise click.ClickException(f"there is no BookKeeper cluster at {root}")
            return await work(cluster)

    try:
        return trio.run(functools.partial(run), strict_exception_groups=True)
    except BaseException as error:  # told apart and raised again below
        _raise(error)


def _settings(options: Mapping[str, Any]) -> dict[str, ConfigValue]:
    from joined.node_configs import NODE_CONFIGS
    from runtime.config import ConfigError, PropertiesError, load_tables

    uri, conf = options["metadata_service_uri"], options["conf"]
    source = click.get_current_context().get_parameter_source("metadata_service_uri")
    is_told = source is click.core.ParameterSource.COMMANDLINE
    values: dict[str, ConfigValue] = {}
    if conf is not None:
        try:
            (texts,) = load_tables(read_config(conf), {}, [NODE_CONFIGS]).texts
            values = dict(NODE_CONFIGS.parse(texts))
        except (ConfigError, PropertiesError) as error:
            raise click.UsageError(f"--conf {conf}: {error}") from error
    if uri is not None and (is_told or conf is None):
        values["metadataServiceUri"] = uri
    if not any(values.get(name) for name in ("metadataServiceUri", "zkServers")):
        raise click.UsageError(
            f"which cluster? --metadata-service-uri, --conf or {URI_VARIABLES[0]} tells"
        )
    return values


def _raise(error: BaseException) -> NoReturn:
    """What a command ends with. An error of ours that is not foreseen keeps its traceback."""
    from ledger.errors import LedgerError
    from metadata.store import MetadataError
    from wire.bookkeeper.ledger_metadata import MetadataFormatError

    leaves = list(_leaves(error))
    for leaf in leaves:
        if isinstance(leaf, click.ClickException | click.exceptions.Exit | SystemExit):
            raise leaf
    if any(isinstance(leaf, KeyboardInterrupt | click.Abort) for leaf in leaves):
        raise click.Abort from None
    known = (LedgerError, MetadataError, MetadataFormatError, OSError)
    if all(isinstance(leaf, known) for leaf in leaves):
        raise click.ClickException("; ".join(dict.fromkeys(map(str, leaves)))) from None
    raise error


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error
