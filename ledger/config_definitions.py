"""The ledger client's settings by BookKeeper's names (ClientConfiguration.java,
RegionAwareEnsemblePlacementPolicy.java): quorums' behaviour, quarantine, placement.

What is not set stays as whoever composes the client has it.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ledger.config import LedgerClientConfig
from ledger.network.auth import SaslSettings, sasl_login
from ledger.network.config import NetworkConfig
from ledger.network.tls_config import ClientTlsSettings, tls_context
from ledger.placement.candidates import BOOKIE_INFO_INTERVAL_SECONDS, BOOKIE_INFO_RETRY_SECONDS
from ledger.placement.spread import SpreadRules
from runtime.config import ConfigError, ConfigKey, ConfigType, ConfigValue, at_least
from runtime.settings import field_values, keys_of, made_of

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
class PlacementConfig:
    policy: Policy = field(
        default=Policy.RANDOM,
        metadata=made_of(
            ConfigKey(
                "ensemblePlacementPolicy",
                STRING,
                None,
                "Rackaware-, RegionAware- or DefaultEnsemblePlacementPolicy, with or without"
                " package.",
            )
        ),
    )
    rules: SpreadRules = field(
        default_factory=SpreadRules,
        metadata=made_of(
            ConfigKey(
                "minNumRacksPerWriteQuorum", INT, "2", "Racks that hold an entry.", at_least(1)
            ),
            ConfigKey(
                "enforceMinNumRacksPerWriteQuorum", BOOLEAN, "false", "Else as far as can be."
            ),
            ConfigKey("reppRegionsToWrite", STRING, None, "Regions, separated by «;»; else all."),
            ConfigKey(
                "reppMinimumRegionsForDurability", INT, "2", "Of an acked entry.", at_least(1)
            ),
            ConfigKey("diskWeightBasedPlacementEnabled", BOOLEAN, "false", "By free space."),
            ConfigKey(
                "bookieMaxMultipleForWeightBasedPlacement", INT, "3", "Of the median.", at_least(0)
            ),
        ),
    )
    #: Where hosts are; at most one of them.
    script_path: str | None = field(
        default=None,
        metadata=made_of(
            ConfigKey(
                "networkTopologyScriptFileName", STRING, None, "Prints /region/rack of each host."
            )
        ),
    )
    table_path: str | None = field(
        default=None,
        metadata=made_of(
            ConfigKey("networkTopologyTableFileName", STRING, None, "Lines host=/region/rack.")
        ),
    )
    info_interval_seconds: float = field(
        default=BOOKIE_INFO_INTERVAL_SECONDS,
        metadata=made_of(
            ConfigKey("getBookieInfoIntervalSeconds", INT, None, "Between questions.", at_least(1))
        ),
    )
    info_retry_seconds: float = field(
        default=BOOKIE_INFO_RETRY_SECONDS,
        metadata=made_of(
            ConfigKey(
                "getBookieInfoRetryIntervalSeconds", INT, None, "After a failure.", at_least(1)
            )
        ),
    )


#: Whose fields declare the ledger client's settings.
CLIENT_SETTINGS: tuple[type[Any], ...] = (
    *(NetworkConfig, ClientTlsSettings, SaslSettings, PlacementConfig, LedgerClientConfig),
)
CLIENT_KEYS = keys_of(*CLIENT_SETTINGS)


def client_config(
    values: Mapping[str, ConfigValue], base: LedgerClientConfig
) -> LedgerClientConfig:
    """`base` with what is set. ConfigError."""
    changes = field_values(LedgerClientConfig, values)
    if values.get("bookieHealthCheckEnabled") is False:
        changes["bookie_quarantine_ms"] = 0
    try:
        return replace(base, **changes)
    except ValueError as error:
        raise ConfigError("", f"ledger client: {error}") from error


def network_config(values: Mapping[str, ConfigValue], *, is_auditor: bool = False) -> NetworkConfig:
    """`is_auditor`: auto-recovery has a user of its own. ConfigError if there is to be TLS or SASL,
    and the files for it cannot be used."""
    changes = field_values(NetworkConfig, values)
    sasl = sasl_login(values, is_auditor=is_auditor)
    return NetworkConfig(**changes, tls=tls_context(values), sasl=sasl)


def placement_config(values: Mapping[str, ConfigValue]) -> PlacementConfig:
    """Without ensemblePlacementPolicy: random, or by racks as soon as something is said of racks
    or of space. ConfigError."""
    found: dict[str, Any] = {key.name: key.parse_default() for key in keys_of(PlacementConfig)}
    given = {name: value for name, value in values.items() if name in found and value is not None}
    policy = _policy(given)
    found |= given
    script, table = found["networkTopologyScriptFileName"], found["networkTopologyTableFileName"]
    if script is not None and table is not None:
        raise ConfigError(
            "networkTopologyTableFileName",
            "networkTopologyTableFileName: networkTopologyScriptFileName is set, too",
        )
    is_regional = policy is Policy.REGIONS
    regions = found["reppRegionsToWrite"] if is_regional else None
    rules = SpreadRules(
        min_racks=found["minNumRacksPerWriteQuorum"],
        enforce_racks=found["enforceMinNumRacksPerWriteQuorum"],
        min_regions=found["reppMinimumRegionsForDurability"] if is_regional else 1,
        regions=_regions(regions or ""),
        is_weighted=found["diskWeightBasedPlacementEnabled"],
        max_weight_multiple=found["bookieMaxMultipleForWeightBasedPlacement"],
    )
    intervals = (
        found["getBookieInfoIntervalSeconds"] or BOOKIE_INFO_INTERVAL_SECONDS,
        found["getBookieInfoRetryIntervalSeconds"] or BOOKIE_INFO_RETRY_SECONDS,
    )
    return PlacementConfig(policy, rules, script, table, *intervals)


def _regions(text: str) -> tuple[str, ...]:
    """As locations name them, with a slash in front."""
    names = [part.strip().strip("/") for part in text.split(";")]
    return tuple(f"/{name}" for name in names if name)


def _policy(given: Mapping[str, ConfigValue]) -> Policy:
    name = str(given.get("ensemblePlacementPolicy") or "").rpartition(".")[2]
    if not name:
        return Policy.RACKS if given else Policy.RANDOM
    for policy in Policy:
        # BookKeeper's policies are in classes with and without Impl.
        if name.lower() in (policy.value.lower(), f"{policy.value}Impl".lower()):
            return policy
    known = ", ".join(policy.value for policy in Policy)
    raise ConfigError(
        "ensemblePlacementPolicy", f"ensemblePlacementPolicy: {name} is not known here; {known} are"
    )
