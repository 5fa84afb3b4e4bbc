"""Asks the share coordinator of each key (ports.Persister; Kafka's DefaultStatePersister).

The coordinator of a key is the leader of its partition of `__share_group_state`. If that is this
broker it is a plain call. Else all questions of one turn for one broker, of one kind and group,
travel in one request; two about one key in two, as an answer does not say which it answers.

What a coordinator cannot do now is asked again, of the leader of then, after a pause that doubles;
so is what may not have been heard, as every question may come twice. After RETRY_SECONDS the last
error is the answer. A topic that the coordinator does not know may have been made a moment ago: it
is asked again, too, by those who begin with a partition.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import trio

from broker.share.ports import ShareState
from broker.share.questions import (
    VERSIONS,
    Delete,
    Initialize,
    Question,
    Read,
    ReadSummary,
    StateRequests,
    Written,
    answers_of,
    ask_here,
    request_of,
)
from broker.share.state.keys import coordinator_key
from broker.share.state.share_state_core import Write
from runtime.slices import Slices
from wire.kafka.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence
    from typing import Protocol

    from broker.cluster.peers import Answered, Endpoint
    from broker.coordinator.topic import CoordinatorTopic
    from broker.share.ports import ShareKey, StateBatch
    from runtime.turn import Turn
    from wire.kafka.message import Message

    class Peers(Protocol):
        """broker/cluster's BrokerPeers."""

        def ask(
            self, endpoint: Endpoint, message: Message, version: int, answered: Answered, /
        ) -> None: ...

    class Brokers(Protocol):
        """Who leads what, and how to ask it (broker/transactions/ports.py, OtherBrokers)."""

        @property
        def peers(self) -> Peers: ...
        def leader(self, topic: str, partition: int, /) -> Endpoint | None: ...
        def is_own(self, endpoint: Endpoint, /) -> bool: ...

    class StateCoordinator(StateRequests, Protocol):
        """broker/share/state's."""

        @property
        def topic(self) -> CoordinatorTopic: ...
        def ensure_ready(self, key: str, /) -> Awaitable[None]:
            """KafkaError: the topic cannot be created."""


