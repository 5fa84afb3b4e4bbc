"""What a server's pages say of the compaction of its partitions, and a pass by hand.

    GET  /api/v1/quire/compaction/<topic>          each partition of it that is held here
    POST /api/v1/quire/compaction/<topic>          has them compacted, whatever their ratio is
    GET and POST /api/v1/quire/compaction/<topic>-<n>    the same of one partition

404: nothing of it is held here. 409, of a POST: it is not to be compacted, or no cleaner runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.log.compact.cleaner import LogCleaner
from runtime.http import HttpError, HttpResponse, json_list_response
from runtime.slices import Slices

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.log.compact.progress import CleaningState, Progress
    from broker.log.manager import LogManager
    from broker.log.partition import PartitionLog
    from runtime.http import HttpRequest

#: Partitions that a request has compacted: about 1 ms.
ASKED_PER_TURN = 400


class CompactionPages:
    def __init__(self, logs: LogManager, cleaner: LogCleaner | None) -> None:
        """`cleaner` None: log.cleaner.enable is false."""
        self._logs = logs
        self._cleaner = cleaner

    async def respond(self, request: HttpRequest, name: str) -> HttpResponse:
        """`name`: of a topic, or of a partition. HttpError."""
        found = self._find(name)
        if request.method == "POST":
            await self._ask(name, found)
        elif request.method not in ("GET", "HEAD"):
            raise HttpError(405, "GET, HEAD or POST")
        return json_list_response(self.describe(log) for log in found)

    def _find(self, name: str) -> list[PartitionLog]:
        """A topic may have a name that ends as a partition's does: then the topic is meant."""
        if found := self._logs.of_topic(name):
            return found
        log = self._logs.named(name)
        if log is None:
            raise HttpError(404, f"{name[:200]} is not held here")
        return [log]

    async def _ask(self, name: str, found: Sequence[PartitionLog]) -> None:
        cleaner = self._cleaner
        if cleaner is None:
            raise HttpError(409, "nothing is compacted here: log.cleaner.enable is false")
        slices, count = Slices(ASKED_PER_TURN), 0
        for log in found:
            if slices.due():
                await slices.turn()
            if cleaner.is_candidate(log):
                cleaner.ask(log)
                count += 1
        if not count:
            raise HttpError(
                409, f"{name[:200]} is not to be compacted: see cleanup.policy, or it is offline"
            )

    def describe(self, log: PartitionLog) -> dict[str, object]:
        """Of one partition: what there is to do, what is being done, what was done last."""
        state = self._cleaner.state_of(log) if self._cleaner is not None else None
        chain = log.chain
        facts: dict[str, object] = {
            "partition": log.name,
            "is_compacted": LogCleaner.is_candidate(log),
            "cleaned_to": chain.cleaned_to,
            "log_start_offset": chain.log_start_offset,
            "high_watermark": log.high_watermark,
            "ledgers": len(chain.ledgers),
            "size_bytes": log.size_bytes,
            "horizon_ledgers": sum(info.min_horizon_ms >= 0 for info in chain.ledgers),
        }
        return facts if state is None else facts | _of_state(state)


def _of_state(state: CleaningState) -> dict[str, object]:
    plan = state.plan
    running = state.running
    return {
        "is_asked": state.is_asked,
        "is_running": running is not None,
        "running": None if running is None else _of_pass(running),
        "dirty_bytes": 0 if plan is None else plan.dirty_bytes,
        "dirty_ratio": 0.0 if plan is None else round(plan.ratio, 4),
        "due": None if plan is None or plan.due is None else plan.due.value,
        "blocked_by": None if plan is None or plan.blocked_by is None else plan.blocked_by.value,
        "passes": state.passes,
        "last_start_ms": state.last_start_ms,
        "last_end_ms": state.last_end_ms,
        "last": None if state.last is None else _of_pass(state.last),
        "is_uncleanable": state.is_uncleanable,
        "last_error": state.last_error or None,
        "retry_ms": state.retry_ms,
    }


def _of_pass(progress: Progress) -> dict[str, object]:
    return {
        "phase": progress.phase.value,
        "done_bytes": progress.done_bytes,
        "total_bytes": progress.total_bytes,
        "keys": progress.keys,
        "keys_max": progress.keys_max,
        "groups_written": progress.groups_written,
        "bytes_before": progress.bytes_before,
        "bytes_after": progress.bytes_after,
        "records_dropped": progress.records_dropped,
    }
