"""The command line: `quire standalone`.

A command parses its options, hands them to the composition that runs the role, and owns what is
the process's: logging, signals, the «ready» line, the exit code.

Exit codes: 0 after a clean stop (SIGINT or SIGTERM), 1 after a fatal error (the log says which),
2 for a wrong option or setting (stderr says which). A second signal ends the process at once.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Protocol

import click
import trio

from quire.options import StandaloneOptions
from runtime.config import ConfigError, PropertiesError
from runtime.logs import kv, parse_levels, setup_logging

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

logger = logging.getLogger("quire")

EXIT_FATAL = 1
EXIT_USAGE = 2

#: Allocations minus deallocations between two looks of the garbage collector at the young ones.
GC_THRESHOLD = 50_000


class Address(click.ParamType[tuple[str, int]]):
    """HOST:PORT, where an IPv6 address stands in brackets."""

    name = "HOST:PORT"

    def convert(
        self,
        value: str | tuple[str, int],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> tuple[str, int]:
        if isinstance(value, tuple):
            return value
        host, colon, port = value.rpartition(":")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host:
            self.fail(f"{value!r}: write an IPv6 address in brackets, as [::1]:9092", param, ctx)
        if not colon or not host or not port.isascii() or not port.isdigit():
            self.fail(f"{value!r} is no HOST:PORT", param, ctx)
        if int(port) > 65535:
            self.fail(f"{value!r}: a port is at most 65535", param, ctx)
        return host, int(port)


def _parse_settings(
    ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> dict[str, str]:
    settings = {}
    for value in values:
        key, equals, text = value.partition("=")
        if not equals or not key.strip():
            raise click.BadParameter(f"{value!r} is no KEY=VALUE", ctx, param)
        settings[key.strip()] = text
    return settings


def _check_levels(ctx: click.Context, param: click.Parameter, value: str) -> str:
    try:
        parse_levels(value)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from error
    return value


@click.group()
@click.version_option(package_name="quire", prog_name="quire", message="%(prog)s %(version)s")
def main() -> None:
    """A Kafka-protocol log server on Apache BookKeeper ledgers."""


@main.command()
@click.option(
    "--listen",
    type=Address(),
    default="127.0.0.1:9092",
    show_default=True,
    help="Where Kafka clients connect.",
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
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    callback=_parse_settings,
    help="One setting; wins over the file. May be repeated.",
)
@click.option("--metrics", type=Address(), help="Serve Prometheus metrics there.")
@click.option(
    "--log-level",
    default="info",
    show_default=True,
    metavar="LEVEL[,LOGGER=LEVEL]",
    callback=_check_levels,
    help="debug, info, warning or error.",
)
def standalone(
    listen: tuple[str, int],
    data_dir: str,
    config_path: str | None,
    settings: dict[str, str],
    metrics: tuple[str, int] | None,
    log_level: str,
) -> None:
    """Runs broker, bookie and metadata in one process."""
    from quire.standalone import run  # its imports are of no use to --help and --version

    setup_logging(log_level)
    options = StandaloneOptions(
        listen=listen,
        data_dir=data_dir,
        properties=_read_config(config_path),
        overrides=settings,
        metrics=metrics,
    )
    run_role(partial(run, options))


def _read_config(path: str | None) -> str:
    if path is None:
        return ""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"--config {path}: {error}") from error


class Role(Protocol):
    """Runs until cancelled; `started` with the address it serves at once it is ready."""

    def __call__(self, *, task_status: trio.TaskStatus[tuple[str, int]]) -> Awaitable[None]: ...


def run_role(role: Role) -> None:
    """Runs a role until a signal; returns after a clean stop, exits with 1 or 2 otherwise."""
    try:
        trio.run(_serve, role, strict_exception_groups=True)
    except Exception as error:  # the process ends here, with a code and a reason
        _exit_with(error)
    logger.info("stopped")


async def _serve(role: Role) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            stop = nursery.cancel_scope.cancel
            nursery.start_soon(_stop_on_signal, aiter(signals), stop)
            host, port = await nursery.start(_run_to_end, role, stop)
            _tune_garbage_collector()
            logger.info("ready", kv(host=host, port=port, pid=os.getpid()))
            click.echo(f"ready listen={host}:{port}")


def _tune_garbage_collector() -> None:
    """Called once all is set up, and only in a process of our own.

    A request leaves no cycles behind, but allocates enough to have the collector look through
    everything that was ever made, again and again: what is there now is taken out of its sight,
    and it looks less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, 20, 50)


async def _run_to_end(
    role: Role, stop: Callable[[], None], *, task_status: trio.TaskStatus[tuple[str, int]]
) -> None:
    await role(task_status=task_status)
    stop()  # the watch for signals must not outlive the role


async def _stop_on_signal(signals: AsyncIterator[int], stop: Callable[[], None]) -> None:
    number = await anext(signals)
    logger.info("stopping", kv(signal=signal.Signals(number).name))
    # The receiver ends with the clean stop; until then a second signal has its default effect.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    stop()


def _exit_with(error: Exception) -> NoReturn:
    """Says what ended the role. A wrong setting or a refusal of the operating system explains
    itself in a line; anything else is ours, with its traceback."""
    leaves = _leaves(error)
    if all(isinstance(leaf, ConfigError | PropertiesError) for leaf in leaves):
        for leaf in leaves:
            click.echo(f"Error: {leaf}", err=True)
        raise SystemExit(EXIT_USAGE)
    if all(isinstance(leaf, OSError) for leaf in leaves):
        for leaf in leaves:
            logger.error("fatal", kv(error=leaf))
    else:
        logger.error("fatal", exc_info=error)
    raise SystemExit(EXIT_FATAL)


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]


if __name__ == "__main__":
    main()
