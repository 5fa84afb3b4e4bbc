"""The ledger client's settings by BookKeeper's names (ClientConfiguration.java,
RegionAwareEnsemblePlacementPolicy.java): quorums' behaviour, quarantine, placement.

What is not set stays as whoever composes the client has it.
"""

from __future__ import annotations

import enum
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ledger.config import LedgerClientConfig
from ledger.network.auth import SaslSettings, sasl_login
from ledger.network.config import NetworkConfig
from ledger.network.tls_config import ClientTlsSettings, renewed_tls
from ledger.placement.candidates import BOOKIE_INFO_INTERVAL_SECONDS, BOOKIE_INFO_RETRY_SECONDS
from ledger.placement.spread import SpreadRules
from runtime.config import ConfigError, ConfigType, ConfigValue, at_least
from runtime.settings import field_values, keys_of, setting
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping


INT = ConfigType.INT
STRING = ConfigType.STRING
BOOLEAN = ConfigType.BOOLEAN


class Policy(enum.Enum):
    RANDOM = "DefaultEnsemblePlacementPolicy"
    RACKS = "RackawareEnsemblePlacementPolicy"
    REGIONS = "RegionAwareEnsemblePlacementPolicy"


@dataclass(slots=True, frozen=True)
class PlacementSettings:
    """As they are set. What they come to is a `PlacementConfig`."""

    policy: str | None = setting(
        "ensemblePlacementPolicy",
        STRING,
        doc="Rackaware-, RegionAware- or DefaultEnsemblePlacementPolicy, with or without package.",
    )
    min_racks: int = setting(
        "minNumRacksPerWriteQuorum", INT, "2", at_least(1), doc="Racks that hold an entry."
    )
    enforce_racks: bool = setting(
        "enforceMinNumRacksPerWriteQuorum", BOOLEAN, "false", doc="Else as far as can be."
    )
    regions: str | None = setting(
        "reppRegionsToWrite", STRING, doc="Regions, separated by «;»; else all."
    )
    min_regions: int = setting(
        "reppMinimumRegionsForDurability", INT, "2", at_least(1), doc="Of an acked entry."
    )
    is_weighted: bool = setting(
        "diskWeightBasedPlacementEnabled", BOOLEAN, "false", doc="By free space."
    )
    max_weight_multiple: int = setting(
        "bookieMaxMultipleForWeightBasedPlacement", INT, "3", at_least(0), doc="Of the median."
    )
    #: Where hosts are; at most one of them.
    script_path: str | None = setting(
        "networkTopologyScriptFileName", STRING, doc="Prints /region/rack of each host."
    )
    table_path: str | None = setting(
        "networkTopologyTableFileName", STRING, doc="Lines host=/region/rack."
    )
    info_interval_seconds: float = setting(
        "getBookieInfoIntervalSeconds",
        INT,
        None,
        at_least(1),
        doc="Between questions.",
        unset=BOOKIE_INFO_INTERVAL_SECONDS,
    )
    info_retry_seconds: float = setting(
        "getBookieInfoRetryIntervalSeconds",
        INT,
        None,
        at_least(1),
        doc="After a failure.",
        unset=BOOKIE_INFO_RETRY_SECONDS,
    )


@dataclass(slots=True, frozen=True)
class PlacementConfig:
    """What the settings of placement come to."""

    policy: Policy
    rules: SpreadRules
    #: Where hosts are; at most one of them.
    script_path: str | None
    table_path: str | None
    info_interval_seconds: float
    info_retry_seconds: float


#: Whose fields declare the ledger client's settings.
CLIENT_SETTINGS: tuple[type[Any], ...] = (
    *(NetworkConfig, ClientTlsSettings, SaslSettings, PlacementSettings, LedgerClientConfig),
)
CLIENT_KEYS = keys_of(*CLIENT_SETTINGS)


def client_config(
    values: Mapping[str, ConfigValue], base: LedgerClientConfig
) -> LedgerClientConfig:
    """`base` with what is set."""
    changes = field_values(LedgerClientConfig, values)
    if values.get("bookieHealthCheckEnabled") is False:
        changes["bookie_quarantine_ms"] = 0
    return replace(base, **changes)


def network_config(values: Mapping[str, ConfigValue], *, is_auditor: bool = False) -> NetworkConfig:
    """`is_auditor`: auto-recovery has a user of its own. ConfigError if there is to be TLS or SASL,
    and the files for it cannot be used."""
    changes = field_values(NetworkConfig, values)
    sasl = sasl_login(values, is_auditor=is_auditor)
    return NetworkConfig(**changes, tls=renewed_tls(values), sasl=sasl)


def placement_config(values: Mapping[str, ConfigValue]) -> PlacementConfig:
    """Without ensemblePlacementPolicy: random, or by racks as soon as something is said of racks
    or of space. ConfigError."""
    given = field_values(PlacementSettings, values)
    settings = PlacementSettings(**given)
    policy = _policy(settings.policy, is_anything_given=bool(given))
    if settings.script_path is not None and settings.table_path is not None:
        raise ConfigError(
            "networkTopologyTableFileName",
            "networkTopologyTableFileName: networkTopologyScriptFileName is set, too",
        )
    is_regional = policy is Policy.REGIONS
    rules = SpreadRules(
        min_racks=settings.min_racks,
        enforce_racks=settings.enforce_racks,
        min_regions=settings.min_regions if is_regional else 1,
        regions=_regions(settings.regions or "") if is_regional else (),
        is_weighted=settings.is_weighted,
        max_weight_multiple=settings.max_weight_multiple,
    )
    return PlacementConfig(
        policy,
        rules,
        settings.script_path,
        settings.table_path,
        settings.info_interval_seconds,
        settings.info_retry_seconds,
    )


def _regions(text: str) -> tuple[str, ...]:
    """As locations name them, with a slash in front."""
    names = [part.strip().strip("/") for part in text.split(";")]
    return tuple(f"/{name}" for name in names if name)


def _policy(text: str | None, *, is_anything_given: bool) -> Policy:
    """`is_anything_given`: one of all settings of placement."""
    name = (text or "").rpartition(".")[2]
    if not name:
        return Policy.RACKS if is_anything_given else Policy.RANDOM
    for policy in Policy:
        # BookKeeper's policies are in classes with and without Impl.
        if name.lower() in (policy.value.lower(), f"{policy.value}Impl".lower()):
            return policy
    known = ", ".join(policy.value for policy in Policy)
    raise ConfigError(
        "ensemblePlacementPolicy", f"ensemblePlacementPolicy: {name} is not known here; {known} are"
    )
