"""MapWalk: forgets deleted ledgers in the entry logs, whose maps are on disk (ledgers_map.py).

Logs that are being written have their ledgers in memory, and forget at once. For the others the
ledgers are pending, and a walk reads the maps that may have them, each once for all. A walk over
few maps is made when the ledgers are dropped; one over thousands is left to the collector's round.

Which logs a dropped ledger is forgotten in is told by a number. A walk may come long after, and a
ledger with the same id may have been made anew meanwhile: a log that was completed after the
dropping has none of the old one's bytes (its writer had forgotten them), maybe of the new one's.

Whatever is in doubt counts as alive:
- a map that cannot be read, or is not what it was, makes the log doubtful: the collector looks at
  all of its records, and it is kept until that came to the end;
- so many ledgers pending that they would take memory, or a file that cannot be opened: the log is
  looked at anew, and each of its ledgers that neither table nor index know is forgotten.

Nothing of this is on disk. The next start reads all maps, and forgets what is not known then.

Owner: the event loop's thread. Walks may overlap: to forget twice is to forget once.
"""

from __future__ import annotations

import logging
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, Protocol

import trio

from bookie.errors import CorruptionError, IndexReadError
from runtime.slices import Slices

if TYPE_CHECKING:
    from array import array
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from bookie.storage.entry_log import EntryLog
    from bookie.storage.ledgers_map import LedgersMap
    from runtime.disk import Disk

    Known = Callable[[int], bool]
    Lookup = Callable[[Sequence[int]], list[int]]

logger = logging.getLogger(__name__)

#: Ledgers in maps that are looked at before the loop gets its turn: 1 ms. What a log costs besides
#: them, in those: its file may have to be opened, and the disk to seek.
WALKED_PER_TURN = 10_000
#: Ledgers of a batch, before the loop gets its turn: 1.5 ms if all of them are to be forgotten.
PART_COUNT = 2500
LOG_UNITS = 5000
#: What it costs to see that a log needs no look.
LOOK_UNITS = 4
#: A walk that costs no more is made at once: 100 logs, or 33 of 10,000 ledgers each, 0.1 s.
AT_ONCE_UNITS = 500_000
#: Dropped ledgers that wait for a walk, some 100 bytes each. If there are more all logs are looked
#: at anew and the index is asked: seven times as much work for 300,000 of 40 logs.
PENDING_MAX = 500_000
ID_MAX = (1 << 63) - 1
#: Ledgers that the index is asked for in one turn: beside very many that were just deleted each
#: takes it 0.1 ms and more.
ASKED_PER_TURN = 25


class Logs(Protocol):
    """All entry logs (entry_logs.py), as far as a walk needs them."""

    def get(self, log_id: int) -> EntryLog | None: ...

    def all(self) -> list[EntryLog]: ...

    def release(self, log: EntryLog) -> None: ...


class Batch(NamedTuple):
    #: Of its first ledger, in the map.
    position: int
    ledger_ids: array[int]
    sizes: array[int]

    @property
    def end(self) -> int:
        """The position behind its last ledger."""
        return self.position + len(self.ledger_ids)

    def parts(self) -> Iterator[Batch]:
        """The batch in pieces. Behind each of them the loop is to have its turn."""
        for start in range(0, len(self.ledger_ids), PART_COUNT):
            end = start + PART_COUNT
            yield Batch(self.position + start, self.ledger_ids[start:end], self.sizes[start:end])

    def unknown(self, found: LedgersMap, is_known: Known) -> list[int]:
        """Where in it the ledgers are that are not known, and not forgotten."""
        return [
            i
            for i, ledger_id in enumerate(self.ledger_ids)
            if not is_known(ledger_id) and not found.is_forgotten(self.position + i)
        ]


