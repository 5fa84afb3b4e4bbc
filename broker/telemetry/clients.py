"""Clients that push metrics (KIP-714): what each is asked for, how often, and what it said last.

A client's subscription is what all client-metrics resources that match it ask for together. As in
Kafka 16,384 clients are remembered at most, each for three of its intervals and a minute at least,
and nothing is written: a client that comes to another broker, or after a restart, is simply asked
again. The figures are kept for whoever scrapes this broker (quire/metrics/telemetry.py).
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from dataclasses import field
from typing import TYPE_CHECKING

import crc32c

from broker.cluster.config_group import CLIENT_METRICS_CONFIGS
from broker.cluster.registry import Room
from broker.regex import Pattern
from runtime.config import ConfigError
from runtime.logs import kv
from wire.dataclass import dataclass
from wire.kafka.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from uuid import UUID

    from broker.api import ConnectionInfo
    from broker.cluster.registry import ConfigRegistry
    from broker.telemetry.otlp import Labels, Point
    from runtime.env import Env

logger = logging.getLogger(__name__)

INTERVAL_MS_DEFAULT = 300_000
ALL_METRICS = "*"
INSTANCES_MAX = 16_384
EXPIRY_SECONDS_MIN = 60.0
#: Of a client's id that is remembered, for the page of metrics; one may have 32 KB.
CLIENT_ID_LENGTH_MAX = 200
#: Of all clients together: each is a line of the page of metrics.
SERIES_MAX = 20_000
#: Beyond these a client may ask anew at once.
_MAY_ASK_ANEW = (ErrorCode.UNKNOWN_SUBSCRIPTION_ID, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
_NEVER = float("-inf")


@dataclass(slots=True, frozen=True)
class Subscription:
    """One client-metrics resource."""

    metrics: tuple[str, ...]
    interval_ms: int
    match: Mapping[str, Pattern]

    def matches(self, client: Mapping[str, str]) -> bool:
        return all(pattern.matches(client.get(label, "")) for label, pattern in self.match.items())


@dataclass(slots=True)
class Instance:
    """A client, in one life of it."""

    id: UUID
    client_id: str
    #: Of the subscriptions when this was made.
    version: int
    metrics: tuple[str, ...]
    interval_ms: int
    subscription_id: int
    used: float
    got: float = _NEVER
    pushed: float = _NEVER
    is_terminating: bool = False
    last_error: ErrorCode = ErrorCode.NONE
    series: dict[tuple[str, Labels], float] = field(default_factory=dict)

    @property
    def expires(self) -> float:
        return self.used + max(EXPIRY_SECONDS_MIN, 3 * self.interval_ms / 1000)


class TelemetryClients:
    def __init__(self, registry: ConfigRegistry, env: Env) -> None:
        self._registry = registry
        self._env = env
        self._subscriptions: list[Subscription] = []
        self._version = 0
        self._instances: OrderedDict[UUID, Instance] = OrderedDict()
        self._series_count = 0
        #: Kafka's: of requests before their time, of unknown subscriptions, of data refused.
        self.throttled_count = 0
        self.unknown_subscription_count = 0
        self.refused_count = 0
        self.pushed_count = 0
        registry.subscribe_room(Room.CLIENT_METRICS, self._follow)
        self._follow()

    def __len__(self) -> int:
        return len(self._instances)

    def _follow(self) -> None:
        self._version += 1
        self._subscriptions = []
        for name in self._registry.stored_names(Room.CLIENT_METRICS):
            try:
                self._subscriptions.append(
                    subscription_of(self._registry.stored(Room.CLIENT_METRICS, name))
                )
            except (ConfigError, KafkaError) as error:
                logger.error("subscription_not_understood", kv(name=name, error=error))

    # -- requests ---------------------------------------------------------------------------------

    def asked(self, instance_id: UUID | None, client_id: str, by: ConnectionInfo) -> Instance:
        """What the client is to push; None: one that has no id yet. KafkaError
        THROTTLING_QUOTA_EXCEEDED if it asks before its time."""
        instance = self._instance(instance_id, client_id, by)
        now = instance.used
        if now - max(instance.got, instance.pushed) < instance.interval_ms / 1000:
            if instance.last_error not in _MAY_ASK_ANEW:
                raise self._too_early(instance)
        else:
            instance.got = now
        instance.last_error = ErrorCode.NONE
        return instance

    def pushing(
        self,
        instance_id: UUID,
        client_id: str,
        by: ConnectionInfo,
        *,
        subscription_id: int,
        is_terminating: bool,
    ) -> Instance:
        """Who pushes now. KafkaError: INVALID_REQUEST after its last push,
        THROTTLING_QUOTA_EXCEEDED before its time, UNKNOWN_SUBSCRIPTION_ID."""
        instance = self._instance(instance_id, client_id, by)
        was_terminating, instance.is_terminating = instance.is_terminating, is_terminating
        now = instance.used
        if was_terminating:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"Client [{instance_id}] sent the previous request with state terminating to TRUE",
            )
        # Its first push after it asked may come early: it spreads its pushes by chance.
        is_early = now - instance.pushed < instance.interval_ms / 1000
        if is_early and instance.got <= instance.pushed and not is_terminating:
            raise self._too_early(instance)
        if not is_early or instance.got > instance.pushed:
            instance.pushed = now
        if subscription_id != instance.subscription_id:
            self.unknown_subscription_count += 1
            instance.last_error = ErrorCode.UNKNOWN_SUBSCRIPTION_ID
            raise KafkaError(
                ErrorCode.UNKNOWN_SUBSCRIPTION_ID,
                f"Unknown client subscription id for the client [{instance_id}]",
            )
        instance.last_error = ErrorCode.NONE
        return instance

    def _too_early(self, instance: Instance) -> KafkaError:
        self.throttled_count += 1
        instance.last_error = ErrorCode.THROTTLING_QUOTA_EXCEEDED
        return KafkaError(
            ErrorCode.THROTTLING_QUOTA_EXCEEDED,
            f"Request from the client [{instance.id}] arrived before the next push interval time",
        )

    def take(self, instance: Instance, points: Iterable[Point]) -> None:
        """The newest values of what it pushed. What would be too many series is left out."""
        series = instance.series
        current = self._instances.get(instance.id)
        if current is None or current.series is not series:
            return  # it was forgotten meanwhile
        for point in points:
            key = point.name, point.labels
            before = series.get(key)
            if before is None:
                if self._series_count >= SERIES_MAX:
                    continue
                self._series_count += 1
            series[key] = point.value + (before or 0.0) if point.is_delta else point.value
        self.pushed_count += 1

    # -- clients ----------------------------------------------------------------------------------

    def _instance(self, instance_id: UUID | None, client_id: str, by: ConnectionInfo) -> Instance:
        now = self._env.clock.monotonic()
        self._forget_expired(now)
        if instance_id is None:
            instance_id = self._env.new_uuid()
        instance = self._instances.get(instance_id)
        if instance is None:
            while len(self._instances) >= INSTANCES_MAX:
                self._forget(next(iter(self._instances)))
            instance = self._made(instance_id, client_id, by, now)
        elif instance.version != self._version:
            instance, before = self._made(instance_id, client_id, by, now), instance
            instance.series = before.series
        self._instances[instance_id] = instance
        self._instances.move_to_end(instance_id)
        instance.used = now
        return instance

    def _made(self, instance_id: UUID, client_id: str, by: ConnectionInfo, now: float) -> Instance:
        client = {
            "client_instance_id": str(instance_id),
            "client_id": client_id,
            "client_software_name": by.client_software_name,
            "client_software_version": by.client_software_version,
            "client_source_address": by.peer_host,
            "client_source_port": by.peer_port,
        }
        matching = [each for each in self._subscriptions if each.matches(client)]
        metrics = {name for each in matching for name in each.metrics}
        wanted = (ALL_METRICS,) if ALL_METRICS in metrics else tuple(sorted(metrics))
        intervals = [each.interval_ms for each in matching]
        interval_ms = min([INTERVAL_MS_DEFAULT, *intervals])
        said = crc32c.crc32c(f"{wanted}{interval_ms}".encode())
        number = (said ^ instance_id.int) & 0xFFFFFFFF
        signed = number - (1 << 32) if number >> 31 else number
        shown = client_id[:CLIENT_ID_LENGTH_MAX]
        return Instance(instance_id, shown, self._version, wanted, interval_ms, signed, used=now)

    def _forget_expired(self, now: float) -> None:
        """Who was not used for longest is looked at first."""
        while self._instances:
            oldest = next(iter(self._instances.values()))
            if now < oldest.expires:
                return
            self._forget(oldest.id)

    def _forget(self, instance_id: UUID) -> None:
        self._series_count -= len(self._instances.pop(instance_id).series)

    def series(self) -> Iterator[tuple[Instance, str, Labels, float]]:
        """All newest values of clients that are there yet. Between two of them others may have the
        loop, and push."""
        now = self._env.clock.monotonic()
        for instance in list(self._instances.values()):
            if now < instance.expires:
                for (name, labels), value in list(instance.series.items()):
                    yield instance, name, labels, value


def subscription_of(texts: Mapping[str, str]) -> Subscription:
    """ConfigError, KafkaError."""
    values = CLIENT_METRICS_CONFIGS.parse(texts)
    interval_ms = values.get("interval.ms", INTERVAL_MS_DEFAULT)
    metrics, match = values.get("metrics", ()), values.get("match", ())
    assert isinstance(interval_ms, int)
    assert isinstance(metrics, tuple)
    assert isinstance(match, tuple)
    pairs = (element.partition("=") for element in match)
    patterns = {label.strip(): Pattern(pattern.strip()) for label, _, pattern in pairs}
    return Subscription(metrics, interval_ms, patterns)
