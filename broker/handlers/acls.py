"""ACLs described, created and deleted (KIP-140).

| key | versions | what |
|--|--|--|
| 29 DescribeAcls | 1-3 | grouped by resource pattern; a filter that is malformed INVALID_REQUEST |
| 30 CreateAcls | 1-3 | each by itself; one that is there already succeeds |
| 31 DeleteAcls | 1-3 | by filters; what was deleted is told, of each filter |

A change is answered when it is stored and in force in this broker; in others it is within moments,
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
    from broker.security.acls.bindings import AclBinding, AclFilter
    from broker.security.acls.store import AclStore
    from wire.kafka.messages.acls import DeleteAclsFilter

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
        found: list[list[AclBinding] | KafkaError] = []
        deleted: dict[AclBinding, None] = {}
        for asked in body.filters:
            yield COMPARED_UNITS
            try:
                found.append((yield from self._to_delete(asked, deleted)))
            except KafkaError as error:
                found.append(error)
        if self._store is None or not deleted:
            return (yield from _deleted(found, {}))
        return self._delete(self._store, found, deleted)

    def _to_delete(
        self, asked: DeleteAclsFilter, deleted: dict[AclBinding, None]
    ) -> Steps[list[AclBinding]]:
        """Beside what the request deletes already. KafkaError."""
        if self._store is None:
            raise KafkaError(ErrorCode.SECURITY_DISABLED, _NO_AUTHORIZER)
        matching = yield from self._matching(self._store, filter_of(asked))
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

    @staticmethod
    async def _delete(
        store: AclStore,
        found: list[list[AclBinding] | KafkaError],
        deleted: dict[AclBinding, None],
    ) -> DeleteAclsResponse:
        failed = await store.remove(deleted)
        return await in_slices(_deleted(found, failed))


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
    found: list[list[AclBinding] | KafkaError], failed: dict[AclBinding, KafkaError]
) -> Steps[DeleteAclsResponse]:
    response = DeleteAclsResponse()
    for each in found:
        yield 1
        if isinstance(each, KafkaError):
            response.filter_results.append(DeleteAclsFilterResult(int(each.code), each.message))
            continue
        result = DeleteAclsFilterResult(0, None)
        response.filter_results.append(result)
        for acl in each:
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
