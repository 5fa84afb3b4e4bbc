"""Who works at the pieces of a job: Spark's executors, or this process.

    with runner("local[4]", "audit") as run:
        for piece, result in run(check_piece, pieces): ...

A piece is picklable and small; `work` is a function of a module, so that an executor finds it by
its name: these packages have to be installed there. Pieces come back in waves, so that progress is
told and what is done can be written down while the rest goes on.
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Run = Callable[[Callable[[Any], Any], Sequence[Any]], Iterator[tuple[Any, Any]]]

P = TypeVar("P")
R = TypeVar("R")

#: Pieces of a wave, for each task that may run at once: more hide that pieces differ in length.
WAVE_PER_CORE = 4


@contextmanager
def runner(master: str | None, name: str) -> Iterator[Run]:
    """`master`: Spark's, as `local[4]` or `spark://host:7077`; None: this process, one piece after
    the other. ClickException without PySpark."""
    if master is None:
        yield _in_this_process
        return
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise click.ClickException(
            f"--master needs PySpark, which is in the extra `spark`: {error}"
        ) from None
    if master.startswith("local"):
        # Else workers of this machine are the first python3 there is, with other packages.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    session = SparkSession.builder.master(master).appName(f"quire-spark {name}").getOrCreate()
    try:
        yield _by_spark(session)
    finally:
        session.stop()


def _in_this_process(work: Callable[[P], R], pieces: Sequence[P]) -> Iterator[tuple[P, R]]:
    for piece in pieces:
        yield piece, work(piece)


def _by_spark(session: Any) -> Run:  # noqa: ANN401  # untyped
    context = session.sparkContext

    def run(work: Callable[[P], R], pieces: Sequence[P]) -> Iterator[tuple[P, R]]:
        size = max(WAVE_PER_CORE * context.defaultParallelism, 1)
        for start in range(0, len(pieces), size):
            wave = pieces[start : start + size]
            # A partition each: a piece is what a task takes.
            results = context.parallelize(wave, len(wave)).map(work).collect()
            yield from zip(wave, results, strict=True)

    return run
