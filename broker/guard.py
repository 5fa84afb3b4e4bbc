"""Who says whether a request's needs are allowed, and a handler's function for those who may.

Dispatch asks an `Authorizer` for each `Need` of a request (broker/authorization.py) before the
handler sees it. Without an authorizer the answer to everything is yes, and nothing is asked: a
route then has the handler's own function, and not what `guarded` makes of it.

A request is refused as a whole when one of its needs is not allowed. Kafka refuses item by item
where a request names several topics or groups, and leaves out what may not be seen of «all there
are». So whoever brings an authorizer moves these two from here to the handlers that have the items;
until then this errs on the safe side.
"""

from __future__ import annotations

from types import GeneratorType
from typing import TYPE_CHECKING, Any, Protocol

from broker.authorization import ResourceType, is_carried
from wire.kafka.codec import response_class
from wire.kafka.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Iterable
    from uuid import UUID

    from broker.api import ConnectionInfo, HandlerFunction, HandlerResult, Request, Steps
    from broker.authorization import AclOperation, Extent, Need
    from wire.kafka.message import Message

_REFUSALS = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}


class Authorizer(Protocol):
    """Who may do what."""

    def allows(
        self,
        connection: ConnectionInfo,
        operation: AclOperation,
        resource: ResourceType,
        name: str | UUID | Extent,
    ) -> bool:
        """Whether the principal of `connection` may. Asked on the loop for each name of each
        request: from memory, within microseconds."""


def guarded(
    handle: HandlerFunction, needs: Iterable[Need], authorizer: Authorizer
) -> HandlerFunction:
    """`handle` for those whom `authorizer` lets. A step for each name that is asked about, as a
    request may name very many. `needs`: those of the version (`Need.in_version`)."""
    needs = tuple(needs)

    def asked(request: Request) -> Steps[HandlerResult]:
        for need in needs:
            if not (yield from _is_allowed(need, request, authorizer)):
                return _refusal(request, need)
        result = handle(request)
        if isinstance(result, GeneratorType):
            result = yield from result
        return result

    return asked


def _is_allowed(need: Need, request: Request, authorizer: Authorizer) -> Steps[bool]:
    refused = False
    for name in need.named_in(request.body):
        yield 1
        if not authorizer.allows(request.connection, need.operation, need.resource, name):
            refused = True
            break
    if not refused:
        return True
    return need.instead is not None and (yield from _is_allowed(need.instead, request, authorizer))


def _refusal(request: Request, need: Need) -> Message | None:
    """None, and the connection is closed, if the response has no place for it in this
    version: one that said nothing would be read as a success."""
    response: Any = response_class(request.key)()
    has_place = hasattr(response, "error_code")
    if not has_place or not is_carried(type(response), "error_code", request.version):
        request.connection.close()
        return None
    response.error_code = int(_REFUSALS[need.resource])
    refused: Message = response
    return refused
