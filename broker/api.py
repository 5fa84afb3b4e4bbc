"""What a handler is: the shape that `dispatch` knows.

A handler module in broker/handlers/ has one class that is given its collaborators and offers
`apis()`, the list of (key, versions, function). ApiVersions answers exactly the union of these
lists: what is not declared here is not advertised.

A handler function takes a `Request` and gives one of
- a response message: a plain `def` that needs no waiting (answered in the same turn);
- a `Reply` that it will resolve later (Produce, Fetch: stage 1 ran, stage 2 completes it);
- an awaitable (`async def`): dispatch starts a task for it; `Abandonable` if that is to end when
  its connection does;
- a generator (`Steps`) that yields what each step cost, in units of about a microsecond, and
  returns one of the first two: as much as is cheap is done in the same turn, the rest in slices by
  a task, and what the connection sent behind it waits. Between two steps anything may change.
A handler that gave a response or a Reply looks at the arrays of the request no more: those of a
large request are emptied then, before the Reply is resolved.
In every case the replies of one connection leave in the order of its requests.

What of it needs authorised is data: `Api.authorised`, the API's row in broker/authorised.py. Its
guard (broker/guards/) has asked for what the request names before the handler sees it.

Errors: `KafkaError` is for a handler's own per-partition loop. A handler that lets anything else
escape is a bug: dispatch logs it with the request id and answers UNKNOWN_SERVER_ERROR.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import trio

from broker.authorised import AUTHORISED
from broker.security.principal import ANONYMOUS, Principal
from runtime.slices import Slices
from wire.dataclass import dataclass
from wire.kafka.codec import request_class
from wire.kafka.message import Array, Message, fields_of
from wire.kafka.structs import Struct

if TYPE_CHECKING:
    from broker.authorization import Need
    from broker.rights import Rights
    from runtime.timers import Timers
    from runtime.turn import Turn
    from wire.buffers import Buffer
    from wire.kafka.api_keys import ApiKey


#: Elements of all arrays of a message that are decoded or encoded at once: up to 1.5 ms, beside a
#: handler's first steps in the same turn.
ELEMENTS_INLINE = 500


@dataclass(slots=True)
class ConnectionInfo:
    """What a handler may know about the connection that a request came by."""

    id: str  # unique in this broker's life: «local-remote-n»
    peer_host: str
    listener: str
    peer_port: str = ""
    principal: Principal = ANONYMOUS
    client_software_name: str = "unknown"
    client_software_version: str = "unknown"
    #: Its listener wants a login, and there was none yet.
    is_stranger: bool = False
    close: Callable[[], None] = lambda: None


class Route(Protocol):
    """An API in one version: how its response is put on the wire."""

    @property
    def name(self) -> str: ...

    def encode(self, message: Message, correlation_id: int, elements: int) -> list[Buffer]:
        """ManyElementsError if the message has more elements in its arrays."""

    def encode_sliced(
        self, message: Message, correlation_id: int
    ) -> Generator[None, None, list[Buffer]]:
        """The same for any number: yields after each slice."""


class ReplyLine(Protocol):
    """Where replies wait for their turn: a connection."""

    def reply_resolved(self, reply: AnyReply) -> None: ...

    def has_turn(self, reply: AnyReply) -> bool:
        """Whether it is that now."""

    def wait_turn(self, reply: AnyReply) -> None:
        """`reply.on_turn` is called once the reply is the next to be sent, and there is room."""


class Handling(Protocol):
    """What a connection hands its frames to: dispatch."""

    @property
    def turn(self) -> Turn: ...

    @property
    def is_stopped(self) -> bool:
        """No tasks are started any more."""

    def dispatch(self, connection: Any, frame: memoryview) -> None:  # noqa: ANN401
        """One whole request."""

    def connection_closed(self, connection: Any) -> None: ...  # noqa: ANN401

    def frame_bytes_max(self, key: int, version: int, *, is_known: bool) -> int:
        """Of a large request that begins so, from a client that has made one before, or not."""

    def start(
        self,
        function: Callable[..., Awaitable[None]],
        *arguments: Any,  # noqa: ANN401  # the function's
        name: str,
    ) -> None:
        """Runs it as a task of the server's."""


