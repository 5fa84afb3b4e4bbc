"""Auto-recovery's part of the metadata: which ledgers miss copies, who repairs, who audits.

    underreplication/ledgers/hhhh/.../urL<id>    a ledger with missing copies
    underreplication/locks/urL<id>               who repairs it now
    underreplication/auditorelection/V_<n>       candidates; the lowest is the auditor
    underreplication/disable                     is there: nothing is repaired
    underreplication/lostBookieRecoveryDelay     seconds

Java's auditor and workers go by the same nodes (ZkLedgerUnderreplicationManager.java,
ZkLedgerAuditorManager.java; wire/bookkeeper/records.py has their bytes).
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from metadata.store import (
    ANY_VERSION,
    BadVersionError,
    MetadataUnknownOutcomeError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
)
from wire.bookkeeper.records import (
    UNDERREPLICATION_LAYOUT,
    UnderreplicatedLedger,
    encode_check_time,
    encode_holder,
    encode_recovery_delay,
    encode_underreplicated,
    parse_check_time,
    parse_holder,
    parse_recovery_delay,
    parse_underreplicated,
    parse_underreplicated_name,
    underreplicated_name,
    underreplicated_path,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Collection

    from metadata.store import MetadataStore, Watch

#: The auditor's checks, and the nodes that tell when each was last done.
CHECK_TIMES = {
    "checkallledgerscheck": "checkallledgersctime",
    "placementpolicycheck": "placementpolicycheckctime",
    "replicascheck": "replicascheckctime",
}
_VOTE = re.compile(r"V_([0-9]+)")


class Lock(NamedTuple):
    ledger_id: int
    #: None if the lock does not say.
    holder: str | None


class Task(NamedTuple):
    """A mark as it was read; a ledger that is marked again has another version."""

    marked: UnderreplicatedLedger
    version: int


class UnderReplication:
    """Questions and changes; keeps nothing. MetadataError; MetadataFormatError for what is no
    record of BookKeeper's."""

    def __init__(self, store: MetadataStore, root: str = "/ledgers") -> None:
        self._store = store
        self._base = f"{root}/underreplication"

    async def ensure_layout(self) -> None:
        """Makes the fixed part where it is missing."""
        for name, data in (("LAYOUT", UNDERREPLICATION_LAYOUT), ("ledgers", b""), ("locks", b"")):
            await self._ensure(f"{self._base}/{name}", data)

    async def _ensure(self, path: str, data: bytes) -> bool:
        """Whether it was missing."""
        try:
            await self._store.create(path, data, make_parents=True)
        except NodeExistsError:
            return False
        return True

    # -- ledgers ---------------------------------------------------------------------------------

    async def ledger_ids(self) -> AsyncGenerator[int, None]:
        """All that are marked, ascending, as the tree is walked."""
        pending = [f"{self._base}/ledgers"]
        while pending:
            path = pending.pop()
            names = sorted(await self._children(path), reverse=True)
            for name in reversed(names):
                if name.startswith("urL"):
                    yield parse_underreplicated_name(name)
            pending += [f"{path}/{name}" for name in names if not name.startswith("urL")]

    async def ledger(self, ledger_id: int) -> UnderreplicatedLedger | None:
        """What is missing of it; None if it is not marked."""
        task = await self.task(ledger_id)
        return None if task is None else task.marked

    async def task(self, ledger_id: int) -> Task | None:
        """As `ledger`, with the version that `finish` needs."""
        (node,) = await self._store.get_many([self._task_path(ledger_id)])
        return None if node is None else Task(parse_underreplicated(node.data), node.version)

    def _task_path(self, ledger_id: int) -> str:
        return f"{self._base}/ledgers/{underreplicated_path(ledger_id)}"

    async def mark(
        self, ledger_id: int, missing: Collection[str], time_ms: int, *, again: bool = False
    ) -> bool:
        """Says that these bookies' copies are missing; whether that was news. Nothing is written
        if it was not, so that two auditors do no harm; with `again` the mark gets a new version
        all the same: a worker that has looked at these bookies already is to look once more."""
        path = self._task_path(ledger_id)
        while True:
            with suppress(NodeExistsError, NoNodeError, MetadataUnknownOutcomeError):
                data = encode_underreplicated(
                    UnderreplicatedLedger(tuple(sorted(missing)), time_ms)
                )
                await self._store.create(path, data, make_parents=True)
                return True
            # NoNodeError: a worker took an empty directory away while ours was made in it.
            task = await self.task(ledger_id)
            if task is None:
                continue
            known = task.marked.replicas
            is_known = set(missing) <= set(known)
            if is_known and not again:
                return False
            more = tuple(bookie for bookie in sorted(missing) if bookie not in known)
            since_ms = task.marked.ctime_ms if is_known else time_ms
            data = encode_underreplicated(UnderreplicatedLedger((*known, *more), since_ms))
            with suppress(BadVersionError, NoNodeError, MetadataUnknownOutcomeError):
                await self._store.put(path, data, task.version)
                return not is_known

    async def finish(self, ledger_id: int, version: int) -> bool:
        """Takes the mark away; False if the ledger was marked again since it had that version."""
        path = self._task_path(ledger_id)
        try:
            await self._store.delete(path, version)
        except NoNodeError:
            return True
        except BadVersionError:
            return False
        for _ in range(4):
            path = path.rpartition("/")[0]
            try:
                await self._store.delete(path)
            except (NotEmptyError, NoNodeError, BadVersionError):
                break
        return True

    def watch_tasks(self) -> Watch:
        """Fires for many of the marks made, not for all: the tree is deep. To be closed."""
        return self._store.watch_children(f"{self._base}/ledgers")

    # -- locks -----------------------------------------------------------------------------------

    async def lock(self, ledger_id: int, holder: str) -> bool:
        """Takes the ledger's lock until `unlock` or this session's end, or has it already; False
        if it is another session's."""
        path = f"{self._base}/locks/{underreplicated_name(ledger_id)}"
        try:
            await self._store.create(path, encode_holder(holder), ephemeral=True, make_parents=True)
        except (NodeExistsError, MetadataUnknownOutcomeError):
            return await self._store.owns(path)
        return True

    async def unlock(self, ledger_id: int) -> None:
        """Not if it is another session's by now."""
        path = f"{self._base}/locks/{underreplicated_name(ledger_id)}"
        if await self._store.owns(path):
            with suppress(NoNodeError):
                await self._store.delete(path)

    async def locks(self) -> list[Lock]:
        names = sorted(n for n in await self._children(f"{self._base}/locks") if n[:3] == "urL")
        return [
            Lock(parse_underreplicated_name(name), await self._holder(f"{self._base}/locks/{name}"))
            for name in names
        ]

    async def lock_holder(self, ledger_id: int) -> str | None:
        return await self._holder(f"{self._base}/locks/{underreplicated_name(ledger_id)}")

    async def _holder(self, path: str) -> str | None:
        (node,) = await self._store.get_many([path])
        return None if node is None else parse_holder(node.data)

    async def _children(self, path: str) -> list[str]:
        try:
            return await self._store.children(path)
        except NoNodeError:
            return []

    # -- the auditor -----------------------------------------------------------------------------

    async def auditor(self) -> str | None:
        """The bookie id of the auditor; None if there is no candidate."""
        path = f"{self._base}/auditorelection"
        votes = [match for name in await self._children(path) if (match := _VOTE.fullmatch(name))]
        for vote in sorted(votes, key=lambda match: int(match[1])):
            holder = await self._holder(f"{path}/{vote[0]}")
            if holder is not None:
                return holder
        return None

    async def is_enabled(self) -> bool:
        return not await self._store.exists(f"{self._base}/disable")

    def watch_disabled(self) -> Watch:
        return self._store.watch(f"{self._base}/disable")

    async def wait_enabled(self) -> None:
        watch = self.watch_disabled()
        try:
            while not await self.is_enabled():
                await watch.changed()
        finally:
            watch.close()

    async def enable(self) -> bool:
        """False if it was enabled."""
        try:
            await self._store.delete(f"{self._base}/disable")
        except NoNodeError:
            return False
        return True

    async def disable(self) -> bool:
        """False if it was disabled. Repairs that are under way are finished."""
        await self.ensure_layout()
        return await self._ensure(f"{self._base}/disable", b"")

    async def recovery_delay_s(self) -> int | None:
        """How long a lost bookie is waited for; None if it was never set: then as the auditor's
        configuration says."""
        (node,) = await self._store.get_many([f"{self._base}/lostBookieRecoveryDelay"])
        return None if node is None else parse_recovery_delay(node.data)

    async def ensure_recovery_delay_s(self, delay_s: int) -> int:
        """What is set; `delay_s` is written if nothing is."""
        await self.ensure_layout()
        await self._ensure(f"{self._base}/lostBookieRecoveryDelay", encode_recovery_delay(delay_s))
        found = await self.recovery_delay_s()
        return delay_s if found is None else found

    def watch_recovery_delay(self) -> Watch:
        return self._store.watch(f"{self._base}/lostBookieRecoveryDelay")

    async def set_recovery_delay_s(self, delay_s: int) -> None:
        """The auditor sees every write, also of the same number, and audits."""
        await self.ensure_layout()
        await self._write("lostBookieRecoveryDelay", encode_recovery_delay(delay_s))

    async def check_time_ms(self, check: str) -> int | None:
        """When the check, one of CHECK_TIMES, was last done; None: never."""
        (node,) = await self._store.get_many([f"{self._base}/{CHECK_TIMES[check]}"])
        return None if node is None else parse_check_time(node.data)

    async def set_check_time_ms(self, check: str, time_ms: int) -> None:
        """When the check, one of CHECK_TIMES, was last done."""
        await self.ensure_layout()
        await self._write(CHECK_TIMES[check], encode_check_time(time_ms))

    async def _write(self, name: str, data: bytes) -> None:
        path = f"{self._base}/{name}"
        with suppress(NodeExistsError):
            await self._store.create(path, data)
            return
        await self._store.put(path, data, ANY_VERSION)
