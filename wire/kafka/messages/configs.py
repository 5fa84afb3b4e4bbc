"""Configurations and client quotas (keys 32, 33, 44, 48, 49, 74)."""

from wire.kafka.api_keys import ApiKey
from wire.kafka.message import (
    BOOL,
    FLOAT64,
    INT8,
    INT16,
    INT32,
    STRING,
    Message,
    array,
    field,
    request,
    response,
)
from wire.kafka.structs import Struct, declared


@declared
class DescribeConfigsResource(Struct):
    resource_type: int = field(INT8, "0+")
    resource_name: str = field(STRING, "0+")
    configuration_keys: list[str] | None = field(array(STRING), "0+", null="0+")


@request(ApiKey.DESCRIBE_CONFIGS, "0-4", flexible="4+")
@declared
class DescribeConfigsRequest(Message):
    """Read configurations. 1: synonyms (KIP-226); 3: documentation (KIP-569)."""

    resources: list[DescribeConfigsResource] = field(array(DescribeConfigsResource), "0+")
    include_synonyms: bool = field(BOOL, "1+")
    include_documentation: bool = field(BOOL, "3+")


@declared
class DescribeConfigsSynonym(Struct):
    name: str = field(STRING, "1+")
    value: str | None = field(STRING, "1+", null="0+")
    source: int = field(INT8, "1+")


@declared
class DescribeConfigsResourceResult(Struct):
    name: str = field(STRING, "0+")
    value: str | None = field(STRING, "0+", null="0+")
    read_only: bool = field(BOOL, "0+")
    # Version 0 alone.
    is_default: bool = field(BOOL, "0")
    config_source: int = field(INT8, "1+", default=-1)
    is_sensitive: bool = field(BOOL, "0+")
    synonyms: list[DescribeConfigsSynonym] = field(array(DescribeConfigsSynonym), "1+")
    config_type: int = field(INT8, "3+")
    documentation: str | None = field(STRING, "3+", null="0+")


@declared
class DescribeConfigsResult(Struct):
    error_code: int = field(INT16, "0+")
    error_message: str | None = field(STRING, "0+", null="0+")
    resource_type: int = field(INT8, "0+")
    resource_name: str = field(STRING, "0+")
    configs: list[DescribeConfigsResourceResult] = field(array(DescribeConfigsResourceResult), "0+")


@response(ApiKey.DESCRIBE_CONFIGS, "0-4", flexible="4+")
@declared
class DescribeConfigsResponse(Message):
    """Version 0 tells `is_default` where later ones tell `config_source`."""

    throttle_time_ms: int = field(INT32, "0+")
    results: list[DescribeConfigsResult] = field(array(DescribeConfigsResult), "0+")


@declared
class AlterConfigsRequestAlterableConfig(Struct):
    name: str = field(STRING, "0+")
    value: str | None = field(STRING, "0+", null="0+")


@declared
class AlterConfigsRequestAlterConfigsResource(Struct):
    resource_type: int = field(INT8, "0+")
    resource_name: str = field(STRING, "0+")
    configs: list[AlterConfigsRequestAlterableConfig] = field(
        array(AlterConfigsRequestAlterableConfig), "0+"
    )


@request(ApiKey.ALTER_CONFIGS, "0-2", flexible="2+")
@declared
class AlterConfigsRequest(Message):
    """Replace configurations as a whole (KIP-133)."""

    resources: list[AlterConfigsRequestAlterConfigsResource] = field(
        array(AlterConfigsRequestAlterConfigsResource), "0+"
    )
    validate_only: bool = field(BOOL, "0+")


@declared
class AlterConfigsResourceResponse(Struct):
    error_code: int = field(INT16, "0+")
    error_message: str | None = field(STRING, "0+", null="0+")
    resource_type: int = field(INT8, "0+")
    resource_name: str = field(STRING, "0+")


@response(ApiKey.ALTER_CONFIGS, "0-2", flexible="2+")
@declared
class AlterConfigsResponse(Message):
    """A result per resource."""

    throttle_time_ms: int = field(INT32, "0+")
    responses: list[AlterConfigsResourceResponse] = field(array(AlterConfigsResourceResponse), "0+")


@declared
class IncrementalAlterConfigsRequestAlterableConfig(Struct):
    name: str = field(STRING, "0+")
    config_operation: int = field(INT8, "0+")
    value: str | None = field(STRING, "0+", null="0+")


@declared
class IncrementalAlterConfigsRequestAlterConfigsResource(Struct):
    resource_type: int = field(INT8, "0+")
    resource_name: str = field(STRING, "0+")
    configs: list[IncrementalAlterConfigsRequestAlterableConfig] = field(
        array(IncrementalAlterConfigsRequestAlterableConfig), "0+"
    )