#: By this name mypy does not take it that there are none.
_OF_SUBCLASSES = ()


class AnyReply:
    """A response that is not there yet, and its place in the line of its connection's replies.

    The handler's part is `resolve`, once, on the loop's thread. One that would rather not go on
    for a client that left sets `on_abandoned`. The attributes below it are the connection's: one
    object serves both, as every produce request needs one. Whoever is something else, too, has
    them in slots of its own; all others are a `Reply`."""

    __slots__ = _OF_SUBCLASSES

    message: Message | None
    on_abandoned: Callable[[], None] | None
    #: What the client's rights change of the response: what it was refused is told beside.
    finish: Callable[[Message], Steps[None]] | None
    #: acks=0: the request's memory is held until it is resolved, but nothing is sent.
    is_silent: bool
    line: ReplyLine | None
    route: Route  # how to encode the response, set with `line`
    correlation_id: int
    #: Asked for by `when_next`.
    on_turn: Callable[[], None] | None
    parts: list[Buffer] | None  # encoded, waiting for those before it
    parts_bytes: int  # of `parts`, if they count as waiting
    size_bytes: int  # of request memory that is held until the response is there

    def resolve(self, message: Message) -> None:
        assert self.message is None, "a reply is resolved once"
        if self.finish is not None:
            all_steps(self.finish(message))
        self.message = message
        if self.line is not None:
            self.line.reply_resolved(self)

    def when_next(self, function: Callable[[], None]) -> None:
        """Calls `function` once the response would be sent at once: a large one is made only
        then, as a client that does not read would have us keep all that it asked for."""
        if self.line is None:
            function()
            return
        self.on_turn = function
        self.line.wait_turn(self)

    def abandon(self) -> bool:
        """The connection is gone, nobody will see the response. Whether the handler gave it up:
        then it may never be resolved."""
        if self.message is not None or self.on_abandoned is None:
            return False
        self.on_abandoned()
        return True


class Reply(AnyReply):
    __slots__ = (
        "correlation_id", "finish", "is_silent", "line", "message", "on_abandoned", "on_turn",
        "parts", "parts_bytes", "route", "size_bytes",
    )  # fmt: skip

    def __init__(self) -> None:
        self.message = None
        self.on_abandoned = None
        self.finish = None
        self.is_silent = False
        self.line = None
        self.correlation_id = 0
        self.on_turn = None
        self.parts = None
        self.parts_bytes = 0
        self.size_bytes = 0


class PlainReply(AnyReply):
    """Of a request that a handler took as it came (`Api.plain`). If all goes well it gets its
    `parts` itself."""

    __slots__ = _OF_SUBCLASSES

    version: int


class Throttled(Protocol):
    """A connection, to whoever slows its client down."""

    def throttle(self, seconds: float, timers: Timers) -> None:
        """Nothing more that the client sends is handled for so long, from now on (KIP-219). While
        it is throttled already, the later end counts."""


class MutationQuota(Protocol):
    """How many partitions a request may make or delete."""

    def take(self, partitions: int) -> None:
        """KafkaError THROTTLING_QUOTA_EXCEEDED."""


class Account(Protocol):
    """What a request is charged (broker/quotas/account.py), for handlers that know how much it
    is."""

    def fetch_bytes_max(self) -> int | None:
        """So much an answer may have; None: whatever the client says."""

    def fetched(self, size_bytes: int, throttled: Message) -> bool:
        """Of so many bytes of records; whether the client is to have none of them, but to wait:
        `throttled`, which tells it now for how long, is the answer then."""

    def mutations(self, *, is_strict: bool) -> MutationQuota | None:
        """None without a quota. Strict: who owes something is refused; else all may go on, and
        wait."""


