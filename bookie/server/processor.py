"""What a bookie does with each request (BookieRequestProcessor and its *Processor classes).

Adds and whatever can be answered from memory are done in the synchronous call; what waits for the
disk (a cold read, a fence's sync) gets a task, up to a limit, beyond which ETOOMANYREQUESTS is
answered.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from bookie.reads import URGENT_FLAGS
from bookie.server.admission import OPEN_TO_ALL
from bookie.server.long_polls import LongPolls
from bookie.server.request_limits import BatchPace, ProcessorSettings, RequestCounts
from runtime.logs import kv
from wire.bookkeeper.auth import DISABLED_PLUGIN_NAME, IDENTITY_PLUGIN_NAME
from wire.bookkeeper.requests import (
    AddRequest,
    AuthRequest,
    BatchReadRequest,
    BookieInfoRequest,
    ForceLedgerRequest,
    ListEntriesRequest,
    ReadLacRequest,
    ReadRequest,
    RefusedRequest,
    Request,
    StartTlsRequest,
    WriteLacRequest,
)
from wire.bookkeeper.responses import (
    AddResponse,
    AuthResponse,
    BatchReadResponse,
    BookieInfoResponse,
    ErrorResponse,
    ForceLedgerResponse,
    ListEntriesResponse,
    ReadLacResponse,
    ReadResponse,
    StartTlsResponse,
    WriteLacResponse,
    refusal,
)
from wire.bookkeeper.status import (
    BOOKIE_INFO_FREE_SPACE,
    BOOKIE_INFO_TOTAL_SPACE,
    FLAG_DEFERRED_SYNC,
    FLAG_DO_FENCING,
    LAST_ADD_CONFIRMED_ENTRY,
    WRITE_FLAG_DEFERRED_SYNC,
    Status,
)
from wire.bookkeeper.v2 import (
    BATCH_ENTRY_HEAD_SIZE,
    BATCH_HEAD_SIZE,
    encode_read_response,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import trio

    from bookie.bookie import Bookie
    from bookie.ledger_lac import LedgerLac
    from bookie.server.admission import Entrance
    from bookie.server.connection import BookieConnection
    from runtime.timers import Timers
    from runtime.turn import Turn
    from wire.buffers import Buffers

logger = logging.getLogger(__name__)

R = TypeVar("R", bound=Request)


class Processor:
    def __init__(
        self,
        bookie: Bookie,
        turn: Turn,
        timers: Timers,
        nursery: trio.Nursery,
        disk_space: Callable[[], tuple[int, int]],
        settings: ProcessorSettings | None = None,
        entrance: Entrance = OPEN_TO_ALL,
    ) -> None:
        """`nursery` runs what waits for the disk. `disk_space()`: total and free bytes; it may
        raise OSError."""
        self.turn = turn
        self.counts = RequestCounts()
        self._bookie = bookie
        self._nursery = nursery
        self._disk_space = disk_space
        self._settings = settings if settings is not None else ProcessorSettings()
        self._tls = entrance.tls
        self.door = entrance.door
        self.held_adds = bookie.held_adds
        self.held_adds.on_relief = self._relieved
        self._waiting_for_room: list[BookieConnection] = []
        self._batch_pace = BatchPace(turn)
        #: In tasks: ordinary ones, and those of recoveries.
        self._waiting_reads = [0, 0]
        self._long_polls = LongPolls(bookie, turn, timers, self._settings.long_polls_max)
        self._handlers: dict[type, Callable[[BookieConnection, Any], None]] = {
            AddRequest: self._add,
            ReadRequest: self._read,
            BatchReadRequest: self._batch_read,
            WriteLacRequest: self._write_lac,
            ReadLacRequest: self._read_lac,
            ForceLedgerRequest: self._force,
            BookieInfoRequest: self._bookie_info,
            ListEntriesRequest: self._list_entries,
            AuthRequest: self._auth,
            StartTlsRequest: self._start_tls,
            RefusedRequest: self._refused,
        }

    def process(self, connection: BookieConnection, request: Request) -> None:
        """Answers it on `connection`, now or later, exactly once."""
        if (
            not connection.is_admitted
            and type(request) is not StartTlsRequest
            and self._answer_stranger(connection, request)
        ):
            return
        self._handlers[type(request)](connection, request)

    def _answer_stranger(self, connection: BookieConnection, request: Request) -> bool:
        """False if it is no stranger after all."""
        assert self.door is not None
        if self.door.judge(connection):
            return False
        if type(request) is AuthRequest and request.plugin_name == IDENTITY_PLUGIN_NAME:
            self._auth(connection, request)  # its id is no secret, and admits nobody
            return True
        answer = self.door.answer(connection, request)
        self.counts.refused += answer is None or answer.status is not Status.EOK
        if answer is not None:
            connection.answer(answer)
        return True

    def connection_closed(self, connection: BookieConnection) -> None:
        self._long_polls.forget(connection)
        if self.door is not None:
            self.door.left(connection)

    # -- adds ----------------------------------------------------------------------------------

    def add(
        self,
        connection: BookieConnection,
        flags: int,
        master_key: bytes,
        ledger_id: int,
        entry_id: int,
        entry: Buffers,
        answer: bytes,
    ) -> None:
        """As `process` of an AddRequest, for a PlainAdd: most requests are one, and cost a tenth
        less (of v3 a fifth) without objects for request and answer."""
        limit = self._settings.adds_in_progress_max
        if limit and self.counts.adds_in_progress >= limit:
            self.counts.refused += 1
            connection.fail_add(answer, Status.ETOOMANYREQUESTS)
            return
        self.counts.adds_in_progress += 1
        done = partial(connection.added, answer)
        self._bookie.add_entry(ledger_id, entry_id, master_key, entry, flags, done)

    def wait_for_room(self, connection: BookieConnection) -> None:
        """The bookie holds so many adds that this connection is to be read no further. It is told
        when there is room."""
        self._waiting_for_room.append(connection)

    def _relieved(self) -> None:
        # Not at once: this is in the middle of the held adds.
        self.turn.defer(self._let_go_on)

    def _let_go_on(self) -> None:
        waiting, self._waiting_for_room = self._waiting_for_room, []
        for connection in waiting:
            connection.has_room()

    def _add(self, connection: BookieConnection, request: AddRequest) -> None:
        limit = self._settings.adds_in_progress_max
        if limit and self.counts.adds_in_progress >= limit:
            self._refuse(connection, request, Status.ETOOMANYREQUESTS)
            return
        self.counts.adds_in_progress += 1
        flags = request.flags
        if request.write_flags & WRITE_FLAG_DEFERRED_SYNC:
            flags |= FLAG_DEFERRED_SYNC
        self._bookie.add_entry(
            request.ledger_id,
            request.entry_id,
            request.master_key,
            request.entry,
            flags,
            partial(
                self._added,
                connection,
                request.ledger_id,
                request.entry_id,
                request.transaction_id,
            ),
        )

    def _added(
        self,
        connection: BookieConnection,
        ledger_id: int,
        entry_id: int,
        transaction_id: int,
        status: Status,
    ) -> None:
        self.counts.adds_in_progress -= 1
        self.counts.adds += 1
        if status:
            self.counts.adds_failed += 1
        connection.answer(AddResponse(status, ledger_id, entry_id, transaction_id))

    # -- reads ---------------------------------------------------------------------------------

    def read(self, connection: BookieConnection, ledger_id: int, entry_id: int) -> None:
        """As `process` of a ReadRequest that does not fence, for protocol version 2 (see `add`)."""
        found = None
        if entry_id != LAST_ADD_CONFIRMED_ENTRY:
            found = self._bookie.read_entry_nowait(ledger_id, entry_id)
        if found is None:
            self._read(connection, ReadRequest(ledger_id, entry_id))
            return
        counts = self.counts
        counts.reads += 1
        status, entries = found
        if status:
            counts.reads_failed += 1
        entry = entries[0] if entries else None
        connection.answer_encoded(encode_read_response(status, ledger_id, entry_id, entry))

    def _read(self, connection: BookieConnection, request: ReadRequest) -> None:
        self.counts.reads += 1
        if request.previous_lac is not None:
            self._poll(connection, request)
            return
        bookie, is_fencing = self._bookie, request.flags & FLAG_DO_FENCING
        tells_lac = connection.is_v3 and not is_fencing
        lac = bookie.lacs.get(request.ledger_id) if tells_lac else None
        if (
            request.entry_id != LAST_ADD_CONFIRMED_ENTRY
            and (lac is not None or not tells_lac)
            and (not is_fencing or bookie.is_fenced(request.ledger_id, request.master_key))
        ):
            # A recovery reads entry by entry, each with a fence: only the first one waits.
            found = bookie.read_entry_nowait(request.ledger_id, request.entry_id)
            if found is not None:
                self.counts.fences += bool(is_fencing)
                self._answer_read(connection, request, found[0], found[1], lac)
                return
        is_urgent = bool(request.flags & URGENT_FLAGS)
        self._in_task(connection, request, self._read_slowly, is_urgent=is_urgent)

    async def _read_slowly(self, connection: BookieConnection, request: ReadRequest) -> None:
        bookie, ledger_id = self._bookie, request.ledger_id
        if request.flags & FLAG_DO_FENCING:
            self.counts.fences += 1
        status, entry = await bookie.read_entry(
            ledger_id, request.entry_id, flags=request.flags, master_key=request.master_key
        )
        lac = None
        if connection.is_v3 and status is Status.EOK and not request.flags & FLAG_DO_FENCING:
            _, lac = await bookie.lacs.follow(ledger_id)
        self._answer_read(connection, request, status, [entry], lac)

    def _answer_read(
        self,
        connection: BookieConnection,
        request: ReadRequest,
        status: Status,
        entries: list[memoryview],
        lac: LedgerLac | None,
    ) -> None:
        is_good = status is Status.EOK
        if not is_good:
            self.counts.reads_failed += 1
        connection.answer(
            ReadResponse(
                status,
                request.ledger_id,
                request.entry_id,
                entries[0] if is_good else None,
                lac.lac if lac is not None and is_good else None,
                transaction_id=request.transaction_id,
            )
        )

    def _batch_read(self, connection: BookieConnection, request: BatchReadRequest) -> None:
        self.counts.reads += 1
        if not request.flags & FLAG_DO_FENCING and self._batch_pace.is_free():
            found = self._bookie.read_entries_nowait(
                request.ledger_id, request.first_entry_id, *self._batch_limits(request)
            )
            if found is not None:
                self._batch_pace.answered(len(found[1]))
                self._answer_batch(connection, request, *found)
                return
        is_urgent = bool(request.flags & URGENT_FLAGS)
        self._in_task(connection, request, self._batch_read_slowly, is_urgent=is_urgent)

    def _batch_limits(self, request: BatchReadRequest) -> tuple[int, int]:
        """Entries, and bytes of them, such that the whole answer stays within both sizes."""
        size_max = self._settings.batch_read_size_max_bytes
        if request.size_max > 0:
            size_max = min(size_max, request.size_max)
        count_max = size_max // (BATCH_ENTRY_HEAD_SIZE + 32)
        if request.count_max > 0:
            count_max = min(count_max, request.count_max)
        return max(count_max, 1), size_max - BATCH_HEAD_SIZE

    async def _batch_read_slowly(
        self, connection: BookieConnection, request: BatchReadRequest
    ) -> None:
        ledger_id, entry_id = request.ledger_id, request.first_entry_id
        if request.flags & FLAG_DO_FENCING:
            status, _ = await self._bookie.read_entry(
                ledger_id, entry_id, flags=request.flags, master_key=request.master_key
            )
            if status is not Status.EOK:
                self._answer_batch(connection, request, status, [])
                return
        await self._batch_pace.wait()
        status, entries = await self._bookie.read_entries(
            ledger_id,
            entry_id,
            *self._batch_limits(request),
            is_urgent=bool(request.flags & URGENT_FLAGS),
        )
        self._answer_batch(connection, request, status, entries)

    def _answer_batch(
        self,
        connection: BookieConnection,
        request: BatchReadRequest,
        status: Status,
        entries: list[memoryview],
    ) -> None:
        if status is not Status.EOK:
            self.counts.reads_failed += 1
        # Each entry has a size in front, which counts: what goes beyond is left for the next read.
        budget = self._batch_limits(request)[1]
        for number, entry in enumerate(entries):
            budget -= BATCH_ENTRY_HEAD_SIZE + len(entry)
            if budget < 0 and number:
                del entries[number:]
                break
        connection.answer(
            BatchReadResponse(
                status,
                request.ledger_id,
                request.first_entry_id,
                list(entries),
                request.transaction_id,
            )
        )

    # -- the LAC -------------------------------------------------------------------------------

    def _poll(self, connection: BookieConnection, request: ReadRequest) -> None:
        self.counts.long_polls += 1
        lac = self._bookie.lacs.get(request.ledger_id)
        if lac is None:
            self._in_task(connection, request, self._poll_slowly)
        else:
            self._long_polls.park(connection, request, lac)

    async def _poll_slowly(self, connection: BookieConnection, request: ReadRequest) -> None:
        status, lac = await self._bookie.lacs.follow(request.ledger_id)
        if lac is None:
            self._refuse(connection, request, status)
        else:
            self._long_polls.park(connection, request, lac)

    def _write_lac(self, connection: BookieConnection, request: WriteLacRequest) -> None:
        self._in_task(connection, request, self._write_lac_slowly)

    async def _write_lac_slowly(
        self, connection: BookieConnection, request: WriteLacRequest
    ) -> None:
        status = await self._bookie.set_explicit_lac(
            request.ledger_id, request.master_key, bytes(request.packet)
        )
        connection.answer(WriteLacResponse(status, request.ledger_id, request.transaction_id))

    def _read_lac(self, connection: BookieConnection, request: ReadLacRequest) -> None:
        self._in_task(connection, request, self._read_lac_slowly)

    async def _read_lac_slowly(self, connection: BookieConnection, request: ReadLacRequest) -> None:
        status, packet = self._bookie.get_explicit_lac(request.ledger_id)
        last_entry = None
        if status is Status.EOK:
            found, entry = await self._bookie.read_entry(
                request.ledger_id, LAST_ADD_CONFIRMED_ENTRY
            )
            if found is Status.EOK:
                last_entry = entry
            elif packet is None or found is not Status.ENOENTRY:
                status = found
        connection.answer(
            ReadLacResponse(status, request.ledger_id, packet, last_entry, request.transaction_id)
        )

    # -- the rest ------------------------------------------------------------------------------

    def _force(self, connection: BookieConnection, request: ForceLedgerRequest) -> None:
        self._in_task(connection, request, self._force_slowly)

    async def _force_slowly(
        self, connection: BookieConnection, request: ForceLedgerRequest
    ) -> None:
        status = await self._bookie.force_ledger(request.ledger_id)
        connection.answer(ForceLedgerResponse(status, request.ledger_id, request.transaction_id))

    def _bookie_info(self, connection: BookieConnection, request: BookieInfoRequest) -> None:
        try:
            total, free = self._disk_space()
        except OSError as error:
            # The disk's own checks decide whether the bookie goes on; a question ends nothing.
            logger.warning("disk_space_unknown", kv(error=error))
            self._refuse(connection, request, Status.EIO)
            return
        connection.answer(
            BookieInfoResponse(
                Status.EOK,
                total if request.requested & BOOKIE_INFO_TOTAL_SPACE else None,
                free if request.requested & BOOKIE_INFO_FREE_SPACE else None,
                request.transaction_id,
            )
        )

    def _list_entries(self, connection: BookieConnection, request: ListEntriesRequest) -> None:
        self._in_task(connection, request, self._list_entries_slowly)

    async def _list_entries_slowly(
        self, connection: BookieConnection, request: ListEntriesRequest
    ) -> None:
        status, entries = await self._bookie.encoded_entries(request.ledger_id)
        if status is not Status.EOK:
            self._refuse(connection, request, status)
            return
        connection.answer(
            ListEntriesResponse(Status.EOK, request.ledger_id, entries, request.transaction_id)
        )

    def _auth(self, connection: BookieConnection, request: AuthRequest) -> None:
        """Nobody has to authenticate any more; who asks for it is told which bookie this is."""
        name, payload = DISABLED_PLUGIN_NAME, b""
        if request.plugin_name == IDENTITY_PLUGIN_NAME:
            name, payload = IDENTITY_PLUGIN_NAME, self._bookie.bookie_id.encode()
        connection.answer(AuthResponse(Status.EOK, name, payload, request.transaction_id))

    def _start_tls(self, connection: BookieConnection, request: StartTlsRequest) -> None:
        if self._tls is None or connection.is_encrypted or connection.in_flight > 1:
            # As a Java bookie without TLS answers. With other requests under way nobody could say
            # which of the answers are TLS.
            connection.answer(StartTlsResponse(Status.EBADREQ, request.transaction_id))
            return
        connection.answer(StartTlsResponse(Status.EOK, request.transaction_id))
        connection.start_tls(self._tls)

    def _refused(self, connection: BookieConnection, request: RefusedRequest) -> None:
        connection.answer(ErrorResponse(request.status, request.operation, request.transaction_id))

    def _refuse(self, connection: BookieConnection, request: Request, status: Status) -> None:
        self.counts.refused += 1
        connection.answer(refusal(request, status))

    def _in_task(
        self,
        connection: BookieConnection,
        request: R,
        work: Callable[[BookieConnection, R], Awaitable[None]],
        *,
        is_urgent: bool = False,
    ) -> None:
        """Runs `work`, which answers, in a task. What is urgent has a limit of its own: others
        that wait are no reason to refuse a recovery."""
        waiting = self._waiting_reads
        limit = self._settings.waiting_reads_max
        if waiting[is_urgent] >= limit or self._nursery.cancel_scope.cancel_called:
            self._refuse(connection, request, Status.ETOOMANYREQUESTS)
            return
        waiting[is_urgent] += 1
        self._nursery.start_soon(self._run, work, connection, request, is_urgent)

    async def _run(
        self,
        work: Callable[[BookieConnection, R], Awaitable[None]],
        connection: BookieConnection,
        request: R,
        is_urgent: bool,
    ) -> None:
        try:
            await work(connection, request)
        finally:
            self._waiting_reads[is_urgent] -= 1
