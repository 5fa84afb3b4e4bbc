"""Share groups in their broker: what their coordinator needs, and what partitions' leaders are told
of them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from broker.groups.share.ports import ShareNeighbours
from broker.groups.share.requests import ShareRequests
from broker.groups.share.types import ShareTimes
from broker.share.ends import PartitionEnds
from broker.share.ports import ShareGroupSettings

if TYPE_CHECKING:
    from broker.cluster.config_share import ShareGroupConfig
    from broker.cluster.registry import ConfigRegistry
    from broker.coordinator.ports import Logs
    from broker.groups.coordinator import GroupCoordinator
    from broker.share.ports import Persister
    from broker.transactions.ports import OtherBrokers

#: Groups whose settings are remembered.
GROUPS_KEPT = 10_000


def serve_share_groups(
    coordinator: GroupCoordinator,
    registry: ConfigRegistry,
    logs: Logs,
    brokers: OtherBrokers,
    persister: Persister,
) -> ShareRequests:
    """From now on the coordinator, which runs already, serves them."""
    neighbours = ShareNeighbours(persister, PartitionEnds(logs, brokers), partial(_times, registry))
    coordinator.serve_share_groups(neighbours)
    return ShareRequests(coordinator.base, coordinator.shares, neighbours)


def _times(registry: ConfigRegistry, group_id: str) -> ShareTimes:
    config = registry.share_group_config(group_id)
    return ShareTimes(
        config.share_session_timeout_ms,
        config.share_heartbeat_interval_ms,
        config.share_assignment_interval_ms,
    )


class KnownShareGroups:
    """A `ShareGroups` of broker/share/ports.py."""

    def __init__(self, registry: ConfigRegistry, requests: ShareRequests) -> None:
        self._registry = registry
        self._requests = requests
        self._known: dict[str, tuple[ShareGroupConfig, ShareGroupSettings]] = {}

    def settings(self, group_id: str) -> ShareGroupSettings:
        config = self._registry.share_group_config(group_id)
        known = self._known.get(group_id)
        if known is not None and known[0] is config:
            return known[1]
        settings = ShareGroupSettings(
            config.share_record_lock_duration_ms,
            config.share_delivery_count_limit,
            config.share_partition_max_record_locks,
            config.share_auto_offset_reset,
            config.share_isolation_level == "read_committed",
            config.share_renew_acknowledge_enable,
        )
        if len(self._known) >= GROUPS_KEPT:
            self._known.clear()
        self._known[group_id] = (config, settings)
        return settings

    def is_member(self, group_id: str, member_id: str) -> bool | None:
        return self._requests.is_member(group_id, member_id)
