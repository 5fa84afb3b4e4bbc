"""Running one role as a process: signals, the «ready» line, the exit code.

Exit codes: 0 after a clean stop (SIGINT, SIGTERM or SIGHUP), 1 after a fatal error (the log says
which), 2 for a wrong setting (stderr says which). A second signal ends the process at once; not one
that has a parent, which sends it a SIGTERM when it stops, as whoever stops both may have done.
"""

from __future__ import annotations

import gc
import logging
import os
from typing import TYPE_CHECKING, NoReturn, Protocol

import click
import trio

from quire import python_build
from quire.stop_signals import end_at_next, taken_signals
from runtime.config import ConfigError, PropertiesError
from runtime.descriptors import raise_limit
from runtime.logs import kv
from runtime.loop_watch import watch_of_run
from runtime.processes import die_with_parent, wait_for_end_of_input
from runtime.young_objects import YoungObjects

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from quire.stop_signals import StopSignals

logger = logging.getLogger("quire")

EXIT_FATAL = 1
EXIT_USAGE = 2

#: When the garbage collector looks, as `gc.set_threshold` takes it: at the new objects each time
#: there are so many more, which takes half a millisecond; each second time at those since the last
#: such time, too; at everything after a million of those, which are as many as YoungObjects asks
#: for in 200 million steps of tasks. With ten times as many new objects one large request had tens
#: of thousands of them looked through within one of its turns: 5 to 40 ms.
GC_THRESHOLDS = (5_000, 0, 1_000_000)


class Role(Protocol):
    """Runs until cancelled; `started` with the address it serves at once it is ready."""

    def __call__(self, *, task_status: trio.TaskStatus[tuple[str, int]]) -> Awaitable[None]: ...


def run_role(role: Role, *, parent_pid: int | None = None) -> None:
    """Runs a role until a signal; returns after a clean stop, exits with 1 or 2 otherwise. With a
    parent it ends, too, when that does (runtime/processes.py)."""
    if parent_pid is not None:
        die_with_parent(parent_pid)
    raise_limit()
    try:
        trio.run(_serve, role, parent_pid is not None, strict_exception_groups=True)
    except Exception as error:  # the process ends here, with a code and a reason
        _exit_with(error)
    logger.info("stopped")


async def _serve(role: Role, has_parent: bool) -> None:
    # The parent's SIGTERM beside somebody else's may come when this process is about to end, and
    # is not to make that another end.
    with taken_signals(keep=has_parent) as signals:
        async with trio.open_nursery() as nursery:
            stop = nursery.cancel_scope.cancel
            nursery.start_soon(_stop_on_signal, signals, stop, has_parent)
            if has_parent:
                nursery.start_soon(_stop_at_end_of_input, stop)
            host, port = await nursery.start(_run_to_end, role, stop)
            _tune_garbage_collector()
            watch = watch_of_run()
            watch.leave_out()  # a long turn, but nobody was told yet that this is ready
            await trio.lowlevel.checkpoint()
            watch.begin_serving()
            logger.info("ready", kv(host=host, port=port, pid=os.getpid()))
            click.echo(f"ready listen={host}:{port}")
            if not python_build.of_this_python():
                logger.warning("slow_python", kv(built_without=python_build.OPTIMISED))


def _tune_garbage_collector() -> None:
    """Called once all is set up, and only in a process of our own.

    A request leaves no cycles behind, but allocates enough to have the collector look through
    everything that was ever made, again and again: what is there now is taken out of its sight,
    and it looks less often.

    That is not looked through before: it took a fifteenth of a start to find what keeps 0.4 MB from
    being used again, most of it the classes that `dataclass` made anew with slots."""
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    trio.lowlevel.add_instrument(YoungObjects())


async def _run_to_end(
    role: Role, stop: Callable[[], None], *, task_status: trio.TaskStatus[tuple[str, int]]
) -> None:
    await role(task_status=task_status)
    stop()  # the watch for signals must not outlive the role


async def _stop_on_signal(signals: StopSignals, stop: Callable[[], None], has_parent: bool) -> None:
    first = await signals.wait()
    logger.info("stopping", kv(signal=first.name))
    if not has_parent:
        end_at_next()
    stop()


async def _stop_at_end_of_input(stop: Callable[[], None]) -> None:
    await wait_for_end_of_input()
    logger.info("stopping", kv(reason="the parent ended"))
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