@dataclass(slots=True)
class Request:
    """One decoded request. `body` is the message class of its key."""

    key: int
    version: int
    correlation_id: int
    client_id: str
    connection: ConnectionInfo
    body: Any
    #: The body has very many elements, and is emptied once it is answered.
    is_large: bool = False
    #: None while no client has a quota.
    account: Account | None = None
    #: None without an authorizer: everybody may do everything.
    rights: Rights | None = None


T = TypeVar("T")

#: Work in steps: yields what each cost, in units of about a microsecond.
Steps = Generator[int, None, T]

#: So much of a request's steps is done at once, and in each slice of the rest.
STEP_UNITS = 2000
#: Of records in one answer, beyond its first batch: they are copied out of the page cache, a
#: mebibyte in 0.4 ms and more.
ANSWER_BYTES_MAX = 4 << 20


def all_steps(steps: Steps[T]) -> T:
    """All steps at once: there are few."""
    try:
        while True:
            next(steps)
    except StopIteration as end:
        result: T = end.value
        return result


def run_steps(turn: Turn, steps: Steps[None], then: Callable[[], None]) -> None:
    """All steps, and then `then`: as much as is cheap at once, the rest in later turns."""
    units = 0
    for cost in steps:
        units += cost
        if units > STEP_UNITS:
            turn.spent_units += units
            turn.later(lambda: run_steps(turn, steps, then))
            return
    turn.spent_units += units
    then()


#: Characters of a name that cost a unit: it is hashed.
_HASHED_PER_UNIT = 500


def each_once(names: Iterable[str]) -> Steps[Iterable[str]]:
    """In their order, without those that come again. 100,000 of them take 10 ms."""
    found: dict[str, None] = {}
    for name in names:
        yield 1 + len(name) // _HASHED_PER_UNIT
        found[name] = None
    return found


async def in_slices(steps: Steps[T]) -> T:
    """All steps, from a task: others have the loop in between."""
    slices = Slices(STEP_UNITS)
    try:
        while True:
            if slices.due(next(steps)):
                await slices.turn()
    except StopIteration as end:
        result: T = end.value
        return result
    finally:
        steps.close()


class MayClose(Protocol):
    """A connection, to whoever works for it."""

    @property
    def is_closed(self) -> bool: ...


async def while_open(connection: MayClose, slices: Generator[None, None, T]) -> T | None:
    """All slices, from a task, and others have the loop after each; None once the connection is
    closed: nobody wants what they come to."""
    try:
        while not connection.is_closed:
            next(slices)
            await trio.lowlevel.checkpoint()
    except StopIteration as end:
        result: T = end.value
        return result
    finally:
        slices.close()
    return None


#: Elements that are freed before others have the loop: some 1 ms.
FREED_PER_TURN = 500


async def let_go(message: Message) -> None:
    """Empties a message of very many elements, which nobody needs any more, in slices: Python
    frees a hundred thousand objects as slowly as it makes them, and otherwise all at once."""
    slices = Slices(FREED_PER_TURN)
    lists = _lists_of(message)
    while lists:
        elements = lists.pop()
        while elements:
            if not any(_names_of(type(elements[-1]))):
                if slices.due(FREED_PER_TURN):
                    await slices.turn()
                del elements[-FREED_PER_TURN:]
                continue
            inner = _lists_of(elements[-1])
            count = sum(map(len, inner))
            if count >= FREED_PER_TURN:
                # Shorter ones may be somebody else's, too, and are only let go of.
                lists += [each for each in inner if len(each) >= FREED_PER_TURN]
            if slices.due(1 + count):
                await slices.turn()
            elements.pop()


def _lists_of(value: object) -> list[list[Any]]:
    """With those of the structs in it."""
    arrays, structs = _names_of(type(value))
    found = [getattr(value, name) for name in arrays]
    lists = [each for each in found if type(each) is list]
    for name in structs:
        lists += _lists_of(getattr(value, name))
    return lists


_NAMES: dict[type[object], tuple[tuple[str, ...], tuple[str, ...]]] = {}


