"""BookKeeper's settings by their names in bk_server.conf: which of them mean something here.

Sizes are as BookKeeper's option says (MB in names that end in MB or Mb, otherwise bytes), times in
milliseconds. Names that BookKeeper 4.17 knows and that have no effect here are accepted with a line
in the log (ledgers.md 3).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bookie.config import GIB, KIB, MIB, BookieConfig
from bookie.server.auth import AUTH_KEYS
from bookie.server.config import SERVER_KEYS
from bookie.server.pages_config import PAGES_KEYS
from bookie.space.gc_config import GcConfig
from bookie.space.gc_config_definitions import GC_KEYS, gc_config
from metadata.zookeeper_config import ZOOKEEPER_KEYS
from runtime.config import ConfigKey, ConfigTable, ConfigType, ConfigValue, at_least, between

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

INT = ConfigType.INT
LONG = ConfigType.LONG
STRING = ConfigType.STRING
BOOLEAN = ConfigType.BOOLEAN
DOUBLE = ConfigType.DOUBLE

_USED = (
    ConfigKey("bookieId", STRING, None, "The bookie's stable name, in its cookie."),
    ConfigKey("journalDirectory", STRING, None, "Where the journal is."),
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
    ConfigKey("journalMaxSizeMB", LONG, "128", "Size of a journal file.", between(1, 2047)),
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
        "dbStorage_writeCacheMaxSizeMb", LONG, "48", "Both write caches together.", at_least(8)
    ),
    ConfigKey("flushInterval", INT, "10000", "Time between flushes.", at_least(1)),
    ConfigKey("flushEntrylogBytes", LONG, str(MIB), "Dirty bytes of an entry log.", at_least(1)),
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
        "Bytes read ahead after a miss.",
        at_least(1),
    ),
    ConfigKey("localScrubInterval", LONG, None, "Seconds between scrubs; 0: none.", at_least(0)),
    ConfigKey("localScrubRateLimit", INT, None, "Entries per second; 0: no limit.", at_least(0)),
    ConfigKey("localConsistencyCheckOnStartup", BOOLEAN, "false", "Refuse a start on damage."),
    ConfigKey("nettyMaxFrameSizeBytes", INT, str(5 * MIB), "The largest entry.", at_least(MIB)),
    ConfigKey(
        "dbStorage_rocksDB_blockCacheSize", LONG, str(64 * MIB), "Index blocks.", at_least(0)
    ),
)

#: BookKeeper's option -> BookieConfig's field and the factor between their units.
_FIELDS: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "bookieId": ("bookie_id", str),
    "journalDirectory": ("journal_directory", str),
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
    "flushEntrylogBytes": ("flush_entry_log_bytes", int),
    "logSizeLimit": ("entry_log_size_limit_bytes", int),
    "openFileLimit": ("entry_log_open_files_max", int),
    "dbStorage_readAheadCacheMaxSizeMb": ("entry_log_cached_size_bytes", lambda value: value * MIB),
    "dbStorage_readAheadCacheBatchBytesSize": ("read_ahead_size_bytes", int),
    "localScrubInterval": ("scrub_interval_ms", lambda value: value * 1000),
    "localScrubRateLimit": ("scrub_rate_entries", int),
    "localConsistencyCheckOnStartup": ("local_consistency_check_on_startup", bool),
    "nettyMaxFrameSizeBytes": ("entry_size_max_bytes", int),
    "dbStorage_rocksDB_blockCacheSize": ("index_block_cache_size_bytes", int),
}

_WITHOUT_EFFECT = """\
allocatorExitOnOutOfMemory allocatorLeakDetectionPolicy
allocatorOutOfMemoryPolicy allocatorPoolingConcurrency allocatorPoolingPolicy
allowMultipleDirsUnderSameDiskPartition
allowShadedLedgerManagerFactoryClass
auditorAcquireConcurrentOpenLedgerOperationsTimeOutMSec auditorLedgerVerificationPercentage
auditorMaxNumberOfConcurrentOpenLedgerOperations auditorPeriodicBookieCheckInterval
auditorPeriodicCheckInterval auditorPeriodicPlacementPolicyCheckInterval
auditorReplicasCheckInterval autoRecoveryDaemonEnabled
bookieDeathWatchInterval byteBufAllocatorSizeInitial
byteBufAllocatorSizeMax byteBufAllocatorSizeMin closeChannelOnResponseTimeout
compactionMaxOutstandingRequests compactionRate
dataIntegrityChecking dataIntegrityStampMissingCookies dbStorage_directIOEntryLogger
dbStorage_directIOEntryLoggerMaxFdCacheTimeSeconds dbStorage_directIOEntryLoggerReadBufferSizeMB
dbStorage_directIOEntryLoggerTotalReadBufferSizeMB
dbStorage_directIOEntryLoggerTotalWriteBufferSizeMB dbStorage_maxThrottleTimeMs
dbStorage_readAheadCacheBatchSize dbStorage_rocksDB_blockSize
dbStorage_rocksDB_bloomFilterBitsPerKey dbStorage_rocksDB_checksum_type
dbStorage_rocksDB_format_version dbStorage_rocksDB_logLevel dbStorage_rocksDB_logPath
dbStorage_rocksDB_lz4CompressionEnabled dbStorage_rocksDB_maxSizeInLevel1MB
dbStorage_rocksDB_numFilesInLevel0 dbStorage_rocksDB_numLevels dbStorage_rocksDB_sstSizeInMB
dbStorage_rocksDB_writeBufferSizeMB defaultRocksdbConf desiredNumZonesPerWriteQuorum
disableServerSocketBind
enableBusyWait enableHealthCheck enableLocalTransport
enableTaskExecutionStats enforceMinNumFaultDomainsForWrite enforceMinNumRacksPerWriteQuorum
enforceStrictZoneawarePlacement entryFormatterClass
entryLocationRocksdbConf entryLogFilePreallocationEnabled
entryLogPerLedgerCounterLimitsMultFactor entryLogPerLedgerEnabled
entrylogMapAccessExpiryTimeInSeconds extraServerComponents fileInfoCacheInitialCapacity
fileInfoFormatVersionToWrite fileInfoMaxIdleTime
gcEntryLogMetadataCacheEnabled gcEntryLogMetadataCachePath
gcOverreplicatedLedgerMaxConcurrentRequests gcOverreplicatedLedgerWaitTime
httpServerKeyStorePassword httpServerKeyStorePath
httpServerTlsEnable httpServerTrustStorePassword httpServerTrustStorePath
ignoreExtraServerComponentsStartupFailures ignoreLocalNodeInPlacementPolicy
inFlightReadEntryNumInLedgerChecker indexDirectories
journalAdaptiveGroupWrites journalBufferedEntriesThreshold journalChannelProvider
journalFlushWhenQueueEmpty journalFormatVersionToWrite journalMaxGroupWaitMSec
journalPageCacheFlushIntervalMSec journalPreAllocSizeMB journalQueueSize
journalRemoveFromPageCache journalReuseFiles journalSyncData journalWriteBufferSizeKB
journalWriteData ledgerIdFormatterClass ledgerManagerFactoryClass
ledgerManagerFactoryDisableClassCheck ledgerManagerType ledgerMetadataRocksdbConf
ledgerMetadataVersion ledgerStorageClass limitStatsLogging
lockReleaseOfFailedLedgerGracePeriod lostBookieRecoveryDelay
maxOperationNumbersInSingleRocksdbWriteBatch maxPendingAddRequestsPerThread
maximumNumberOfActiveEntryLogs
metastoreImplClass metastoreMaxEntriesPerScan minNumRacksPerWriteQuorum
minNumZonesPerWriteQuorum
minUsableSizeForIndexFileCreation
numAddWorkerThreads numHighPriorityWorkerThreads
numJournalCallbackThreads numLongPollWorkerThreads numReadWorkerThreads
openLedgerRereplicationGracePeriod pageLimit pageSize permittedStartupUsers
persistBookieStatusEnabled preserveMdcForTaskExecution readBufferSizeBytes
readWorkerThreadsThrottlingEnabled registrationManagerClass
repairedPlacementPolicyNotAdheringBookieEnabled replicationRateByBytes requestTimerNumTicks
requestTimerTickDurationMs rereplicationEntryBatchSize rwRereplicateBackoffMs
sanityCheckMetricsEnabled serverNumAcceptorThreads serverNumIOThreads serverSockKeepalive
serverTcpLinger serverTcpNoDelay serverWriteBufferHighWaterMark serverWriteBufferLowWaterMark
shadedLedgerManagerFactoryClassPrefix skipListArenaChunkSize skipListArenaMaxAllocSize
skipListSizeLimit skipReplayJournalInvalidRecord sortedLedgerStorageEnabled
storeSystemTimeAsLedgerCreationTime storeSystemTimeAsLedgerUnderreplicatedMarkTime
tlsCertFilesRefreshDurationSeconds tlsEnabledCipherSuites tlsEnabledProtocols tlsProvider
tlsTrustStorePasswordPath ensemblePlacementPolicy networkTopologyScriptFileName
networkTopologyScriptNumberArgs networkTopologyTableFileName networkTopologyStabilizePeriodSeconds
clientTrustStore clientTrustStoreType clientTrustStorePasswordPath clientKeyStore
clientKeyStoreType clientKeyStorePasswordPath tlsHostnameVerificationEnabled
clientAuthProviderFactoryClass saslJaasClientSectionName saslJaasAuditorSectionName
reppDnsResolverClass reppRegionsToWrite
reppMinimumRegionsForDurability
diskWeightBasedPlacementEnabled bookieMaxMultipleForWeightBasedPlacement
underreplicatedLedgerRecoveryGracePeriod useHostNameAsBookieID useShortHostName
useTransactionalCompaction verifyMetadataOnGC
waitTimeoutOnResponseBackpressureMs writeBufferSizeBytes
zkRequestRateLimit zkRetryBackoffMaxMs zkRetryBackoffMaxRetries zkRetryBackoffStartMs
"""

BOOKIE_CONFIGS = ConfigTable(
    "BookKeeper",
    (
        *_USED,
        *GC_KEYS,
        *SERVER_KEYS,
        *PAGES_KEYS,
        *AUTH_KEYS,
        *ZOOKEEPER_KEYS,
        *(
            ConfigKey(name, STRING, None, "A setting of BookKeeper.", has_effect=False)
            for name in _WITHOUT_EFFECT.split()
        ),
    ),
)


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
    return BookieConfig(**fields, verify_digest_on_write=verify_digest_on_write)
