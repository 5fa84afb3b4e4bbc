"""BookKeeper's settings by their names in bk_server.conf: all that a bookie knows, and what a file
makes of a BookieConfig.

Each is declared by the field that has its value, in the classes below. Names that BookKeeper 4.17
knows and that have no effect here are accepted with a line in the log: known_settings.txt.
"""

from __future__ import annotations

from dataclasses import MISSING
from dataclasses import fields as fields_of
from typing import TYPE_CHECKING, Any

from bookie.config import MIB, WRITE_CACHE_SEGMENT_SIZE_BYTES, BookieConfig
from bookie.config_definitions_known import KNOWN_KEYS
from bookie.server.admission import AdmissionLimits
from bookie.server.auth import AuthSettings
from bookie.server.config import MetadataSettings, ServerSettings
from bookie.server.pages_config import PagesSettings
from bookie.server.request_limits import ProcessorSettings
from bookie.server.tls_config import TlsSettings
from bookie.space.gc_config import GcConfig, gc_config
from metadata.zookeeper_config import ZooKeeperSettings
from runtime.config import ConfigError, ConfigTable, ConfigValue
from runtime.settings import field_values, keys_of

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Whose fields declare a bookie's settings.
BOOKIE_SETTINGS: tuple[type[Any], ...] = (
    *(BookieConfig, GcConfig, ServerSettings, MetadataSettings, ProcessorSettings, TlsSettings),
    *(PagesSettings, AuthSettings, AdmissionLimits, ZooKeeperSettings),
)
BOOKIE_CONFIGS = ConfigTable(
    "BookKeeper", (*keys_of(*BOOKIE_SETTINGS), *KNOWN_KEYS), empty_is_unset=True
)


def journal_directory_of(values: Mapping[str, ConfigValue]) -> str | None:
    """journalDirectories' first, or journalDirectory; None if neither is set."""
    listed, single = values.get("journalDirectories"), values.get("journalDirectory")
    if isinstance(listed, tuple) and listed:
        return listed[0]
    return single if isinstance(single, str) else None


def least_write_cache_bytes(fields: Mapping[str, Any]) -> int:
    """Each generation holds the largest entry, and a segment; in whole MiB, as it is set."""
    entry_max: int = fields["entry_size_max_bytes"] + 4
    return -(-2 * max(entry_max, WRITE_CACHE_SEGMENT_SIZE_BYTES) // MIB) * MIB


def bookie_notes(values: Mapping[str, ConfigValue], config: BookieConfig) -> list[str]:
    """What the log says once of settings that act otherwise than they are set."""
    notes = []
    listed = values.get("journalDirectories")
    if isinstance(listed, tuple) and len(listed) > 1:
        others = ", ".join(listed[1:])
        notes.append(f"journalDirectories: there is one journal, in {listed[0]}; none in {others}")
    asked_mb = values.get("dbStorage_writeCacheMaxSizeMb")
    if isinstance(asked_mb, int) and asked_mb * MIB < config.write_cache_size_bytes:
        notes.append(
            f"dbStorage_writeCacheMaxSizeMb={asked_mb} is too small for the largest entry:"
            f" {config.write_cache_size_bytes // MIB} are used"
        )
    if values.get("flushEntrylogBytes") == 0:
        notes.append(f"flushEntrylogBytes=0 has no effect: {config.flush_entry_log_bytes} are used")
    return notes


def bookie_config(
    values: Mapping[str, ConfigValue],
    *,
    bookie_id: str,
    instance_id: str,
    journal_directory: str,
    ledger_directory: str,
    verify_digest_on_write: bool,
    held_adds_max: int,
    held_adds_size_max_bytes: int,
    gc: GcConfig | None = None,
) -> BookieConfig:
    """The bookie's configuration; `values` (parsed, only what is set) win over the arguments.
    `gc`: defaults other than BookKeeper's.

    ConfigError if the values do not go together."""
    fields: dict[str, Any] = {
        one.name: one.default for one in fields_of(BookieConfig) if one.default is not MISSING
    }
    fields |= {
        "bookie_id": bookie_id,
        "instance_id": instance_id,
        "journal_directory": journal_directory,
        "ledger_directory": ledger_directory,
        "held_adds_max": held_adds_max,
        "held_adds_size_max_bytes": held_adds_size_max_bytes,
        "verify_digest_on_write": verify_digest_on_write,
        "gc": gc_config(values, gc if gc is not None else GcConfig()),
        **field_values(BookieConfig, values),
    }
    if (listed := values.get("ledgerDirectories")) is not None:
        directories = [part for each in str(listed).split(",") if (part := each.strip())]
        if not directories:
            name = "ledgerDirectories"
            raise ConfigError(name, f"{name}={listed!r} names no directory")
        fields["ledger_directory"] = directories[0]
        fields["more_ledger_directories"] = tuple(directories[1:])
    if (journal := journal_directory_of(values)) is not None:
        fields["journal_directory"] = journal
    least = least_write_cache_bytes(fields)
    fields["write_cache_size_bytes"] = max(fields["write_cache_size_bytes"], least)
    return BookieConfig(**fields)