#: Asked again in any case.
RETRIABLE = frozenset(
    (
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
    )
)
#: And by who begins with a partition.
RETRIABLE_AT_FIRST = RETRIABLE | {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
RETRY_SECONDS = 15.0
PAUSE_SECONDS = 0.1
PAUSE_SECONDS_MAX = 1.0
#: Keys of one request; more make another one.
QUESTIONS_PER_REQUEST = 500
#: And batches of all of them together: some 2 MB.
BATCHES_PER_REQUEST = 100_000
#: Questions that are not answered yet; more are told COORDINATOR_NOT_AVAILABLE at once.
QUESTIONS_MAX = 100_000
#: Units of one turn of the loop, each about a microsecond.
UNITS_PER_TURN = 2_000
QUESTION_UNITS = 20


class _Asked:
    """A question on its way. Answered once; what comes later is not heard."""

    __slots__ = ("_answered", "question")

    def __init__(
        self, question: Question, answered: Callable[[Question, ShareState], None]
    ) -> None:
        self.question = question
        self._answered: Callable[[Question, ShareState], None] | None = answered

    def answer(self, state: ShareState) -> None:
        answered, self._answered = self._answered, None
        if answered is not None:
            answered(self.question, state)

    @property
    def batch_count(self) -> int:
        return len(self.question.write.batches) if isinstance(self.question, Written) else 0


class _Batch:
    """What travels in one request."""

    __slots__ = ("asked", "batch_count")

    def __init__(self) -> None:
        self.asked: dict[ShareKey, _Asked] = {}
        self.batch_count = 0

    def take(self, asked: _Asked) -> bool:
        """False: it has no place for that."""
        key, count = asked.question.key, asked.batch_count
        if (
            key in self.asked
            or len(self.asked) >= QUESTIONS_PER_REQUEST
            or (self.asked and self.batch_count + count > BATCHES_PER_REQUEST)
        ):
            return False
        self.asked[key] = asked
        self.batch_count += count
        return True


class CoordinatorPersister:
    """A Persister (ports). Any number of calls at a time."""

    def __init__(self, turn: Turn, coordinator: StateCoordinator, brokers: Brokers) -> None:
        self._turn = turn
        self._coordinator = coordinator
        self._brokers = brokers
        self._question_count = 0
        #: By broker, kind and group: the requests that leave at the end of the turn.
        self._due: dict[tuple[int, type[Question], str], tuple[Endpoint, list[_Batch]]] = {}

    # --- ports.Persister

    async def initialize(
        self, keys: Sequence[tuple[ShareKey, int, int]]
    ) -> dict[ShareKey, ErrorCode]:
        return _errors(await self._ask([Initialize(*each) for each in keys], RETRIABLE_AT_FIRST))

    async def read(self, keys: Sequence[tuple[ShareKey, int]]) -> dict[ShareKey, ShareState]:
        return await self._ask([Read(*each) for each in keys], RETRIABLE_AT_FIRST)

    async def write(
        self,
        key: ShareKey,
        state_epoch: int,
        leader_epoch: int,
        start_offset: int,
        delivery_complete_count: int,
        batches: Sequence[StateBatch],
    ) -> ErrorCode:
        write = Write(
            state_epoch, leader_epoch, start_offset, delivery_complete_count, batches
        )  # fmt: skip
        return (await self._ask([Written(key, write)], RETRIABLE))[key].error

    async def delete(self, keys: Sequence[ShareKey]) -> dict[ShareKey, ErrorCode]:
        return _errors(await self._ask([Delete(key) for key in keys], RETRIABLE))

    async def read_summary(self, keys: Sequence[ShareKey]) -> dict[ShareKey, ShareState]:
        return await self._ask([ReadSummary(key) for key in keys], RETRIABLE)

    # --- inside

    async def _ask(
        self, questions: Sequence[Question], retriable: frozenset[ErrorCode]
    ) -> dict[ShareKey, ShareState]:
        found = dict.fromkeys(
            (each.key for each in questions), ShareState(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        )
        if self._question_count + len(questions) > QUESTIONS_MAX:
            return found
        self._question_count += len(questions)
        pause = PAUSE_SECONDS
        left = questions
        try:
            with trio.move_on_after(RETRY_SECONDS):
                while left:
                    await self._ask_once(left, found)
                    left = [each for each in left if found[each.key].error in retriable]
                    if left:
                        await trio.sleep(pause)
                        pause = min(2 * pause, PAUSE_SECONDS_MAX)
        finally:
            self._question_count -= len(questions)
        # A copy: what is answered after the time is up changes nothing for who was told.
        return dict(found)

    async def _ask_once(
        self, questions: Sequence[Question], found: dict[ShareKey, ShareState]
    ) -> None:
        """Of each question the answer in `found`, as soon as it is there."""
        if not self._coordinator.topic.exists:
            try:
                await self._coordinator.ensure_ready(coordinator_key(questions[0].key))
            except KafkaError:
                return  # what is in `found` says so
        left, came = len(questions), trio.Event()

        def one_came(question: Question, state: ShareState) -> None:
            nonlocal left
            found[question.key] = state
            left -= 1
            if not left:
                came.set()

        slices = Slices(UNITS_PER_TURN)
        for question in questions:
            for units in self._send(_Asked(question, one_came)):
                if slices.due(units):
                    await slices.turn()
        await came.wait()

    def _send(self, asked: _Asked) -> Iterator[int]:
        topic = self._coordinator.topic
        key = asked.question.key
        leader = self._brokers.leader(topic.name, topic.partition_for(coordinator_key(key)))
        if leader is None:
            asked.answer(ShareState(ErrorCode.COORDINATOR_NOT_AVAILABLE))
        elif self._brokers.is_own(leader):
            yield from ask_here(self._coordinator, asked.question, asked.answer)
        else:
            self._queue(leader, asked)
        yield QUESTION_UNITS

    def _queue(self, leader: Endpoint, asked: _Asked) -> None:
        if not self._due:
            self._turn.defer(self._flush)
        question = asked.question
        name = (leader.node_id, type(question), question.key.group_id)
        _, batches = self._due.setdefault(name, (leader, []))
        if not batches or not batches[-1].take(asked):
            batches.append(_Batch())
            batches[-1].take(asked)

    def _flush(self) -> None:
        """Requests of this turn; what is too much for it leaves in later ones."""
        while self._due:
            if self._turn.is_spent:
                self._turn.later(self._flush)
                return
            name, (leader, batches) = next(iter(self._due.items()))
            _, kind, group_id = name
            batch = batches.pop(0)
            if not batches:
                del self._due[name]
            questions = [each.question for each in batch.asked.values()]
            self._turn.spent_units += QUESTION_UNITS * len(questions) + 3 * batch.batch_count
            request = request_of(group_id, questions)
            heard = partial(_heard, batch)
            self._brokers.peers.ask(leader, request, VERSIONS[kind], heard)


def _heard(batch: _Batch, message: Message | None) -> None:
    """What is not in the answer was not heard of."""
    answers = {(each.topic_id, each.partition): each.state for each in answers_of(message)}
    lost = ShareState(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    for key, asked in batch.asked.items():
        asked.answer(answers.get((key.topic_id, key.partition), lost))


def _errors(states: dict[ShareKey, ShareState]) -> dict[ShareKey, ErrorCode]:
    return {key: state.error for key, state in states.items()}
