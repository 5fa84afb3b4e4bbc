"""A broker that crashes at an append: before any bookie has the entry, when one has it, or when an
ack quorum has it and the broker has not heard of that yet.

So every row of what may be lost is reached on purpose: what was never sent, what recovery may find
or not, and what is in the log though nobody was told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.log.append.entry_format import HEADER_SIZE, KIND_BATCHES, EntryFormatError, parse_header
from sim.chains import partition_of
from sim.transactions.decided import parse
from wire.bookkeeper.entry import Digest

if TYPE_CHECKING:
    from collections.abc import Callable

    from sim.nodes import Node
    from sim.transactions.decided import Read
    from sim.world import World


class AppendCrash:
    """At the `number`-th append of records (from 1 on) to `topic`, of those that `counts`, as soon
    as `copies` bookies have it."""

    def __init__(
        self,
        world: World,
        topic: str,
        *,
        number: int,
        copies: int,
        is_silent: bool,
        seconds: float,
        counts: Callable[[Read], bool] = lambda _: True,
    ) -> None:
        """`seconds`: until the broker is started again."""
        self._world = world
        self._topic = topic
        self._number = number
        self._copies = copies
        self._is_silent = is_silent
        self._seconds = seconds
        self._counts = counts
        self._count = 0
        self._entry: tuple[int, int] | None = None
        #: Ledger -> whether it is one of the topic's.
        self._known: dict[int, bool] = {}
        #: What the entry held, once it has crashed.
        self.batches: list[Read] | None = None

    def arm(self) -> None:
        """From now on; where nobody witnesses, never."""
        if self._world.witness is not None:
            self._world.witness.on_append = self._appended

    def _appended(
        self, node: Node, ledger_id: int, entry_id: int, entry: bytes, copies: int
    ) -> None:
        if self._entry is None:
            if copies or not self._is_ours(ledger_id):
                return
            batches = self._batches(ledger_id, entry_id, entry)
            is_counted = any(map(self._counts, batches))
            self._count += is_counted
            if not is_counted or self._count < self._number:
                return
            self._entry = ledger_id, entry_id
        if self._entry != (ledger_id, entry_id) or copies < self._copies:
            return
        assert self._world.witness is not None
        self._world.witness.on_append = None
        self.batches = self._batches(ledger_id, entry_id, entry)
        self._strike(node)

    def _strike(self, node: Node) -> None:
        """The moment has come."""
        self._world.trace.count("crashes at an append")
        node.crash(is_silent=self._is_silent)
        self._world.start_later(node, self._seconds)

    def _is_ours(self, ledger_id: int) -> bool:
        if ledger_id not in self._known:
            found = partition_of(self._world.tree.table, ledger_id)
            if found is None:
                return False
            self._known[ledger_id] = found[0] == self._topic
        return self._known[ledger_id]

    def _batches(self, ledger_id: int, entry_id: int, entry: bytes) -> list[Read]:
        """Of an entry with whole batches; else none."""
        metadata = self._world.storage.ledger(ledger_id)
        assert metadata is not None
        digest = Digest(metadata.digest_type, metadata.password or b"")  # type: ignore[arg-type]
        payload = bytes(digest.open(entry, ledger_id, entry_id))
        try:
            header = parse_header(payload)
        except EntryFormatError:
            return []
        if header.kind != KIND_BATCHES or header.flags:
            return []
        return list(parse(payload[HEADER_SIZE:]))
