"""Garbage collection, compaction and scrub by hand, on the directories of a bookie that does not
run. What takes more than two seconds shows its progress on a terminal."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import trio

from quire.tools.bookie.offline import with_bookie
from quire.tools.output import progress

if TYPE_CHECKING:
    from bookie.bookie import Bookie
    from quire.tools.bookie.target import Target
    from quire.tools.output import Step

POLL_SECONDS = 0.2


def collect(target: Target, *, minor: bool, major: bool) -> dict[str, Any]:
    """A GcReport. Ledgers that are missing from the metadata are looked at twice, so there are two
    rounds at least: the second one's figures, and all the ledgers that went."""

    async def work(bookie: Bookie) -> dict[str, Any]:
        with progress("collecting garbage", None) as step:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_tell, bookie, step)
                await bookie.collect_garbage()
                report = await bookie.collect_garbage(force_minor=minor, force_major=major)
                nursery.cancel_scope.cancel()
        # The collector takes its second look as soon as it may, which can be between the two.
        done = bookie.gc.statistics
        report.deleted_ledgers, report.failed_deletes = done.deleted_ledgers, done.failed_deletes
        return dataclasses.asdict(report)

    return with_bookie(target, work)


async def _tell(bookie: Bookie, step: Step) -> None:
    """Tells the progress bar how many bytes were copied by compactions."""
    told = 0
    while True:
        await trio.sleep(POLL_SECONDS)
        copied = bookie.gc.statistics.compacted_bytes
        step(copied - told)
        told = copied


def compact_index(target: Target) -> dict[str, Any]:
    async def work(bookie: Bookie) -> dict[str, Any]:
        await bookie.compact_entry_locations()
        return {"entryLocationCompactionCounter": bookie.gc.statistics.location_compactions}

    return with_bookie(target, work)


def scrub(target: Target) -> dict[str, Any]:
    """The ScrubStatus of a whole pass."""

    async def work(bookie: Bookie) -> dict[str, Any]:
        scrubber = bookie.scrubber
        with progress("scrub", scrubber.total_bytes()) as step:
            status = await scrubber.scrub(step)
        return dataclasses.asdict(status)

    return with_bookie(target, work)


def check_index(target: Target) -> dict[str, Any]:
    """What the local consistency check found; `passed` says whether nothing."""

    async def work(bookie: Bookie) -> dict[str, Any]:
        with progress("checking entries", None, is_bytes=False) as step:
            report = await bookie.scrubber.check_index(step)
        found = dataclasses.asdict(report)
        return {"passed": not report.damaged, **{n: _plain(v) for n, v in found.items()}}

    return with_bookie(target, work)


def _plain(value: object) -> object:
    return value if isinstance(value, int | float | str | None) else str(value)
