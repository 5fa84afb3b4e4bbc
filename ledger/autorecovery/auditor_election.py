"""Which of the candidates audits (ZkLedgerAuditorManager.java, AuditorElector.java).

    underreplication/auditorelection          its data names the auditor
    underreplication/auditorelection/V_<n>    ephemeral, a candidate; the lowest number audits

Everybody watches the one in front. An auditor is one only as long as its session lives: when that
is lost its audit is cancelled, and it stands for election anew (invariant A8). For the moment
in which a session has ended and nobody knows yet there may be two; marks bear that.
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING

import trio

from ledger.autorecovery.session import RecordError, as_record_error, within_session
from metadata.store import ANY_VERSION, MetadataError, NodeExistsError, NoNodeError
from runtime.logs import kv
from wire.bookkeeper.records import encode_holder

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ledger.autorecovery.statistics import AuditorStatistics
    from metadata.store import MetadataStore

logger = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
_VOTE = re.compile(r"V_([0-9]+)")


class AuditorElection:
    """One candidate. `run` votes, and calls `audit` while this is the auditor."""

    def __init__(
        self,
        store: MetadataStore,
        root: str,
        candidate_id: str,
        statistics: AuditorStatistics,
    ) -> None:
        """`candidate_id`: of the bookie that it stands for, as BookKeeper's."""
        self._store = store
        self._path = f"{root}/underreplication/auditorelection"
        self._candidate_id = candidate_id
        self._statistics = statistics

    async def run(
        self,
        audit: Callable[[], Awaitable[None]],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Until cancelled; `started` with the first vote given. `audit` runs until it is cancelled;
        if the metadata fails it, it is called again after a moment."""
        await self._vote()
        task_status.started()
        try:
            while True:
                try:
                    with as_record_error():
                        async with within_session(self._store):
                            await self._wait_until_first(await self._vote())
                            await self._serve(audit)
                    logger.warning("auditor_session_lost", kv(candidate=self._candidate_id))
                except RecordError as error:
                    logger.warning("auditor_election_failed", kv(error=error))
                    await trio.sleep(RETRY_SECONDS)
        finally:
            with trio.move_on_after(RETRY_SECONDS, shield=True):
                await self._withdraw()

    async def _serve(self, audit: Callable[[], Awaitable[None]]) -> None:
        data = encode_holder(self._candidate_id)
        await self._store.put(self._path, data, ANY_VERSION)
        logger.info("auditor_elected", kv(auditor=self._candidate_id))
        self._statistics.is_auditor = True
        try:
            await audit()
        finally:
            self._statistics.is_auditor = False

    async def _vote(self) -> str:
        """The path of this session's vote; one that was given before the reply was lost counts."""
        for name in await self._votes():
            path = f"{self._path}/{name}"
            if await self._store.owns(path):
                return path
        self._statistics.election_attempts += 1
        data = encode_holder(self._candidate_id)
        while True:
            try:
                return await self._store.create(
                    f"{self._path}/V_", data, ephemeral=True, sequence=True
                )
            except NoNodeError:
                await self._make_parent()

    async def _make_parent(self) -> None:
        try:
            await self._store.create(self._path, b"", make_parents=True)
        except NodeExistsError:
            return

    async def _votes(self) -> list[str]:
        """By number, the lowest first."""
        try:
            names = await self._store.children(self._path)
        except NoNodeError:
            return []
        matches = [match for name in names if (match := _VOTE.fullmatch(name))]
        return [match[0] for match in sorted(matches, key=lambda match: int(match[1]))]

    async def _wait_until_first(self, vote: str) -> None:
        name = vote.rpartition("/")[2]
        while True:
            votes = await self._votes()
            if name not in votes:
                raise MetadataError(vote, "somebody has deleted this vote")
            position = votes.index(name)
            if position == 0:
                return
            in_front = f"{self._path}/{votes[position - 1]}"
            watch = self._store.watch(in_front)
            try:
                # It may have gone before it was watched.
                if await self._store.exists(in_front):
                    await watch.changed()
            finally:
                watch.close()

    async def _withdraw(self) -> None:
        """So that the next one need not wait for the session's end."""
        try:
            for name in await self._votes():
                path = f"{self._path}/{name}"
                if await self._store.owns(path):
                    await self._store.delete(path)
        except MetadataError as error:
            logger.info("vote_not_withdrawn", kv(error=error))
