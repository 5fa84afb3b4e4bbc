"""Access control lists (keys 29-31)."""

from wire.kafka.api_keys import ApiKey
from wire.kafka.message import INT8, INT16, INT32, STRING, Message, array, field, request, response
from wire.kafka.structs import Struct, declared


@request(ApiKey.DESCRIBE_ACLS, "0-3", flexible="2+")
@declared
class DescribeAclsRequest(Message):
    """Find ACLs. 1: pattern type (KIP-290)."""

    resource_type_filter: int = field(INT8, "0+")
    resource_name_filter: str | None = field(STRING, "0+", null="0+")
    pattern_type_filter: int = field(INT8, "1+", default=3)
    principal_filter: str | None = field(STRING, "0+", null="0+")
    host_filter: str | None = field(STRING, "0+", null="0+")
    operation: int = field(INT8, "0+")
    permission_type: int = field(INT8, "0+")


@declared
class AclDescription(Struct):
    principal: str = field(STRING, "0+")
    host: str = field(STRING, "0+")
    operation: int = field(INT8, "0+")
    permission_type: int = field(INT8, "0+")


@declared
class DescribeAclsResource(Struct):
    resource_type: int = field(INT8, "0+")
    resource_name: str = field(STRING, "0+")
    pattern_type: int = field(INT8, "1+", default=3)
    acls: list[AclDescription] = field(array(AclDescription), "0+")


@response(ApiKey.DESCRIBE_ACLS, "0-3", flexible="2+")
@declared
class DescribeAclsResponse(Message):
    """Grouped by resource."""

    throttle_time_ms: int = field(INT32, "0+")
    error_code: int = field(INT16, "0+")
    error_message: str | None = field(STRING, "0+", null="0+")
    resources: list[DescribeAclsResource] = field(array(DescribeAclsResource), "0+")


@declared
class AclCreation(Struct):
    resource_type: int = field(INT8, "0+")
    resource_name: str = field(STRING, "0+")
    resource_pattern_type: int = field(INT8, "1+", default=3)
    principal: str = field(STRING, "0+")
    host: str = field(STRING, "0+")
    operation: int = field(INT8, "0+")
    permission_type: int = field(INT8, "0+")


@request(ApiKey.CREATE_ACLS, "0-3", flexible="2+")
@declared
class CreateAclsRequest(Message):
    """Add ACLs. 1: pattern type (KIP-290)."""

    creations: list[AclCreation] = field(array(AclCreation), "0+")


@declared
class AclCreationResult(Struct):
    error_code: int = field(INT16, "0+")
    error_message: str | None = field(STRING, "0+", null="0+")


@response(ApiKey.CREATE_ACLS, "0-3", flexible="2+")
@declared
class CreateAclsResponse(Message):
    """A result per ACL, in order."""

    throttle_time_ms: int = field(INT32, "0+")
    results: list[AclCreationResult] = field(array(AclCreationResult), "0+")


@declared
class DeleteAclsFilter(Struct):
    resource_type_filter: int = field(INT8, "0+")
    resource_name_filter: str | None = field(STRING, "0+", null="0+")
    pattern_type_filter: int = field(INT8, "1+", default=3)
    principal_filter: str | None = field(STRING, "0+", null="0+")
    host_filter: str | None = field(STRING, "0+", null="0+")
    operation: int = field(INT8, "0+")
    permission_type: int = field(INT8, "0+")


@request(ApiKey.DELETE_ACLS, "0-3", flexible="2+")
@declared
class DeleteAclsRequest(Message):
    """Remove all ACLs that match filters."""

    filters: list[DeleteAclsFilter] = field(array(DeleteAclsFilter), "0+")


@declared
class DeleteAclsMatchingAcl(Struct):
    error_code: int = field(INT16, "0+")
    error_message: str | None = field(STRING, "0+", null="0+")
    resource_type: int = field(INT8, "0+")
    resource_name: str = field(STRING, "0+")
    pattern_type: int = field(INT8, "1+", default=3)
    principal: str = field(STRING, "0+")
    host: str = field(STRING, "0+")
    operation: int = field(INT8, "0+")
    permission_type: int = field(INT8, "0+")


@declared
class DeleteAclsFilterResult(Struct):
    error_code: int = field(INT16, "0+")
    error_message: str | None = field(STRING, "0+", null="0+")
    matching_acls: list[DeleteAclsMatchingAcl] = field(array(DeleteAclsMatchingAcl), "0+")


@response(ApiKey.DELETE_ACLS, "0-3", flexible="2+")
@declared
class DeleteAclsResponse(Message):
    """The removed ACLs per filter."""

    throttle_time_ms: int = field(INT32, "0+")
    filter_results: list[DeleteAclsFilterResult] = field(array(DeleteAclsFilterResult), "0+")
