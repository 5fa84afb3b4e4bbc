"""Clients' metrics (KIP-714): GetTelemetrySubscriptions, PushTelemetry.

| key | versions | what |
|--|--|--|
| 71 GetTelemetrySubscriptions | 0 | which metrics this client is to push, and how often |
| 72 PushTelemetry | 0 | OpenTelemetry's metrics, perhaps compressed |

What is wanted are the client-metrics resources (DescribeConfigs); what is pushed is shown on the
page of metrics (quire/metrics/telemetry.py). A push has telemetry.max.bytes at most, compressed and
not, and is read on a worker thread. Requests, errors and their order are those of Kafka's
ClientMetricsManager.
Known deviations: Kafka announces both only with a plug-in that takes the metrics, which here is the
page; sums are asked for since the client's start, and not since its last push, for a page that is
scraped from time to time needs them so; a client is forgotten by its time, and not when its
connection ends; what comes to more than telemetry.max.bytes is TELEMETRY_TOO_LARGE; patterns of a
subscription are RE2's, without references back and look-around.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.api import Api, Request
from broker.telemetry.otlp import Point, points_of
from wire.kafka.api_keys import ApiKey
from wire.kafka.errors import ErrorCode, KafkaError, WireError
from wire.kafka.message import ZERO_UUID
from wire.kafka.messages.telemetry import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
    PushTelemetryRequest,
    PushTelemetryResponse,
)
from wire.kafka.records.compression import Compression, SizeLimitError, decompress

if TYPE_CHECKING:
    from broker.telemetry.clients import Instance, TelemetryClients
    from runtime.disk import Disk

#: In the order of preference, as Kafka's.
ACCEPTED = (Compression.ZSTD, Compression.LZ4, Compression.GZIP, Compression.SNAPPY)
#: Kafka's `Uuid.RESERVED`: nobody's.
_RESERVED = (0, 1)


class TelemetryHandler:
    def __init__(self, clients: TelemetryClients, disk: Disk, bytes_max: int) -> None:
        """`disk` runs what takes long. `bytes_max`: telemetry.max.bytes."""
        self._clients = clients
        self._disk = disk
        self._bytes_max = bytes_max

    def apis(self) -> list[Api]:
        return [
            Api(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, 0, 0, self.get_subscriptions),
            Api(ApiKey.PUSH_TELEMETRY, 0, 0, self.push),
        ]

    def get_subscriptions(self, request: Request) -> GetTelemetrySubscriptionsResponse:
        body: GetTelemetrySubscriptionsRequest = request.body
        known = None if body.client_instance_id == ZERO_UUID else body.client_instance_id
        try:
            instance = self._clients.asked(known, request.client_id, request.connection)
        except KafkaError as error:
            return GetTelemetrySubscriptionsResponse(error_code=int(error.code))
        return GetTelemetrySubscriptionsResponse(
            client_instance_id=instance.id,
            subscription_id=instance.subscription_id,
            accepted_compression_types=[int(codec) for codec in ACCEPTED],
            push_interval_ms=instance.interval_ms,
            telemetry_max_bytes=self._bytes_max,
            delta_temporality=False,
            requested_metrics=list(instance.metrics),
        )

    async def push(self, request: Request) -> PushTelemetryResponse:
        body: PushTelemetryRequest = request.body
        try:
            if body.client_instance_id.int in _RESERVED:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "no client has this id")
            instance = self._clients.pushing(
                body.client_instance_id,
                request.client_id,
                request.connection,
                subscription_id=body.subscription_id,
                is_terminating=body.terminating,
            )
            await self._take(instance, body)
        except KafkaError as error:
            return PushTelemetryResponse(error_code=int(error.code))
        return PushTelemetryResponse()

    async def _take(self, instance: Instance, body: PushTelemetryRequest) -> None:
        """KafkaError."""
        try:
            if body.compression_type not in tuple(Compression):
                raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
            if len(body.metrics) > self._bytes_max:
                raise KafkaError(ErrorCode.TELEMETRY_TOO_LARGE)
            if body.metrics:
                codec = Compression(body.compression_type)
                # The frame's memory is used again.
                data = bytes(body.metrics)
                points = await self._disk.run(read_pushed, data, codec, self._bytes_max)
                self._clients.take(instance, points)
        except KafkaError as error:
            self._clients.refused_count += 1
            instance.last_error = error.code
            raise


def read_pushed(data: bytes, codec: Compression, bytes_max: int) -> list[Point]:
    """KafkaError: TELEMETRY_TOO_LARGE, INVALID_RECORD."""
    try:
        if codec is not Compression.NONE:
            data = decompress(codec, data, bytes_max)
        return points_of(data)
    except SizeLimitError as error:
        raise KafkaError(ErrorCode.TELEMETRY_TOO_LARGE, str(error)) from None
    except (WireError, ValueError) as error:
        raise KafkaError(ErrorCode.INVALID_RECORD, str(error)) from None
