"""Client metrics (KIP-714; keys 71, 72)."""

import uuid

from wire.kafka.api_keys import ApiKey
from wire.kafka.message import (
    BOOL,
    BYTES,
    INT8,
    INT16,
    INT32,
    STRING,
    UUID,
    Message,
    array,
    field,
    request,
    response,
)
from wire.kafka.structs import declared


@request(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, "0", flexible="0+")
@declared
class GetTelemetrySubscriptionsRequest(Message):
    """What should this client report? A zero id asks for a new one."""

    client_instance_id: uuid.UUID = field(UUID, "0+")


@response(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, "0", flexible="0+")
@declared
class GetTelemetrySubscriptionsResponse(Message):
    """Metrics wanted, and how often."""

    throttle_time_ms: int = field(INT32, "0+")
    error_code: int = field(INT16, "0+")
    client_instance_id: uuid.UUID = field(UUID, "0+")
    subscription_id: int = field(INT32, "0+")
    accepted_compression_types: list[int] = field(array(INT8), "0+")
    push_interval_ms: int = field(INT32, "0+")
    telemetry_max_bytes: int = field(INT32, "0+")
    delta_temporality: bool = field(BOOL, "0+")
    requested_metrics: list[str] = field(array(STRING), "0+")


@request(ApiKey.PUSH_TELEMETRY, "0", flexible="0+")
@declared
class PushTelemetryRequest(Message):
    """OpenTelemetry metrics, perhaps compressed."""

    client_instance_id: uuid.UUID = field(UUID, "0+")
    subscription_id: int = field(INT32, "0+")
    terminating: bool = field(BOOL, "0+")
    compression_type: int = field(INT8, "0+")
    metrics: bytes = field(BYTES, "0+")


@response(ApiKey.PUSH_TELEMETRY, "0", flexible="0+")
@declared
class PushTelemetryResponse(Message):
    """The outcome."""

    throttle_time_ms: int = field(INT32, "0+")
    error_code: int = field(INT16, "0+")