def _names_of(kind: type[object]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The fields that are arrays, and those that are structs which hold some."""
    names = _NAMES.get(kind)
    if names is None:
        fields = fields_of(kind) if issubclass(kind, Struct) else ()
        arrays = tuple(name for name, spec in fields if isinstance(spec.kind, Array))
        structs = tuple(
            name
            for name, spec in fields
            if isinstance(spec.kind, type) and any(_names_of(spec.kind))
        )
        names = _NAMES[kind] = arrays, structs
    return names


class Abandonable:
    """An awaitable that ends, without a result, when `abandon` is called."""

    __slots__ = ("_function", "_scope", "reply")

    def __init__(self, function: Callable[[Abandonable], Awaitable[Message]]) -> None:
        """`function` is given this object, for its `turn`."""
        self._function = function
        self._scope = trio.CancelScope()
        #: Its place in line, which dispatch gives it.
        self.reply: Reply | None = None

    @property
    def has_turn(self) -> bool:
        """Whether the response would be sent at once."""
        reply = self.reply
        return reply is None or reply.line is None or reply.line.has_turn(reply)

    async def turn(self) -> None:
        """Returns once it would (`Reply.when_next`)."""
        if self.reply is not None:
            event = trio.Event()
            self.reply.when_next(event.set)
            await event.wait()

    def through(self, wrap: Callable[[Awaitable[Message]], Awaitable[Message]]) -> None:
        """Awaits what `wrap` makes of it."""
        function = self._function
        self._function = lambda own: wrap(function(own))

    def abandon(self) -> None:
        self._scope.cancel()

    def __await__(self) -> Generator[Any, Any, Message | None]:
        return self._run().__await__()

    async def _run(self) -> Message | None:
        with self._scope:
            return await self._function(self)
        return None


HandlerResult = Message | Reply | Awaitable[Message] | Abandonable | Steps[Any] | None
HandlerFunction = Callable[[Request], HandlerResult]


class Served(Route, Protocol):
    """All that dispatch needs of an API in one version."""

    @property
    def counts(self) -> list[int]:
        """[requests, failures of handlers], of the API."""

    @property
    def units(self) -> int:
        """What a request costs beside its steps, in units of about a microsecond."""

    @property
    def is_frequent(self) -> bool: ...

    @property
    def holds_frame(self) -> bool:
        """Its parsed values are views into the request's memory."""

    def handle(self, request: Request) -> HandlerResult: ...


class Accounting(Protocol):
    """Who charges requests: the quotas of clients (broker/quotas/)."""

    def accounted(
        self, connection: Throttled, request: Request, route: Served, size_bytes: int
    ) -> Served:
        """What `request`, a frame of `size_bytes`, goes by instead of `route`. Sets its account."""


@dataclass(slots=True, frozen=True)
class Api:
    """One served API. `version_min_advertised` is for Produce alone (KAFKA-18659).

    `plain`, of one API at most: is shown each frame first, and takes those that are requests of its
    own of the most ordinary kind, and will be answered without an error as far as it can be told
    now; None to all others. Only asked where nobody has quotas or an authorizer."""

    key: ApiKey
    version_min: int
    version_max: int
    handle: HandlerFunction
    version_min_advertised: int | None = None
    plain: Callable[[memoryview], PlainReply | None] | None = None

    def __post_init__(self) -> None:
        """ValueError if nobody has said what it needs authorised."""
        if self.key not in AUTHORISED:
            raise ValueError(f"API key {self.key!r} has no row in broker/authorised.py")

    @property
    def authorised(self) -> tuple[Need, ...]:
        """All that a request needs authorised."""
        return AUTHORISED[self.key]

    def authorised_in(self, version: int) -> tuple[Need, ...]:
        """The same for requests of one version. For tests, as `Need.named_in`."""
        request = request_class(self.key)
        needs = (need.in_version(request, version) for need in self.authorised)
        return tuple(need for need in needs if need is not None)
