"""ACLs described, created and deleted (KIP-140).

| key | versions | what |
|--|--|--|
| 29 DescribeAcls | 1-3 | grouped by resource pattern; a filter that is malformed INVALID_REQUEST |
| 30 CreateAcls | 1-3 | each by itself; one that is there already succeeds |
| 31 DeleteAcls | 1-3 | by filters; what was deleted is told, of each filter |

A change is answered when it is stored and in force in this broker, and what a filter matches is
looked up in metadata, as Kafka's controller does; in other brokers a change is within moments,
and as long as one of them does not reach metadata it decides by what it knew. Without an authorizer
all of them are SECURITY_DISABLED. A request deletes DELETIONS_MAX ACLs at most: the filter that
goes beyond is INVALID_REQUEST, and deletes nothing.

Known deviations: an ACL or a filter that Kafka cannot read (of an unknown type) is INVALID_REQUEST;
Kafka closes the connection. Changes of one request are stored a document at a time, not all or
nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.api import Api, HandlerResult, Request, Steps, in_slices
from broker.security.acls.requests_core import DELETIONS_MAX, binding_of, filter_of
from metadata.store import MetadataError
from wire.kafka.api_keys import ApiKey
from wire.kafka.errors import ErrorCode, KafkaError
from wire.kafka.messages.acls import (
    AclCreationResult,
    AclDescription,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsResource,
    DescribeAclsResponse,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.security.acls.bindings import AclBinding, AclFilter
    from broker.security.acls.store import AclStore

_NO_AUTHORIZER = "No Authorizer is configured."
_NO_AUTHORIZER_HERE = "No Authorizer is configured on the broker"
_DISABLED = int(ErrorCode.SECURITY_DISABLED)
#: What an ACL costs that is compared, and one that is answered, in units of `Steps`.
COMPARED_UNITS = 2
ANSWERED_UNITS = 5


class AclsHandler:
    def __init__(self, store: AclStore | None) -> None:
        """None: there is no authorizer."""
        self._store = store

    def apis(self) -> list[Api]:
        return [
            Api(ApiKey.DESCRIBE_ACLS, 1, 3, self.describe_acls),
            Api(ApiKey.CREATE_ACLS, 1, 3, self.create_acls),
            Api(ApiKey.DELETE_ACLS, 1, 3, self.delete_acls),
        ]

    # -- DescribeAcls -----------------------------------------------------------------------------

    def describe_acls(self, request: Request) -> Steps[DescribeAclsResponse]:
        yield 1
        if self._store is None:
            return DescribeAclsResponse(error_code=_DISABLED, error_message=_NO_AUTHORIZER_HERE)
        try:
            wanted = filter_of(request.body)
        except KafkaError as error:
            return DescribeAclsResponse(error_code=int(error.code), error_message=error.message)
        resources: dict[tuple[object, ...], DescribeAclsResource] = {}
        for acl in (yield from self._matching(self._store, wanted)):
            yield ANSWERED_UNITS
            key = (acl.resource_type, acl.name, acl.pattern_type)
            resource = resources.get(key)
            if resource is None:
                resource = resources[key] = DescribeAclsResource(
                    int(acl.resource_type), acl.name, int(acl.pattern_type)
                )
            resource.acls.append(
                AclDescription(acl.principal, acl.host, int(acl.operation), int(acl.permission))
            )
        return DescribeAclsResponse(resources=list(resources.values()))

    @staticmethod
    def _matching(store: AclStore, wanted: AclFilter) -> Steps[list[AclBinding]]:
        found = []
        for acl in store.index.candidates(wanted):
            yield COMPARED_UNITS
            if wanted.matches(acl):
                found.append(acl)
        return found

    # -- CreateAcls -------------------------------------------------------------------------------

    def create_acls(self, request: Request) -> Steps[HandlerResult]:
        body: CreateAclsRequest = request.body
        wanted: list[AclBinding | KafkaError] = []
        for asked in body.creations:
            yield ANSWERED_UNITS
            if self._store is None:
                wanted.append(KafkaError(ErrorCode.SECURITY_DISABLED, _NO_AUTHORIZER))
                continue
            try:
                wanted.append(binding_of(asked))
            except KafkaError as error:
                wanted.append(error)
        if self._store is None or all(isinstance(each, KafkaError) for each in wanted):
            return (yield from _created(wanted, {}))
        return self._create(self._store, wanted)

    @staticmethod
    async def _create(store: AclStore, wanted: list[AclBinding | KafkaError]) -> CreateAclsResponse:
        failed = await store.add(each for each in wanted if not isinstance(each, KafkaError))
        return await in_slices(_created(wanted, failed))

    # -- DeleteAcls -------------------------------------------------------------------------------

    def delete_acls(self, request: Request) -> Steps[HandlerResult]:
        body: DeleteAclsRequest = request.body
        wanted: list[AclFilter | KafkaError] = []
        for asked in body.filters:
            yield COMPARED_UNITS
            if self._store is None:
                wanted.append(KafkaError(ErrorCode.SECURITY_DISABLED, _NO_AUTHORIZER))
                continue
            try:
                wanted.append(filter_of(asked))
            except KafkaError as error:
                wanted.append(error)
        if self._store is None or all(isinstance(each, KafkaError) for each in wanted):
            return (yield from _deleted(wanted, [], {}))
        return self._delete(self._store, wanted)

    def _found(
        self, store: AclStore, wanted: list[AclFilter | KafkaError], deleted: dict[AclBinding, None]
    ) -> Steps[list[list[AclBinding]]]:
        """Of each filter; one that goes too far becomes the error that it is answered with."""
        found: list[list[AclBinding]] = []
        for number, each in enumerate(wanted):
            yield 1
            matching: list[AclBinding] = []
            if not isinstance(each, KafkaError):
                try:
                    matching = yield from self._to_delete(store, each, deleted)
                except KafkaError as error:
                    wanted[number] = error
            found.append(matching)
        return found

    def _to_delete(
        self, store: AclStore, wanted: AclFilter, deleted: dict[AclBinding, None]
    ) -> Steps[list[AclBinding]]:
        """Beside what the request deletes already. KafkaError."""
        matching = yield from self._matching(store, wanted)
        added = 0
        for acl in matching:
            yield 1
            added += acl not in deleted
        if len(deleted) + added > DELETIONS_MAX:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"Cannot remove more than {DELETIONS_MAX} acls in a single delete operation.",
            )
        deleted.update(dict.fromkeys(matching))
        return matching

    async def _delete(
        self, store: AclStore, wanted: list[AclFilter | KafkaError]
    ) -> DeleteAclsResponse:
        deleted: dict[AclBinding, None] = {}
        try:
            await store.refresh()
        except MetadataError:
            away = KafkaError(ErrorCode.REQUEST_TIMED_OUT, "metadata did not answer")
            unasked = [each if isinstance(each, KafkaError) else away for each in wanted]
            return await in_slices(_deleted(unasked, [], {}))
        found = await in_slices(self._found(store, wanted, deleted))
        failed = await store.remove(deleted) if deleted else {}
        return await in_slices(_deleted(wanted, found, failed))


def _created(
    wanted: list[AclBinding | KafkaError], failed: dict[AclBinding, KafkaError]
) -> Steps[CreateAclsResponse]:
    response = CreateAclsResponse()
    for each in wanted:
        yield 1
        error = each if isinstance(each, KafkaError) else failed.get(each)
        response.results.append(
            AclCreationResult()
            if error is None
            else AclCreationResult(int(error.code), error.message)
        )
    return response


def _deleted(
    wanted: Sequence[AclFilter | KafkaError],
    found: list[list[AclBinding]],
    failed: dict[AclBinding, KafkaError],
) -> Steps[DeleteAclsResponse]:
    """`found`: of each filter; empty if all are errors."""
    response = DeleteAclsResponse()
    for number, each in enumerate(wanted):
        yield 1
        if isinstance(each, KafkaError):
            response.filter_results.append(DeleteAclsFilterResult(int(each.code), each.message))
            continue
        result = DeleteAclsFilterResult(0, None)
        response.filter_results.append(result)
        for acl in found[number]:
            yield ANSWERED_UNITS
            error = failed.get(acl)
            result.matching_acls.append(
                DeleteAclsMatchingAcl(
                    0 if error is None else int(error.code),
                    None if error is None else error.message,
                    int(acl.resource_type),
                    acl.name,
                    int(acl.pattern_type),
                    acl.principal,
                    acl.host,
                    int(acl.operation),
                    int(acl.permission),
                )
            )
    return response
