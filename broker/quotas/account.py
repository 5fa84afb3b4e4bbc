"""What one request is charged: a route that measures what it goes by, while clients have quotas.

Dispatch puts an `AccountedRoute` in the place of a request's route. It measures the processor time
of the handler (all its steps, and its task's), and when the response is encoded, which is when it
is there, it charges the client, tells it how long it is to wait (throttle_time_ms) and has its
connection muted for as long: the response leaves at once, and what the client sends next waits
(KIP-219).

As Kafka:
- Produce is charged the bytes of its request, with acks=0 when it was handled;
- Fetch is charged the bytes of its records; one that would have to wait gets an empty response, is
  charged nothing, and asks again later. No answer is larger than fits in the windows;
- CreateTopics, DeleteTopics and CreatePartitions are charged each partition (KIP-599). From some
  version on a client is refused with THROTTLING_QUOTA_EXCEEDED while it owes something;
- all are charged their time, as a percentage of the one processor that serves requests; but not
  what brokers ask of one another, nor an ApiVersions before a login: nobody is known then, and
  strangers would slow down each other's logins.
A client waits for the longest of what its quotas say.
"""

from __future__ import annotations

import types
from types import GeneratorType
from typing import TYPE_CHECKING, Any

from broker.api import Abandonable
from wire.kafka.api_keys import ApiKey
from wire.kafka.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Generator

    from broker.api import HandlerResult, Request, Served, Steps, Throttled
    from broker.quotas.meters import Meter
    from broker.quotas.quotas import ClientQuotas
    from wire.buffers import Buffer
    from wire.kafka.message import Message

#: What brokers ask of brokers.
EXEMPT = frozenset({ApiKey.WRITE_TXN_MARKERS})
THROTTLE_MS_MAX = (1 << 31) - 1
_QUOTA_EXCEEDED = "The throttling quota has been exceeded."


class MutationQuota:
    """What a request may change of topics. Strict: nothing while the client owes something."""

    __slots__ = ("_account", "_is_strict", "_meter")

    def __init__(self, account: AccountedRoute, meter: Meter, is_strict: bool) -> None:
        self._account = account
        self._meter = meter
        self._is_strict = is_strict

    def take(self, partitions: int) -> None:
        """KafkaError THROTTLING_QUOTA_EXCEEDED."""
        meter, account = self._meter, self._account
        now = account.quotas.clock.monotonic()
        bucket, limit = meter.bucket, meter.limit
        if self._is_strict and bucket.tokens(limit, now) < 0:
            account.mutation_wait = bucket.wait_seconds(limit, now)
            raise KafkaError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, _QUOTA_EXCEEDED)
        bucket.take(partitions, limit, now)
        meter.rate.record(partitions, now)
        if not self._is_strict:
            account.mutation_wait = bucket.wait_seconds(limit, now)


