"""The ledger client's settings by BookKeeper's names (ClientConfiguration.java,
RegionAwareEnsemblePlacementPolicy.java): quorums' behaviour, quarantine, placement.

What is not set stays as whoever composes the client has it.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ledger.network.auth import AUTH_KEYS, sasl_login
from ledger.network.config import NetworkConfig
from ledger.placement.candidates import BOOKIE_INFO_INTERVAL_SECONDS, BOOKIE_INFO_RETRY_SECONDS
from ledger.placement.spread import SpreadRules
from runtime.config import ConfigError, ConfigKey, ConfigType, ConfigValue, at_least
from runtime.tls_context import client_context

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping

    from ledger.config import LedgerClientConfig

INT = ConfigType.INT
STRING = ConfigType.STRING
BOOLEAN = ConfigType.BOOLEAN

PLACEMENT_KEYS = (
    ConfigKey(
        "ensemblePlacementPolicy",
        STRING,
        None,
        "Rackaware-, RegionAware- or DefaultEnsemblePlacementPolicy, with or without package.",
    ),
    ConfigKey("minNumRacksPerWriteQuorum", INT, "2", "Racks that hold an entry.", at_least(1)),
    ConfigKey("enforceMinNumRacksPerWriteQuorum", BOOLEAN, "false", "Else as far as can be."),
    ConfigKey("networkTopologyScriptFileName", STRING, None, "Prints /region/rack of each host."),
    ConfigKey("networkTopologyTableFileName", STRING, None, "Lines host=/region/rack."),
    ConfigKey("reppRegionsToWrite", STRING, None, "Regions, separated by «;»; else all."),
    ConfigKey("reppMinimumRegionsForDurability", INT, "2", "Of an acked entry.", at_least(1)),
    ConfigKey("diskWeightBasedPlacementEnabled", BOOLEAN, "false", "By free space."),
    ConfigKey("bookieMaxMultipleForWeightBasedPlacement", INT, "3", "Of the median.", at_least(0)),
    ConfigKey("getBookieInfoIntervalSeconds", INT, None, "Between questions.", at_least(1)),
    ConfigKey("getBookieInfoRetryIntervalSeconds", INT, None, "After a failure.", at_least(1)),
)

#: BookKeeper's option -> LedgerClientConfig's field and the factor between their units.
_CLIENT_FIELDS: Mapping[str, tuple[str, int, str]] = {
    "addEntryQuorumTimeoutSec": ("add_quorum_timeout_ms", 1000, "0: no limit."),
    "explicitLacInterval": ("explicit_lac_interval_ms", 1, "0: none is told."),
    "firstSpeculativeReadTimeout": ("speculative_read_timeout_ms", 1, "0: one bookie at a time."),
    "maxSpeculativeReadTimeout": ("speculative_read_timeout_max_ms", 1, "It grows till then."),
    "firstSpeculativeReadLACTimeout": ("speculative_lac_timeout_ms", 1, "Of long polls."),
    "recoveryReadBatchSize": ("recovery_read_batch", 1, "Entries at a time."),
    "bookieErrorThresholdPerInterval": ("bookie_error_threshold", 1, "Then quarantine."),
    "bookieHealthCheckIntervalSeconds": ("bookie_error_interval_ms", 1000, "Errors are counted."),
    "bookieQuarantineTimeSeconds": ("bookie_quarantine_ms", 1000, "Without new ledgers."),
    "quire.entry.cache.size.mb": ("entry_cache_bytes", 1 << 20, "Ends of ledgers; 0: none."),
}
_CLIENT_FLAGS: Mapping[str, tuple[str, str]] = {
    "delayEnsembleChange": ("delay_ensemble_change", "While the ack quorum is reached."),
    "stickyReadSEnabled": ("sticky_reads", "A ledger is read from one bookie."),
}
_NETWORK_FIELDS: Mapping[str, tuple[str, int, str]] = {
    "addEntryTimeoutSec": ("add_timeout_ms", 1000, "Then the bookie has failed."),
    "readEntryTimeoutSec": ("read_timeout_ms", 1000, "Then another is asked."),
    "clientConnectTimeoutMillis": ("connect_timeout_ms", 1, "Of a connection."),
}

TLS_KEYS = (
    ConfigKey("clientTrustStore", STRING, None, "Who signs bookies' certificates, PEM."),
    ConfigKey("clientTrustStoreType", STRING, "PEM", "Only PEM."),
    ConfigKey("clientKeyStore", STRING, None, "The client's private key, PEM."),
    ConfigKey("clientKeyStoreType", STRING, "PEM", "Only PEM."),
    ConfigKey("clientKeyStorePasswordPath", STRING, None, "File with the key's password."),
    ConfigKey("tlsHostnameVerificationEnabled", BOOLEAN, "false", "Certificates name the host."),
)

CLIENT_KEYS = (
    *TLS_KEYS,
    *AUTH_KEYS,
    *PLACEMENT_KEYS,
    *(
        ConfigKey(name, INT, None, text, at_least(0))
        for name, (_, _, text) in _CLIENT_FIELDS.items()
    ),
    *(ConfigKey(name, BOOLEAN, None, text) for name, (_, text) in _CLIENT_FLAGS.items()),
    *(
        ConfigKey(name, INT, None, text, at_least(1))
        for name, (_, _, text) in _NETWORK_FIELDS.items()
    ),
    ConfigKey("bookieHealthCheckEnabled", BOOLEAN, "true", "false: no quarantine."),
)


class Policy(enum.Enum):
    RANDOM = "DefaultEnsemblePlacementPolicy"
    RACKS = "RackawareEnsemblePlacementPolicy"
    REGIONS = "RegionAwareEnsemblePlacementPolicy"


@dataclass(slots=True, frozen=True)
class PlacementConfig:
    policy: Policy = Policy.RANDOM
    rules: SpreadRules = field(default_factory=SpreadRules)
    #: Where hosts are; at most one of them.
    script_path: str | None = None
    table_path: str | None = None
    info_interval_seconds: float = BOOKIE_INFO_INTERVAL_SECONDS
    info_retry_seconds: float = BOOKIE_INFO_RETRY_SECONDS


def client_config(
    values: Mapping[str, ConfigValue], base: LedgerClientConfig
) -> LedgerClientConfig:
    """`base` with what is set. ConfigError."""
    changes: dict[str, Any] = {
        field: value * factor
        for name, (field, factor, _) in _CLIENT_FIELDS.items()
        if isinstance(value := values.get(name), int)
    }
    changes |= {
        field: value
        for name, (field, _) in _CLIENT_FLAGS.items()
        if (value := values.get(name)) is not None
    }
    if values.get("bookieHealthCheckEnabled") is False:
        changes["bookie_quarantine_ms"] = 0
    try:
        return replace(base, **changes)
    except ValueError as error:
        raise ConfigError("", f"ledger client: {error}") from error


def network_config(values: Mapping[str, ConfigValue], *, is_auditor: bool = False) -> NetworkConfig:
    """`is_auditor`: auto-recovery has a user of its own. ConfigError if there is to be TLS or SASL,
    and the files for it cannot be used."""
    changes: dict[str, Any] = {
        field: value * factor
        for name, (field, factor, _) in _NETWORK_FIELDS.items()
        if isinstance(value := values.get(name), int)
    }
    sasl = sasl_login(values, is_auditor=is_auditor)
    return NetworkConfig(**changes, tls=_tls_context(values), sasl=sasl)


def _tls_context(values: Mapping[str, ConfigValue]) -> ssl.SSLContext | None:
    """As a Java client's with PEM files: tlsProviderFactoryClass says that there is TLS, and
    tlsCertificatePath names the client's certificate. ConfigError."""
    found: dict[str, Any] = {key.name: key.parse_default() for key in TLS_KEYS}
    found |= {name: value for name, value in values.items() if value is not None}
    if not found.get("tlsProviderFactoryClass"):
        return None
    for name in ("clientTrustStoreType", "clientKeyStoreType"):
        if found[name].upper() != "PEM":
            raise ConfigError(
                name,
                f"{name}: {found[name]} cannot be read here, PEM can (keytool and openssl pkcs12 "
                "convert)",
            )
    if not found["clientTrustStore"]:
        raise ConfigError("clientTrustStore", "clientTrustStore: must be set for TLS")
    certificate, key = found.get("tlsCertificatePath"), found["clientKeyStore"]
    try:
        password = None
        if found["clientKeyStorePasswordPath"]:
            with open(found["clientKeyStorePasswordPath"], encoding="utf-8") as file:
                password = file.read().strip()
        return client_context(
            trust_path=found["clientTrustStore"],
            # A certificate without a client's key is a bookie's in the same file.
            certificate_path=certificate if key else None,
            key_path=key,
            key_password=password,
            checks_hostname=found["tlsHostnameVerificationEnabled"],
        )
    except OSError as error:
        raise ConfigError("clientTrustStore", f"TLS: {error}") from error


def placement_config(values: Mapping[str, ConfigValue]) -> PlacementConfig:
    """Without ensemblePlacementPolicy: random, or by racks as soon as something is said of racks
    or of space. ConfigError."""
    found: dict[str, Any] = {key.name: key.parse_default() for key in PLACEMENT_KEYS}
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