class MapWalk:
    __slots__ = ("_disk", "_drop_number", "_high", "_is_anew", "_logs", "_low", "_pending")

    def __init__(self, logs: Logs, disk: Disk) -> None:
        self._logs = logs
        self._disk = disk
        self._drop_number = 0
        #: Dropped ledgers, with the number of the dropping; their lowest and highest id.
        self._pending: dict[int, int] = {}
        self._low, self._high = ID_MAX, -1
        #: Logs are looked at in the place of what was pending.
        self._is_anew = False

    # Logs that are complete.

    async def settle(self, log: EntryLog) -> None:
        """The log is complete, its map is on disk: from now on that is where its ledgers are, less
        those that were forgotten while it was written."""
        live, written = log.ledgers, log.map
        if live is None or written is None:
            return
        written.drop_number = self._drop_number

        def are_gone(ledger_ids: array[int]) -> list[int]:
            return [i for i, ledger_id in enumerate(ledger_ids) if ledger_id not in live]

        counted = written.count
        while len(live) < counted:
            # Once more if some were dropped meanwhile: nobody but this looks into the map for them.
            counted = len(live)
            try:
                await self._forget_where(log, written, are_gone)
            except (CorruptionError, OSError) as error:
                logger.error("ledgers map kept in memory: %s", error)
                log.map = None
                return
        log.ledgers = None

    # Dropping.

    async def drop(self, ledger_ids: Iterable[int]) -> None:
        """These are deleted, or have no entries any more: pending from now on. The logs that are
        written are the caller's, who tells them next."""
        self._drop_number += 1
        number = self._drop_number
        dropped = iter(ledger_ids)
        while some := list(islice(dropped, WALKED_PER_TURN)):
            self._pending.update(dict.fromkeys(some, number))
            self._low, self._high = min(self._low, min(some)), max(self._high, max(some))
            if len(some) == WALKED_PER_TURN:
                await trio.lowlevel.checkpoint()

    async def after_drop(self, *, at_once: bool) -> None:
        """The walk, if it is short or must be `at_once`. Else there is a bound to what waits."""
        if at_once or self._cost() <= AT_ONCE_UNITS:
            await self.work_off()
        elif len(self._pending) > PENDING_MAX:
            self._clear()
            self._is_anew = True
            self._look_anew()

    def deletions_are_done(self) -> None:
        """No ledger that was dropped counts as known any more. Until now one did, if somebody
        looked at its log."""
        if self._is_anew:
            self._is_anew = False
            self._look_anew()

    def _look_anew(self) -> None:
        for log in self._logs.all():
            if log.map is not None:
                log.map.is_looked_at = False

    def _cost(self) -> int:
        low, high = self._low, self._high
        return sum(
            LOG_UNITS + log.map.count
            for log in self._logs.all()
            if log.map is not None and log.map.first_id <= high and log.map.last_id >= low
        )

    async def work_off(self) -> None:
        """Forgets what is pending. Who calls it removes the logs that are dead then."""
        pending, low, high = self._pending, self._low, self._high
        if not pending:
            return
        number = self._drop_number
        self._clear()
        slices = Slices(WALKED_PER_TURN)
        try:
            for log in self._logs.all():
                found = log.map
                if found is None or log.ledgers is not None or found.drop_number >= number:
                    continue
                if found.first_id > high or found.last_id < low or not found.live_count:
                    continue
                if slices.due(LOG_UNITS):
                    await slices.turn()
                await self._forget_dropped(log, found, pending)
        except BaseException:
            self._pending = pending | self._pending
            self._low, self._high = min(low, self._low), max(high, self._high)
            raise

    def _clear(self) -> None:
        self._pending = {}
        self._low, self._high = ID_MAX, -1

    async def _forget_dropped(
        self, log: EntryLog, found: LedgersMap, pending: dict[int, int]
    ) -> None:
        number = found.drop_number

        def are_dropped(ledger_ids: array[int]) -> list[int]:
            return [
                i for i, each in enumerate(ledger_ids) if each in pending and pending[each] > number
            ]

        try:
            await self._forget_where(log, found, are_dropped)
        except CorruptionError as error:
            self._doubt(log, found, error)
        except OSError as error:
            self._is_not_read(log, found, error)

    # Looking at logs anew.

    async def forget_unknown(self, is_known: Known, with_entries: Lookup) -> None:
        """Of complete logs that were not looked at since they were made or read: forgets ledgers
        that are not known, if the index agrees. OSError of the index."""
        slices = Slices(WALKED_PER_TURN)
        for log in self._logs.all():
            if log.is_written and log.journal_id < 0:
                continue  # its flush counts what it has not told the index of yet
            if slices.due(LOOK_UNITS):
                await slices.turn()
            if log.ledgers is not None:
                await self._look_in_memory(log, is_known, with_entries)
            elif log.map is not None and not log.map.is_looked_at:
                await self._look(log, log.map, is_known, with_entries)

    async def _look(
        self, log: EntryLog, found: LedgersMap, is_known: Known, with_entries: Lookup
    ) -> None:
        # Before it is read: it may be wanted again meanwhile.
        found.is_looked_at = True
        is_done = False
        try:
            is_done = await self._forget_unknown(log, found, is_known, with_entries)
        except CorruptionError as error:
            self._doubt(log, found, error)
        except IndexReadError:
            raise
        except OSError as error:
            self._is_not_read(log, found, error)
        finally:
            found.is_looked_at = found.is_looked_at and is_done

    async def _forget_unknown(
        self, log: EntryLog, found: LedgersMap, is_known: Known, with_entries: Lookup
    ) -> bool:
        """Whether all that is left is known."""
        is_done = True
        for number in range(found.batch_count):
            batch = await self._read(log, found, number)
            if batch is None:
                return False
            for part in batch.parts():
                are_done = await self._forget_if_unknown(part, found, is_known, with_entries)
                is_done = is_done and are_done
                await trio.lowlevel.checkpoint()
        return is_done

    async def _forget_if_unknown(
        self, part: Batch, found: LedgersMap, is_known: Known, with_entries: Lookup
    ) -> bool:
        """Whether all that is left of it is known."""
        is_done = True
        ledger_ids = part.ledger_ids
        unknown = iter(part.unknown(found, is_known))
        while some := list(islice(unknown, ASKED_PER_TURN)):
            # Believe the table only if the index agrees.
            alive = frozenset(with_entries(sorted(ledger_ids[i] for i in some)))
            # Nothing has run since the index was asked.
            gone = [i for i in some if ledger_ids[i] not in alive and not is_known(ledger_ids[i])]
            found.forget(part.position, gone, part.sizes)
            is_done = is_done and len(gone) == len(some)
            await trio.lowlevel.checkpoint()
        return is_done

    async def _look_in_memory(self, log: EntryLog, is_known: Known, with_entries: Lookup) -> None:
        """One of which no map could be written: the disk was full."""
        ledger_ids = iter(list(log.ledgers or ()))
        while some := list(islice(ledger_ids, WALKED_PER_TURN)):
            unknown = iter(sorted(each for each in some if not is_known(each)))
            while asked := list(islice(unknown, ASKED_PER_TURN)):
                alive = frozenset(with_entries(asked))
                if log.ledgers is None:
                    return
                log.forget(each for each in asked if each not in alive and not is_known(each))
                await trio.lowlevel.checkpoint()
            await trio.lowlevel.checkpoint()

    async def unknown(self, is_known: Known, count_max: int) -> list[int]:
        """Ledgers that complete logs have bytes of and that are not known, ascending; so many, and
        the rest another time."""
        unknown: set[int] = set()
        for log in self._logs.all():
            if len(unknown) >= count_max:
                break
            if log.ledgers is not None:
                unknown.update(each for each in await self.live_ledgers(log) if not is_known(each))
            elif log.map is not None:
                await self._add_unknown(log, log.map, is_known, unknown)
        return sorted(islice(unknown, count_max))

    async def _add_unknown(
        self,
        log: EntryLog,
        found: LedgersMap,
        is_known: Known,
        unknown: set[int],
    ) -> None:
        try:
            for number in range(found.batch_count):
                batch = await self._read(log, found, number)
                if batch is None:
                    return
                for part in batch.parts():
                    unknown.update(part.ledger_ids[i] for i in part.unknown(found, is_known))
                    await trio.lowlevel.checkpoint()
        except CorruptionError as error:
            self._doubt(log, found, error)
        except OSError as error:
            self._is_not_read(log, found, error)

    # Reading maps.

    async def live_ledgers(self, log: EntryLog) -> dict[int, int]:
        """Bytes by ledger, of one log: 94 bytes of memory each. CorruptionError, and the log is
        doubtful then. OSError."""
        if log.ledgers is not None:
            return dict(log.ledgers)
        found, live = log.map, dict[int, int]()
        if found is None:
            return live
        try:
            for number in range(found.batch_count):
                batch = await self._read(log, found, number)
                if batch is None:
                    break
                for i, ledger_id in enumerate(batch.ledger_ids):
                    if not found.is_forgotten(batch.position + i):
                        live[ledger_id] = batch.sizes[i]
        except CorruptionError as error:
            self._doubt(log, found, error)
            raise
        return live

    async def _forget_where(
        self, log: EntryLog, found: LedgersMap, are_gone: Callable[[array[int]], list[int]]
    ) -> None:
        """`are_gone`: where in a batch's ledgers those are that are to be forgotten."""
        for number in range(found.batch_count):
            batch = await self._read(log, found, number)
            if batch is None:
                return
            for part in batch.parts():
                if gone := are_gone(part.ledger_ids):
                    found.forget(part.position, gone, part.sizes)
                if part.position + PART_COUNT < batch.end:
                    await trio.lowlevel.checkpoint()

    async def _read(self, log: EntryLog, found: LedgersMap, number: int) -> Batch | None:
        """A batch of the map; None if the log is gone, or what is in it is told by something else
        by now. The loop has its turn meanwhile. CorruptionError, OSError."""
        if self._logs.get(log.log_id) is not log or log.map is not found:
            return None
        log.readers += 1
        try:
            if log.file is not None:
                ledger_ids, sizes = await self._disk.run(found.read, log.file, number)
            else:
                # Not by `EntryLogs.file`: those that readers have open would be closed for it.
                ledger_ids, sizes = await self._disk.run(self._open_and_read, log, found, number)
        except (CorruptionError, OSError):
            if self._logs.get(log.log_id) is not log:
                return None
            raise
        finally:
            self._logs.release(log)
        first, _ = found.place_of(number)
        return Batch(first, ledger_ids, sizes)

    def _open_and_read(
        self, log: EntryLog, found: LedgersMap, number: int
    ) -> tuple[array[int], array[int]]:
        file = self._disk.open(log.path)
        try:
            return found.read(file, number)
        finally:
            file.close()

    def _doubt(self, log: EntryLog, found: LedgersMap, error: CorruptionError) -> None:
        """The collector looks at all of it. Nothing may be concluded from what was read."""
        logger.error("entry log kept, its ledgers map cannot be read any more: %s", error)
        if log.map is found:
            log.doubt()

    def _is_not_read(self, log: EntryLog, found: LedgersMap, error: OSError) -> None:
        logger.warning("ledgers map is read later path=%s: %s", log.path, error)
        found.is_looked_at = False
