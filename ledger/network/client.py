"""NetworkBookieClient: `ledger.bookie_client.BookieClient` over sockets.

A channel per bookie and protocol version, made when it is first needed: v2 for adds and reads (half
the work of v3), v3 for what only that can say. The frame of an add is made once for all the bookies
that the entry is sent to.

After this process was suspended (SIGSTOP, a paused machine) adds look overdue although their
answers wait in the sockets. No add is timed out right after such a gap of the clock, so that the
answers are read first; otherwise one pause would replace healthy bookies.

What is kept for a bookie that hangs is bounded: a connection on which nothing came between two
looks, and `unsent_bytes_max` wait to be sent, is closed.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import trio

from ledger.bookie_client import FLAG_DEFERRED_SYNC, DiskSpace, LacAnswer, LacRecord
from ledger.bookie_watcher import Place
from ledger.network.channel import BookieChannel
from ledger.network.config import NetworkConfig
from ledger.network.v3_channel import V3Channel
from runtime.receive import ReceiveChunks
from runtime.renewed_tls import RenewedTls
from runtime.timers import Timers
from runtime.tls import Tls
from wire.bookkeeper import v2
from wire.bookkeeper.entry_set import decode_entry_set
from wire.bookkeeper.errors import WireError
from wire.bookkeeper.requests import (
    AddRequest,
    BookieInfoRequest,
    ListEntriesRequest,
    ReadLacRequest,
    ReadRequest,
    WriteLacRequest,
)
from wire.bookkeeper.responses import (
    BookieInfoResponse,
    ErrorResponse,
    ListEntriesResponse,
    ReadLacResponse,
    ReadResponse,
    WriteLacResponse,
)
from wire.bookkeeper.status import (
    FLAG_DO_FENCING,
    LAST_ADD_CONFIRMED_ENTRY,
    WRITE_FLAG_DEFERRED_SYNC,
    Status,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ledger.bookie_client import AddDone, BookieId
    from ledger.bookie_watcher import BookieWatcher
    from ledger.network.connection import BookieConnection
    from runtime.env import Env
    from wire.bookkeeper.entry_set import EntrySet
    from wire.bookkeeper.requests import Request
    from wire.bookkeeper.responses import Response
    from wire.buffers import Buffer, Buffers

#: Frames up to this size are one buffer; of larger ones only the heads are joined.
JOIN_SIZE_MAX_BYTES = 4096
HEAD_SIZE_MAX_BYTES = 64
#: How exact the time-outs of adds are: a share of the time-out.
TIMEOUT_LOOKS = 10


class NetworkBookieClient:
    """Start its `run`: without it nothing connects, and every answer is EIO."""

    def __init__(
        self,
        env: Env,
        resolve: Callable[[BookieId], Place | tuple[str, int] | None],
        config: NetworkConfig | None = None,
    ) -> None:
        """`resolve(bookie)`: where it is now, as BookieWatcher.resolve says; host and port alone
        are taken for certain. None: nobody knows."""
        self._env = env
        self._address = resolve
        self._config = config if config is not None else NetworkConfig()
        self._chunks = ReceiveChunks()
        self._channels: dict[BookieId, BookieChannel] = {}
        self._v3_channels: dict[BookieId, V3Channel] = {}
        self._nursery: trio.Nursery | None = None
        self._timers = Timers()
        context = self._config.tls
        self._tls = None if context is None else Tls(context, env.turn, self._timers)
        self._now = env.clock.monotonic()
        self._last_entry: Buffers | None = None
        self._last_frame: list[Buffer] = []

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled; then all connections are closed."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                await nursery.start(self._timers.run)
                if isinstance(self._config.tls, RenewedTls):
                    nursery.start_soon(self._config.tls.run)
                task_status.started()
                await self._watch_time()
        finally:
            self._nursery = None
            for channel in self._all_channels():
                channel.close()

    @classmethod
    def following(
        cls, env: Env, watcher: BookieWatcher, config: NetworkConfig | None = None
    ) -> NetworkBookieClient:
        """With the addresses that the watcher knows at the time."""
        made = cls(env, watcher.resolve, config)
        watcher.on_addresses(made.addresses_changed)
        return made

    def _resolve(self, bookie: BookieId) -> Place | None:
        found = self._address(bookie)
        return None if found is None else Place(*found)

    def addresses_changed(self) -> None:
        """Connections to what is not their bookie's address any more are closed."""
        for channel in self._all_channels():
            channel.check_place()

    @property
    def wrong_bookie_count(self) -> int:
        """Connections that another bookie answered, or one that might be another."""
        return sum(channel.wrong_bookie_count for channel in self._all_channels())

    def _all_channels(self) -> list[BookieConnection]:
        return [*self._channels.values(), *self._v3_channels.values()]

    async def _watch_time(self) -> None:
        """One look at the clock serves all adds of a while: a time-out is a coarse thing."""
        timeout = self._config.add_timeout_ms / 1000
        period = timeout / TIMEOUT_LOOKS
        patient_until = 0.0
        while True:
            now = self._env.clock.monotonic()
            if now - self._now > 2 * period and now > patient_until + timeout:
                # This process was stopped: it has answers to read, before any add is given up.
                patient_until = now + timeout / 2
            self._now = now
            if now >= patient_until:
                for channel in self._all_channels():
                    channel.give_up_before(now - timeout)
                    channel.close_if_hanging()
            await trio.sleep(period)

    def _connect(self, channel: BookieConnection) -> bool:
        nursery = self._nursery
        if nursery is None or nursery.cancel_scope.cancel_called:
            return False
        nursery.start_soon(channel.connect)
        return True

    def _channel(self, bookie: BookieId) -> BookieChannel:
        channel = self._channels.get(bookie)
        if channel is None:
            channel = self._channels[bookie] = BookieChannel(
                bookie,
                partial(self._resolve, bookie),
                self._env,
                self._chunks,
                self._config,
                self._connect,
                self._tls,
            )
        return channel

    def _v3_channel(self, bookie: BookieId) -> V3Channel:
        channel = self._v3_channels.get(bookie)
        if channel is None:
            channel = self._v3_channels[bookie] = V3Channel(
                bookie,
                partial(self._resolve, bookie),
                self._env,
                self._chunks,
                self._config,
                self._connect,
                self._tls,
            )
        return channel

    def add_entry(
        self,
        bookie: BookieId,
        ledger_id: int,
        entry_id: int,
        master_key: bytes,
        entry: Buffers,
        flags: int,
        done: AddDone,
    ) -> None:
        if flags & FLAG_DEFERRED_SYNC:
            request = AddRequest(
                ledger_id,
                entry_id,
                master_key,
                entry,
                flags & ~FLAG_DEFERRED_SYNC,
                WRITE_FLAG_DEFERRED_SYNC,
            )
            self._v3_channel(bookie).add(request, done, self._now)
            return
        if entry is not self._last_entry:
            frame = v2.encode_add_request(master_key, entry, flags)
            # Joined once, or else the small buffers are gathered for each bookie anew.
            if sum(map(len, frame)) <= JOIN_SIZE_MAX_BYTES:
                frame = [b"".join(frame)]
            elif len(frame[1]) <= HEAD_SIZE_MAX_BYTES:
                frame[:2] = [b"".join(frame[:2])]
            self._last_entry = entry
            self._last_frame = frame
        channel = self._channels.get(bookie) or self._channel(bookie)
        channel.add(ledger_id, entry_id, self._last_frame, done, self._now)

    async def read_entry(
        self,
        bookie: BookieId,
        ledger_id: int,
        entry_id: int,
        *,
        flags: int = 0,
        master_key: bytes | None = None,
    ) -> tuple[Status, memoryview]:
        request = ReadRequest(
            ledger_id, entry_id, flags, master_key if flags & FLAG_DO_FENCING else None
        )
        return await self._channel(bookie).read(request)

    async def read_entries(
        self,
        bookie: BookieId,
        ledger_id: int,
        first_entry_id: int,
        *,
        count_max: int,
        size_max: int,
    ) -> tuple[Status, Sequence[memoryview]]:
        size_max = min(size_max, self._config.batch_read_size_max_bytes)
        return await self._channel(bookie).read_batch(
            ledger_id, first_entry_id, count_max, size_max + v2.BATCH_HEAD_SIZE
        )

    def read_entries_nowait(
        self,
        bookie: BookieId,
        ledger_id: int,
        first_entry_id: int,
        *,
        count_max: int,
        size_max: int,
    ) -> tuple[Status, Sequence[memoryview]] | None:
        return None

    # -- in v3 -----------------------------------------------------------------------------------

    async def _ask(
        self, bookie: BookieId, request: Request, *, patience_ms: int = 0
    ) -> tuple[Status, Response | None]:
        """The answer's status, and the answer unless it is an error; EIO if there is none."""
        answer = await self._v3_channel(bookie).ask(request, patience_ms=patience_ms)
        if answer is None:
            return Status.EIO, None
        return answer.status, None if isinstance(answer, ErrorResponse) else answer

    async def wait_lac(
        self,
        bookie: BookieId,
        ledger_id: int,
        previous_lac: int,
        *,
        timeout_ms: int,
        with_entry: bool = False,
    ) -> LacAnswer:
        request = ReadRequest(
            ledger_id,
            LAST_ADD_CONFIRMED_ENTRY,
            previous_lac=previous_lac,
            timeout_ms=timeout_ms,
            is_piggyback=with_entry,
        )
        status, answer = await self._ask(bookie, request, patience_ms=timeout_ms)
        if status is not Status.EOK or not isinstance(answer, ReadResponse):
            return LacAnswer(status or Status.EIO)
        last_add_confirmed = -1 if answer.max_lac is None else answer.max_lac
        if answer.entry is None or answer.entry_id < 0:
            return LacAnswer(status, last_add_confirmed)
        return LacAnswer(status, last_add_confirmed, answer.entry_id, memoryview(answer.entry))

    async def read_lac(self, bookie: BookieId, ledger_id: int) -> LacRecord:
        status, answer = await self._ask(bookie, ReadLacRequest(ledger_id))
        if not isinstance(answer, ReadLacResponse):
            return LacRecord(status or Status.EIO)
        return LacRecord(status, answer.packet or None, answer.last_entry or None)

    async def write_lac(
        self,
        bookie: BookieId,
        ledger_id: int,
        last_add_confirmed: int,
        master_key: bytes,
        packet: bytes,
    ) -> Status:
        request = WriteLacRequest(ledger_id, last_add_confirmed, master_key, packet)
        status, answer = await self._ask(bookie, request)
        return status if isinstance(answer, WriteLacResponse) else status or Status.EIO

    async def force_ledger(self, bookie: BookieId, ledger_id: int) -> Status:
        return await self._v3_channel(bookie).force(ledger_id)

    async def bookie_info(self, bookie: BookieId) -> DiskSpace:
        status, answer = await self._ask(bookie, BookieInfoRequest())
        if status is not Status.EOK or not isinstance(answer, BookieInfoResponse):
            return DiskSpace(status or Status.EIO)
        return DiskSpace(status, answer.total_space_bytes or 0, answer.free_space_bytes or 0)

    async def list_entries(
        self, bookie: BookieId, ledger_id: int
    ) -> tuple[Status, EntrySet | None]:
        status, answer = await self._ask(bookie, ListEntriesRequest(ledger_id))
        if status is not Status.EOK or not isinstance(answer, ListEntriesResponse):
            return status or Status.EIO, None
        try:
            return status, decode_entry_set(answer.entries or b"")
        except WireError:
            return Status.EIO, None