@request(ApiKey.INCREMENTAL_ALTER_CONFIGS, "0-1", flexible="1+")
@declared
class IncrementalAlterConfigsRequest(Message):
    """Set, delete, append, subtract (KIP-339)."""

    resources: list[IncrementalAlterConfigsRequestAlterConfigsResource] = field(
        array(IncrementalAlterConfigsRequestAlterConfigsResource), "0+"
    )
    validate_only: bool = field(BOOL, "0+")


@response(ApiKey.INCREMENTAL_ALTER_CONFIGS, "0-1", flexible="1+")
@declared
class IncrementalAlterConfigsResponse(Message):
    """A result per resource."""

    throttle_time_ms: int = field(INT32, "0+")
    responses: list[AlterConfigsResourceResponse] = field(array(AlterConfigsResourceResponse), "0+")


@request(ApiKey.LIST_CONFIG_RESOURCES, "0-1", flexible="0+")
@declared
class ListConfigResourcesRequest(Message):
    """Names of configurable resources (KIP-1142); version 0: client metrics alone (KIP-1000)."""

    resource_types: list[int] = field(array(INT8), "1+")


@declared
class ConfigResource(Struct):
    resource_name: str = field(STRING, "0+")
    resource_type: int = field(INT8, "1+", default=16)


@response(ApiKey.LIST_CONFIG_RESOURCES, "0-1", flexible="0+")
@declared
class ListConfigResourcesResponse(Message):
    """1: with their types."""

    throttle_time_ms: int = field(INT32, "0+")
    error_code: int = field(INT16, "0+")
    config_resources: list[ConfigResource] = field(array(ConfigResource), "0+")


@declared
class ComponentData(Struct):
    entity_type: str = field(STRING, "0+")
    match_type: int = field(INT8, "0+")
    match: str | None = field(STRING, "0+", null="0+")


@request(ApiKey.DESCRIBE_CLIENT_QUOTAS, "0-1", flexible="1+")
@declared
class DescribeClientQuotasRequest(Message):
    """Read quotas (KIP-546)."""

    components: list[ComponentData] = field(array(ComponentData), "0+")
    strict: bool = field(BOOL, "0+")


@declared
class EntityData(Struct):
    entity_type: str = field(STRING, "0+")
    entity_name: str | None = field(STRING, "0+", null="0+")


@declared
class ValueData(Struct):
    key: str = field(STRING, "0+")
    value: float = field(FLOAT64, "0+")


@declared
class DescribeClientQuotasResponseEntryData(Struct):
    entity: list[EntityData] = field(array(EntityData), "0+")
    values: list[ValueData] = field(array(ValueData), "0+")


@response(ApiKey.DESCRIBE_CLIENT_QUOTAS, "0-1", flexible="1+")
@declared
class DescribeClientQuotasResponse(Message):
    """`entries` is null on error."""

    throttle_time_ms: int = field(INT32, "0+")
    error_code: int = field(INT16, "0+")
    error_message: str | None = field(STRING, "0+", null="0+")
    entries: list[DescribeClientQuotasResponseEntryData] | None = field(
        array(DescribeClientQuotasResponseEntryData), "0+", null="0+"
    )


@declared
class OpData(Struct):
    key: str = field(STRING, "0+")
    value: float = field(FLOAT64, "0+")
    remove: bool = field(BOOL, "0+")


@declared
class AlterClientQuotasRequestEntryData(Struct):
    entity: list[EntityData] = field(array(EntityData), "0+")
    ops: list[OpData] = field(array(OpData), "0+")


@request(ApiKey.ALTER_CLIENT_QUOTAS, "0-1", flexible="1+")
@declared
class AlterClientQuotasRequest(Message):
    """Change quotas (KIP-546)."""

    entries: list[AlterClientQuotasRequestEntryData] = field(
        array(AlterClientQuotasRequestEntryData), "0+"
    )
    validate_only: bool = field(BOOL, "0+")


@declared
class AlterClientQuotasResponseEntryData(Struct):
    error_code: int = field(INT16, "0+")
    error_message: str | None = field(STRING, "0+", null="0+")
    entity: list[EntityData] = field(array(EntityData), "0+")


@response(ApiKey.ALTER_CLIENT_QUOTAS, "0-1", flexible="1+")
@declared
class AlterClientQuotasResponse(Message):
    """A result per entity."""

    throttle_time_ms: int = field(INT32, "0+")
    entries: list[AlterClientQuotasResponseEntryData] = field(
        array(AlterClientQuotasResponseEntryData), "0+"
    )
