"""What guards are made of.

A guard is a function of a request and its client's rights, in steps of about a microsecond for each
name that is asked about. It may take items out of the request, and gives

- None: the handler's answer is the answer;
- a message: that is the answer, and the handler hears nothing;
- NO_ANSWER: the connection is closed, as there is no way to say no;
- a function that changes the handler's answer, in steps (`Finish`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import field
from enum import Enum, auto
from types import GeneratorType
from typing import TYPE_CHECKING, Any, TypeVar

from broker.authorization import ResourceType, is_carried
from wire.dataclass import dataclass
from wire.kafka.codec import response_class
from wire.kafka.errors import ErrorCode

if TYPE_CHECKING:
    from uuid import UUID

    from broker.api import Request, Steps
    from broker.authorization import AclOperation
    from broker.rights import Rights


class _NoAnswer(Enum):
    NO_ANSWER = auto()


NO_ANSWER = _NoAnswer.NO_ANSWER

Finish = Callable[[Any], "Steps[None]"]
Guard = Callable[["Request", "Rights"], "Steps[Any]"]
T = TypeVar("T")

CODES = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
#: What a question costs, in units of `Steps`, and characters of a name that cost one: it is hashed.
QUESTION_UNITS = 2
CHARACTERS_PER_UNIT = 50
#: Of `authorized_operations`: nobody asked.
NOT_ASKED = -(1 << 31)


def free(request: Request, rights: Rights) -> Steps[None]:  # as every guard
    """Of an API that needs nothing, or whose handler asks."""
    yield 1


def at_the_top(request: Request, code: ErrorCode) -> Steps[Any]:
    """A refusal at the top of the answer; NO_ANSWER if this version has no place for it: one that
    said nothing would be read as a success."""
    yield 1
    response: Any = response_class(request.key)()
    if not hasattr(response, "error_code"):
        return NO_ANSWER
    if not is_carried(type(response), "error_code", request.version):
        return NO_ANSWER
    response.error_code = int(code)
    if hasattr(response, "error_message"):
        response.error_message = words(code)
    return response


def words(code: ErrorCode) -> str:
    """Of a refusal, as Kafka's exceptions have them by default."""
    what = code.name.removesuffix("_AUTHORIZATION_FAILED").replace("_", " ").capitalize()
    return f"{what} authorization failed."