class AccountedRoute:
    """A request's route and its account in one: `broker.api.Served`, `broker.api.Account`."""

    __slots__ = (
        "_client_id", "_connection", "_is_settled", "_request_key", "_route", "_size_bytes",
        "_spent", "_user", "counts", "holds_frame", "is_frequent", "mutation_wait", "name",
        "quotas", "units",
    )  # fmt: skip

    def __init__(
        self,
        quotas: ClientQuotas,
        connection: Throttled,
        request: Request,
        route: Served,
        size_bytes: int,
    ) -> None:
        self.quotas = quotas
        self.mutation_wait = 0.0
        self.name, self.units, self.counts = route.name, route.units, route.counts
        self.holds_frame, self.is_frequent = route.holds_frame, route.is_frequent
        self._route = route
        self._connection = connection
        self._request_key = request.key
        self._client_id = request.client_id
        self._user = request.connection.principal.name
        self._size_bytes = size_bytes
        self._spent = 0.0
        self._is_settled = False

    # -- the processor's time ---------------------------------------------------------------------

    def handle(self, request: Request) -> HandlerResult:
        clock = self.quotas.clock
        began = clock.monotonic()
        result: Any = self._route.handle(request)
        self._spent += clock.monotonic() - began
        result = self._timed_rest(result)
        if self._request_key == ApiKey.PRODUCE and request.body.acks == 0:
            self._settle(None)
        return result  # type: ignore[no-any-return]

    def _timed_rest(self, result: Any) -> Any:  # noqa: ANN401  # what a handler gave
        if type(result) is GeneratorType:
            return self._timed_steps(result)
        if isinstance(result, Abandonable):
            result.through(self._timed)
        elif isinstance(result, types.CoroutineType):
            return self._timed(result)
        return result

    def _timed_steps(self, steps: Steps[Any]) -> Steps[Any]:
        clock = self.quotas.clock
        try:
            while True:
                began = clock.monotonic()
                try:
                    units = next(steps)
                except StopIteration as end:
                    return self._timed_rest(end.value)
                finally:
                    self._spent += clock.monotonic() - began
                yield units
        finally:
            steps.close()

    async def _timed(self, awaitable: Awaitable[Any]) -> Any:  # noqa: ANN401  # what it gives
        """From step to step of its task: what it waits for is not its own."""
        return await self._driven(awaitable)

    @types.coroutine
    def _driven(self, awaitable: Awaitable[Any]) -> Generator[Any, Any, Any]:
        clock = self.quotas.clock
        steps = awaitable.__await__()
        sent: Any = None
        error: BaseException | None = None
        while True:
            began = clock.monotonic()
            try:
                given = steps.send(sent) if error is None else steps.throw(error)
            except StopIteration as end:
                return end.value
            finally:
                self._spent += clock.monotonic() - began
            sent, error = None, None
            try:
                sent = yield given
            except BaseException as thrown:  # whatever its task is told
                error = thrown

    # -- charging ---------------------------------------------------------------------------------

    def encode(self, message: Message, correlation_id: int, elements: int) -> list[Buffer]:
        clock = self.quotas.clock
        if not self._is_settled:
            self._settle(message)
        began = clock.monotonic()
        try:
            return self._route.encode(message, correlation_id, elements)
        finally:
            now = clock.monotonic()
            self._charge_time(now - began, now)

    def encode_sliced(
        self, message: Message, correlation_id: int
    ) -> Generator[None, None, list[Buffer]]:
        return self._route.encode_sliced(message, correlation_id)

    def _charge_time(self, seconds: float, now: float) -> float:
        """The seconds that the client is to wait."""
        if self._request_key in EXEMPT:
            self.quotas.exempt_seconds += seconds
            return 0.0
        meters = self.quotas.request
        meter = meters.of(self._user, self._client_id, now)
        return 0.0 if meter is None else meters.record(meter, seconds * 100, now)

    def _settle(self, message: Message | None) -> None:
        """`message` None: nobody is told."""
        self._is_settled = True
        now = self.quotas.clock.monotonic()
        wait = self._charge_time(self._spent, now)
        meter = self.quotas.request.of(self._user, self._client_id, now) if wait else None
        if self._request_key == ApiKey.PRODUCE:
            produce = self.quotas.produce
            produced = produce.of(self._user, self._client_id, now)
            if produced is not None:
                bytes_wait = produce.record(produced, self._size_bytes, now)
                if bytes_wait > wait:
                    wait, meter = bytes_wait, produced
        if self.mutation_wait > wait:
            mutated = self.quotas.mutation.of(self._user, self._client_id, now)
            wait, meter = self.mutation_wait, mutated
        if meter is not None:
            self._throttle(message, wait, meter, now)

    def _throttle(self, message: Message | None, wait: float, meter: Meter, now: float) -> None:
        wait_ms = min(round(wait * 1000), THROTTLE_MS_MAX)
        if wait_ms <= 0:
            return
        meter.throttled(wait, now)
        if message is not None and hasattr(message, "throttle_time_ms"):
            message.throttle_time_ms = wait_ms
        self._connection.throttle(wait_ms / 1000, self.quotas.timers)

    # -- broker.api.Account -----------------------------------------------------------------------

    def fetch_bytes_max(self) -> int | None:
        fetch = self.quotas.fetch
        meter = fetch.of(self._user, self._client_id, self.quotas.clock.monotonic())
        return None if meter is None else int(min(fetch.burst(meter), THROTTLE_MS_MAX))

    def fetched(self, size_bytes: int, throttled: Message) -> bool:
        fetch = self.quotas.fetch
        self._is_settled = True
        now = self.quotas.clock.monotonic()
        wait = self._charge_time(self._spent, now)
        waiting = self.quotas.request.of(self._user, self._client_id, now) if wait else None
        meter = fetch.of(self._user, self._client_id, now)
        if meter is not None:
            bytes_wait = fetch.record(meter, size_bytes, now)
            if bytes_wait > wait:
                wait, waiting = bytes_wait, meter
        if waiting is None or round(wait * 1000) <= 0:
            return False
        if meter is not None:
            meter.rate.record(-size_bytes, now)
        self._throttle(throttled, wait, waiting, now)
        return True

    def mutations(self, *, is_strict: bool) -> MutationQuota | None:
        now = self.quotas.clock.monotonic()
        meter = self.quotas.mutation.of(self._user, self._client_id, now)
        return None if meter is None else MutationQuota(self, meter, is_strict)


class Accounts:
    """`broker.api.Accounting`."""

    def __init__(self, quotas: ClientQuotas) -> None:
        self._quotas = quotas

    def accounted(
        self, connection: Throttled, request: Request, route: Served, size_bytes: int
    ) -> Served:
        if request.connection.is_stranger:
            return route
        account = AccountedRoute(self._quotas, connection, request, route, size_bytes)
        request.account = account
        return account
