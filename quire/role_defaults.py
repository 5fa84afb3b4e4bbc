"""Where a role begins with other defaults than the declarations have.

A declaration's default is the one of Kafka or BookKeeper, or what fits a bookie and a broker of
their own. A standalone server is one machine with little data, and a broker whose bookies are other
processes keeps entries in memory. What these begin with instead is here, once, by the settings'
names: the roles take it from here, and docs/settings.md tells it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from runtime.settings import field_values, keys_of
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Of a topic by default, however many bookies there are.
COPIES_MAX = 3

#: Where BookKeeper's clusters look every ten minutes and once a day, one process with little data
#: gives space back within a minute or so. Its metadata is at hand, and the copying is limited.
GARBAGE = {
    "gcWaitTime": "10000",
    "minorCompactionInterval": "60",
    "majorCompactionInterval": "3600",
    "isThrottleByBytes": "true",
    "compactionRateByBytes": str(32 << 20),
}

#: What the bookies' entries may take of a process's memory: the partitions' ends, and what several
#: consumers read (ledger/entry_cache.py). For bookies in other processes.
ENTRY_CACHE = {"quire.entry.cache.size.mb": "64"}

#: A bookie that died is started again at once; one that stays away is another matter.
LOST_BOOKIES = {"lostBookieRecoveryDelay": "60"}


def copies(bookie_count: int) -> dict[str, str]:
    """Of a whole cluster on one machine: as many as Kafka clusters mostly have. Of three, two are
    the ack quorum (broker/cluster/durability.py)."""
    count = str(min(bookie_count, COPIES_MAX))
    return {
        "default.replication.factor": count,
        "offsets.topic.replication.factor": count,
        "transaction.state.log.replication.factor": count,
        "share.coordinator.state.topic.replication.factor": count,
    }


def ensemble_change(bookie_count: int) -> dict[str, str]:
    """Of a standalone server with several bookies. One that died is back in a moment, and with so
    few there is no other that could replace it."""
    return {"delayEnsembleChange": "true" if bookie_count <= COPIES_MAX else "false"}


def fields_by(cls: type[Any], defaults: Mapping[str, str]) -> dict[str, Any]:
    """The fields of `cls` that declare these settings, with these values. KeyError if it does not
    declare one."""
    keys = {key.name: key for key in keys_of(cls)}
    return field_values(cls, {name: keys[name].parse(text) for name, text in defaults.items()})


@dataclass(slots=True, frozen=True)
class RoleDefaults:
    """`role`: who begins with these."""

    role: str
    defaults: Mapping[str, str]


#: What docs/settings.md tells.
ROLES = (
    RoleDefaults("`quire standalone`: its bookies", GARBAGE),
    RoleDefaults("`quire standalone` with two bookies", copies(2) | ensemble_change(2)),
    RoleDefaults("`quire standalone` with three bookies", copies(3) | ensemble_change(3)),
    RoleDefaults("`quire standalone` with more", copies(4)),
    RoleDefaults("`quire standalone` with several bookies", ENTRY_CACHE | LOST_BOOKIES),
    RoleDefaults(
        "`quire broker`, also as a process of `quire standalone --processes N`", ENTRY_CACHE
    ),
)
