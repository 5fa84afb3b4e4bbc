"""What a coordinator needs of its neighbours, as protocols.

The real parts are broker/cluster's TopicCatalog and broker/log's LogManager and PartitionLog.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from enum import Enum
    from uuid import UUID

    from broker.log.transactions.origin import Origin
    from wire.kafka.errors import ErrorCode
    from wire.kafka.records.control import EndTransactionMarker


class Topic(Protocol):
    @property
    def id(self) -> UUID: ...
    @property
    def name(self) -> str: ...
    @property
    def partition_count(self) -> int: ...


class TopicEvent(Protocol):
    """Something happened to a topic; what it is now, the catalog tells."""

    @property
    def topic(self) -> Topic: ...


class Catalog(Protocol):
    """The cluster's topics."""

    def get(self, name: str, /) -> Topic | None: ...
    def get_by_id(self, topic_id: UUID, /) -> Topic | None: ...
    async def create(self, name: str, partition_count: int, configs: Mapping[str, str], /) -> Topic:
        """KafkaError, TOPIC_ALREADY_EXISTS among others."""

    def subscribe(self, listener: Callable[[Any], None], /) -> None:
        """`listener(TopicEvent)` after each change."""


class Appended(Protocol):
    """How an append ended; `base_offset` if well."""

    error: ErrorCode
    base_offset: int


class ReadResult(Protocol):
    @property
    def parts(self) -> Sequence[memoryview]: ...
    @property
    def next_offset(self) -> int: ...


class Log(Protocol):
    """One partition of the coordinator's topic that this broker holds."""

    @property
    def log_start_offset(self) -> int: ...
    @property
    def high_watermark(self) -> int: ...
    @property
    def leader_epoch(self) -> int:
        """Of this tenure, once the log is online; -1 before."""

    @property
    def state(self) -> Enum:
        """Its value is «loading», «online» or «offline»."""

    @property
    def is_closing(self) -> bool:
        """It refuses appends and will go offline; what is on its way may yet be acknowledged."""

    async def wait_loaded(self) -> None: ...
    def append_nowait(
        self,
        records: memoryview,
        done: Callable[[Any], None],
        /,
        *,
        internal: bool,
        origin: Origin | None,
    ) -> None:
        """`done(Appended)` exactly once, possibly before this returns; of what is acknowledged in
        offset order. `origin`: of a transaction's batch, as it was given to `ask_transaction`."""

    def append_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        marker: EndTransactionMarker,
        transaction_version: int,
        done: Callable[[Any], None],
        /,
    ) -> None:
        """Ends the producer's transaction in this partition. `done` as of an append."""

    def ask_transaction(
        self, origin: Origin, pid: int, epoch: int, done: Callable[[ErrorCode], None], /
    ) -> None:
        """`done(NONE)` if a batch of that transaction may be appended here, with that origin;
        otherwise what its coordinator says. Exactly once, possibly before this returns. A batch is
        refused if a marker came between."""

    def give_back(self, origin: Origin, /) -> None:
        """No batch comes of a question to which the answer was yes."""

    async def read(self, offset: int, size_max: int, /) -> ReadResult: ...
    def watch(self, function: Callable[[], None], /) -> None: ...
    def unwatch(self, function: Callable[[], None], /) -> None: ...


class Logs(Protocol):
    def get(self, topic: str, partition: int, /) -> Log:
        """KafkaError: UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER."""

    def subscribe(self, listener: Callable[[str, int], None], /) -> None:
        """`listener(topic, partition)` whenever a partition begins to be held here; its log is
        «loading» then."""


class Endpoint(Protocol):
    """Where a broker can be reached by the listener that a request came by."""

    @property
    def node_id(self) -> int: ...
    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...


class Leaders(Protocol):
    """Who leads a partition, for FindCoordinator."""

    def leader(self, topic: str, partition: int, listener: str, /) -> Endpoint | None:
        """None: it has no leader at the moment, or that is not alive."""