def split(items: list[T], is_allowed: Callable[[T], bool], name: str) -> Steps[list[T]]:
    """Takes those that are not allowed out of `items`, and gives them. `name`: the field of each
    that is asked about."""
    refused: list[T] = []
    kept: list[T] = []
    for item in items:
        asked = getattr(item, name) if name else item
        yield QUESTION_UNITS + (len(asked) // CHARACTERS_PER_UNIT if type(asked) is str else 0)
        (kept if is_allowed(item) else refused).append(item)
    if refused:
        items[:] = kept
    return refused


def told_beside(answers: str, refused: list[Any]) -> Finish:
    """Adds them to the answer's list of that name, unless all of it is an error."""

    def finish(response: Any) -> Steps[None]:  # noqa: ANN401  # the API's answer
        yield 1
        if not getattr(response, "error_code", 0):
            getattr(response, answers).extend(refused)

    return finish


def chained(*finishes: Finish | None) -> Finish | None:
    """One after the other."""
    some = [finish for finish in finishes if finish is not None]
    if len(some) <= 1:
        return some[0] if some else None

    def finish(response: Any) -> Steps[None]:  # noqa: ANN401  # the API's answer
        for each in some:
            yield from each(response)

    return finish


@dataclass(slots=True, frozen=True)
class Refused:
    """A refused topic, or whatever has partitions, in the answer: `kind` with what it has in common
    with the request's, and in its list `parts` each of `numbers` with the error."""

    kind: type[Any]
    part: type[Any]
    same: tuple[str, ...] = ("name",)
    parts: str = "partitions"
    index: str = "partition_index"
    error: str = "error_code"
    more: dict[str, object] = field(default_factory=dict)
    #: Of an item of the request.
    numbers: Callable[[Any], Iterable[int]] = lambda item: (
        each.partition_index for each in item.partitions
    )

    def __call__(self, item: Any, code: ErrorCode) -> Steps[Any]:  # noqa: ANN401  # a message's
        """In steps: one topic may have all 250,000 elements of a request."""
        answer = self.kind(**{name: getattr(item, name) for name in self.same})
        parts = getattr(answer, self.parts)
        yield 1
        for number in self.numbers(item):
            yield 1
            parts.append(self.part(**{self.index: number, self.error: int(code)}, **self.more))
        return answer


def told_each(
    items: Iterable[Any], code: ErrorCode, refused: Callable[[Any, ErrorCode], Any]
) -> Steps[list[Any]]:
    """What `refused(item, code)` makes of each: an answer's part, or steps that lead to it."""
    answers = []
    for item in items:
        yield 1
        answer = refused(item, code)
        answers.append((yield from answer) if type(answer) is GeneratorType else answer)
    return answers


@dataclass(slots=True, frozen=True)
class Each:
    """`operation` on each of the request's list `items`, by its field `name` (or itself). Refused
    ones are told in the answer's list `answers`, as `told_each` has it; the handler hears of the
    others, and of nothing if all are refused."""

    resource: ResourceType
    operation: AclOperation
    items: str
    name: str
    answers: str
    refused: Callable[[Any, ErrorCode], Any]
    #: From this version on by the topic's id. One that nothing has is for the handler to tell.
    ids_from: int = 1 << 15

    def __call__(self, request: Request, rights: Rights) -> Steps[Any]:
        items = getattr(request.body, self.items)
        by_id = request.version >= self.ids_from
        field_name = "topic_id" if by_id else self.name
        refused = yield from split(items, self.test(rights, by_id=by_id), field_name)
        if not refused:
            return None
        answers = yield from told_each(refused, CODES[self.resource], self.refused)
        if not items:
            return response_class(request.key)(**{self.answers: answers})
        return told_beside(self.answers, answers)

    def test(self, rights: Rights, *, by_id: bool) -> Callable[[Any], bool]:
        name, operation, resource = self.name, self.operation, self.resource
        if by_id:
            return lambda item: may_by_id(rights, operation, item.topic_id)
        if not name:
            return lambda item: rights.allows(operation, resource, item)
        return lambda item: rights.allows(operation, resource, getattr(item, name))


def may_by_id(rights: Rights, operation: AclOperation, topic_id: UUID) -> bool:
    """True of a topic that is not there: the handler says so, as in Kafka: ids are no secrets."""
    name = rights.topic_name(topic_id)
    return name is None or rights.allows(operation, ResourceType.TOPIC, name)


@dataclass(slots=True, frozen=True)
class One:
    """`operation` on the one resource that the request's field `name` names; of the cluster without
    a name. Refused, all is, as `refused(request, code)` has it. None names nothing."""

    resource: ResourceType
    operation: AclOperation
    name: str = ""
    refused: Callable[[Request, ErrorCode], Steps[Any]] = at_the_top

    def __call__(self, request: Request, rights: Rights) -> Steps[Any]:
        yield QUESTION_UNITS
        if not self.name:
            is_allowed = rights.allows_cluster(self.operation)
        else:
            named = getattr(request.body, self.name)
            is_allowed = named is None or rights.allows(self.operation, self.resource, named)
        if is_allowed:
            return None
        return (yield from self.refused(request, CODES[self.resource]))


class All:
    """One after the other; the first answer is the answer."""

    __slots__ = ("_guards",)

    def __init__(self, *guards: Guard) -> None:
        self._guards = guards

    def __call__(self, request: Request, rights: Rights) -> Steps[Any]:
        finish: Finish | None = None
        for guard in self._guards:
            outcome = yield from guard(request, rights)
            if outcome is None:
                continue
            if not callable(outcome):
                return outcome
            finish = chained(finish, outcome)
        return finish


def only(
    items: str, operation: AclOperation, resource: ResourceType, name: str
) -> Callable[[Rights], Finish]:
    """Leaves out of the answer's list `items` what the client may not see, without a word."""

    def of(rights: Rights) -> Finish:
        def finish(response: Any) -> Steps[None]:  # noqa: ANN401  # the API's answer
            listed = getattr(response, items)
            kept = []
            for item in listed:
                yield QUESTION_UNITS
                if rights.allows(operation, resource, getattr(item, name), is_told=False):
                    kept.append(item)
            if len(kept) != len(listed):
                setattr(response, items, kept)

        return finish

    return of
