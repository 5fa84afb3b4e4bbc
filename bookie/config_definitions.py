"""BookKeeper's settings by their names in bk_server.conf: which of them mean something here.

Sizes are as BookKeeper's option says (MB in names that end in MB or Mb, otherwise bytes), times in
milliseconds. Names that BookKeeper 4.17 knows and that have no effect here are accepted with a line
in the log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bookie.config import GIB, KIB, MIB, WRITE_CACHE_SEGMENT_SIZE_BYTES, BookieConfig
from bookie.config_definitions_known import KNOWN_KEYS
from bookie.server.auth import AUTH_KEYS
from bookie.server.config import SERVER_KEYS
from bookie.server.pages_config import PAGES_KEYS
from bookie.space.gc_config import GcConfig
from bookie.space.gc_config_definitions import GC_KEYS, gc_config
from metadata.zookeeper_config import ZOOKEEPER_KEYS
from runtime.config import (
    LONG_MAX,
    ConfigKey,
    ConfigTable,
    ConfigType,
    ConfigValue,
    at_least,
    between,
    distinct_list,
    either,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

INT = ConfigType.INT
LONG = ConfigType.LONG
STRING = ConfigType.STRING
BOOLEAN = ConfigType.BOOLEAN
LIST = ConfigType.LIST
DOUBLE = ConfigType.DOUBLE

_USED = (
    ConfigKey("bookieId", STRING, None, "The bookie's stable name, in its cookie."),
    ConfigKey(
        "journalDirectories",
        LIST,
        None,
        "Where the journal is. There is one: the first directory has it.",
        distinct_list(empty_allowed=False),
    ),
    ConfigKey("journalDirectory", STRING, None, "The older name; journalDirectories wins."),
    ConfigKey(
        "ledgerDirectories",
        STRING,
        None,
        "Where entry logs are, separated by commas; the index is in the first.",
    ),
    ConfigKey("allowStorageExpansion", BOOLEAN, "false", "Empty directories may be added."),
    ConfigKey("diskUsageThreshold", DOUBLE, "0.95", "Read-only above this.", between(0, 1)),
    ConfigKey("diskUsageWarnThreshold", DOUBLE, "0.90", "No major compaction.", between(0, 1)),
    ConfigKey("diskUsageLwmThreshold", DOUBLE, None, "Writable again below this.", between(0, 1)),
    ConfigKey("diskCheckInterval", INT, "10000", "Time between looks at usage.", at_least(1)),
    ConfigKey(
        "minUsableSizeForEntryLogCreation",
        LONG,
        None,
        "Directories with less get a new entry log only if there is no other.",
        at_least(0),
    ),
    ConfigKey(
        "minUsableSizeForHighPriorityWrites",
        LONG,
        None,
        "Recoveries may write while read-only, as long as there is this much.",
        at_least(0),
    ),
    ConfigKey("readOnlyModeEnabled", BOOLEAN, "true", "Else a full disk ends the bookie."),
    ConfigKey(
        "readOnlyModeOnAnyDiskFullEnabled", BOOLEAN, "true", "Else all of them must be full."
    ),
    ConfigKey("forceReadOnlyBookie", BOOLEAN, "false", "Starts read-only, and stays so."),
    ConfigKey("isForceGCAllowWhenNoSpace", BOOLEAN, "false", "GC and compaction go on then."),
    ConfigKey("journalMaxSizeMB", LONG, "128", "Size of a journal file.", at_least(1)),
    ConfigKey("journalAlignmentSize", INT, "4096", "Journal groups start at its multiples."),
    ConfigKey(
        "journalBufferedWritesThreshold",
        LONG,
        str(512 * KIB),
        "Bytes that are written ahead of the sync that is under way.",
        at_least(1),
    ),
    ConfigKey("journalMaxMemorySizeMb", LONG, "64", "Unsynced bytes at most.", at_least(1)),
    ConfigKey("journalMaxBackups", INT, "4", "Old journal files kept for reuse.", at_least(0)),
    ConfigKey(
        "dbStorage_writeCacheMaxSizeMb",
        LONG,
        "48",
        "Both write caches together; at least twice the largest entry.",
        at_least(0),
    ),
    ConfigKey("flushInterval", INT, "10000", "Time between flushes.", at_least(1)),
    ConfigKey("flushEntrylogBytes", LONG, str(MIB), "Dirty bytes of an entry log.", at_least(0)),
    ConfigKey("logSizeLimit", LONG, str(GIB), "Size of an entry log.", between(MIB, 2 * GIB - 1)),
    ConfigKey("openFileLimit", INT, "256", "Entry logs kept open.", at_least(1)),
    ConfigKey(
        "dbStorage_readAheadCacheMaxSizeMb",
        LONG,
        "512",
        "Of what was flushed last, so much stays in the page cache.",
        at_least(0),
    ),
    ConfigKey(
        "dbStorage_readAheadCacheBatchBytesSize",
        INT,
        str(4 * MIB),
        "Bytes read ahead after a miss; -1: as many as are good here.",
        either(-1, at_least(1)),
    ),
    ConfigKey("localScrubInterval", LONG, None, "Seconds between scrubs; 0: none.", at_least(0)),
    ConfigKey("localScrubRateLimit", INT, None, "Entries per second; 0: no limit.", at_least(0)),
    ConfigKey("localConsistencyCheckOnStartup", BOOLEAN, "false", "Refuse a start on damage."),
    ConfigKey(
        "maxPendingAddRequestsPerThread",
        INT,
        None,
        "Adds that wait for the cache or the journal; then ETOOMANYREQUESTS. 0: no limit.",
        at_least(0),
    ),
    ConfigKey("nettyMaxFrameSizeBytes", INT, str(5 * MIB), "The largest entry.", at_least(MIB)),
    ConfigKey(
        "dbStorage_rocksDB_blockCacheSize", LONG, str(64 * MIB), "Index blocks.", at_least(0)
    ),
)

#: BookKeeper's option -> BookieConfig's field and the factor between their units.
_FIELDS: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "bookieId": ("bookie_id", str),
    "ledgerDirectories": ("ledger_directories", str),
    "allowStorageExpansion": ("allow_storage_expansion", bool),
    "diskUsageThreshold": ("disk_usage_threshold", float),
    "diskUsageWarnThreshold": ("disk_usage_warn_threshold", float),
    "diskUsageLwmThreshold": ("disk_usage_low_water_mark", float),
    "diskCheckInterval": ("disk_check_interval_ms", int),
    "minUsableSizeForEntryLogCreation": ("entry_log_creation_min_usable_bytes", int),
    "minUsableSizeForHighPriorityWrites": ("high_priority_min_usable_bytes", int),
    "readOnlyModeEnabled": ("read_only_mode_enabled", bool),
    "readOnlyModeOnAnyDiskFullEnabled": ("read_only_on_any_disk_full", bool),
    "forceReadOnlyBookie": ("force_read_only", bool),
    "isForceGCAllowWhenNoSpace": ("force_gc_when_no_space", bool),
    "journalMaxSizeMB": ("journal_size_bytes", lambda value: value * MIB),
    "journalAlignmentSize": ("journal_alignment_bytes", int),
    "journalBufferedWritesThreshold": ("journal_buffered_writes_threshold_bytes", int),
    "journalMaxMemorySizeMb": ("journal_queue_size_max_bytes", lambda value: value * MIB),
    "journalMaxBackups": ("journal_spare_files_max", int),
    "dbStorage_writeCacheMaxSizeMb": ("write_cache_size_bytes", lambda value: value * MIB),
    "flushInterval": ("flush_interval_ms", int),
    # 0 leaves it to the kernel when pages are written, all at once then: the journal would wait.
    "flushEntrylogBytes": ("flush_entry_log_bytes", lambda value: value or MIB),
    "logSizeLimit": ("entry_log_size_limit_bytes", int),
    "openFileLimit": ("entry_log_open_files_max", int),
    "dbStorage_readAheadCacheMaxSizeMb": ("entry_log_cached_size_bytes", lambda value: value * MIB),
    "dbStorage_readAheadCacheBatchBytesSize": (
        "read_ahead_size_bytes",
        lambda value: value if value > 0 else 4 * MIB,
    ),
    "localScrubInterval": ("scrub_interval_ms", lambda value: value * 1000),
    "localScrubRateLimit": ("scrub_rate_entries", int),
    "localConsistencyCheckOnStartup": ("local_consistency_check_on_startup", bool),
    "nettyMaxFrameSizeBytes": ("entry_size_max_bytes", int),
    # BookKeeper's queue of adds; 0 is no limit, and their bytes have one all the same.
    "maxPendingAddRequestsPerThread": ("held_adds_max", lambda value: value or LONG_MAX),
    "dbStorage_rocksDB_blockCacheSize": ("index_block_cache_size_bytes", int),
}

BOOKIE_CONFIGS = ConfigTable(
    "BookKeeper",
    (
        *_USED,
        *GC_KEYS,
        *SERVER_KEYS,
        *PAGES_KEYS,
        *AUTH_KEYS,
        *ZOOKEEPER_KEYS,
        *KNOWN_KEYS,
    ),
    empty_is_unset=True,
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

    ValueError if the values do not go together."""
    defaults = {name: BOOKIE_CONFIGS.default(name) for name in _FIELDS}
    fields: dict[str, Any] = {
        field: convert(defaults[name])
        for name, (field, convert) in _FIELDS.items()
        if defaults[name] is not None
    }
    fields |= {
        "bookie_id": bookie_id,
        "instance_id": instance_id,
        "journal_directory": journal_directory,
        "ledger_directory": ledger_directory,
        "held_adds_max": held_adds_max,
        "held_adds_size_max_bytes": held_adds_size_max_bytes,
        "gc": gc_config(values, gc if gc is not None else GcConfig()),
    }
    for name, value in values.items():
        if name in _FIELDS and value is not None:
            field, convert = _FIELDS[name]
            fields[field] = convert(value)
    if (listed := fields.pop("ledger_directories", None)) is not None:
        directories = [part for each in listed.split(",") if (part := each.strip())]
        if not directories:
            raise ValueError(f"ledgerDirectories={listed!r} names no directory")
        fields["ledger_directory"] = directories[0]
        fields["more_ledger_directories"] = tuple(directories[1:])
    if (journal := journal_directory_of(values)) is not None:
        fields["journal_directory"] = journal
    least = least_write_cache_bytes(fields)
    fields["write_cache_size_bytes"] = max(fields["write_cache_size_bytes"], least)
    return BookieConfig(**fields, verify_digest_on_write=verify_digest_on_write)
