"""A handler's function for those who may: what dispatch calls when the broker has an authorizer.

Before the handler, the API's guard (broker/guards/) asks for what the request names, takes out of
it what is refused, and says what the answer is to have beside the handler's. So a handler sees only
what its client may, and authorization comes before existence. Where the request does not name it
(the partitions of a fetch session, all topics there are) the handler asks `Request.rights` itself.

Without an authorizer nothing is asked: a route then has the handler's own function.
"""

from __future__ import annotations

from types import GeneratorType
from typing import TYPE_CHECKING, Any

from broker.api import Abandonable, Reply, in_slices
from broker.guards.table import guard_of
from broker.guards.tools import NO_ANSWER
from broker.rights import Rights
from wire.kafka.message import Message

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from broker.api import HandlerFunction, HandlerResult, Request, Steps
    from broker.guards.tools import Finish
    from broker.rights import Authorizer
    from wire.kafka.api_keys import ApiKey


def guarded(
    key: ApiKey, name: str, handle: HandlerFunction, authorizer: Authorizer
) -> HandlerFunction:
    """`handle` for those whom `authorizer` lets, in steps: a request may name very many. `name`: of
    the API, for the audit log."""
    guard = guard_of(key)

    def asked(request: Request) -> Steps[HandlerResult]:
        rights = request.rights = Rights(authorizer, request.connection, name)
        outcome = yield from guard(request, rights)
        if outcome is NO_ANSWER:
            request.connection.close()
            return None
        if isinstance(outcome, Message):
            return outcome
        result: Any = handle(request)
        if type(result) is GeneratorType:
            result = yield from result
        if outcome is None or result is None:
            return result  # type: ignore[no-any-return]
        return (yield from _finished(result, outcome))

    return asked


def _finished(result: Any, finish: Finish) -> Steps[HandlerResult]:  # noqa: ANN401  # a handler's
    if isinstance(result, Message):
        yield from finish(result)
        return result
    if isinstance(result, Reply):
        if result.message is None:
            result.finish = finish
        else:  # resolved before it was handed over
            yield from finish(result.message)
        return result
    if isinstance(result, Abandonable):
        result.through(lambda awaitable: _awaited(awaitable, finish))
        return result
    return _awaited(result, finish)


async def _awaited(result: Awaitable[Message], finish: Finish) -> Message:
    message = await result
    await in_slices(finish(message))
    return message
