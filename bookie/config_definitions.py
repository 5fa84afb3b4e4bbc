"""BookKeeper's settings by their names in bk_server.conf: which of them mean something here.

Sizes are as BookKeeper's option says (MB in names that end in MB or Mb, otherwise bytes), times in
milliseconds. Names that BookKeeper 4.17 knows and that have no effect here are accepted with a line
in the log (ledgers.md 3).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bookie.config import GIB, KIB, MIB, BookieConfig
from runtime.config import ConfigKey, ConfigTable, ConfigType, ConfigValue, at_least, between

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

INT = ConfigType.INT
LONG = ConfigType.LONG
STRING = ConfigType.STRING

_USED = (
    ConfigKey("bookieId", STRING, None, "The bookie's stable name, in its cookie."),
    ConfigKey("journalDirectory", STRING, None, "Where the journal is."),
    ConfigKey("ledgerDirectories", STRING, None, "Where entry logs and index are."),
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
        "dbStorage_writeCacheMaxSizeMb", LONG, "128", "Both write caches together.", at_least(8)
    ),
    ConfigKey("flushInterval", INT, "10000", "Time between flushes.", at_least(1)),
    ConfigKey(
        "flushEntrylogBytes", LONG, str(16 * MIB), "Dirty bytes of an entry log.", at_least(1)
    ),
    ConfigKey("logSizeLimit", LONG, str(GIB), "Size of an entry log.", between(MIB, 2 * GIB - 1)),
    ConfigKey("openFileLimit", INT, "256", "Entry logs kept open.", at_least(1)),
    ConfigKey(
        "dbStorage_readAheadCacheBatchBytesSize",
        INT,
        str(4 * MIB),
        "Bytes read ahead after a miss.",
        at_least(1),
    ),
    ConfigKey("nettyMaxFrameSizeBytes", INT, str(5 * MIB), "The largest entry.", at_least(MIB)),
    ConfigKey(
        "dbStorage_rocksDB_blockCacheSize", LONG, str(64 * MIB), "Index blocks.", at_least(0)
    ),
)

#: BookKeeper's option -> BookieConfig's field and the factor between their units.
_FIELDS: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "bookieId": ("bookie_id", str),
    "journalDirectory": ("journal_directory", str),
    "ledgerDirectories": ("ledger_directory", str),
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
    "dbStorage_readAheadCacheBatchBytesSize": ("read_ahead_size_bytes", int),
    "nettyMaxFrameSizeBytes": ("entry_size_max_bytes", int),
    "dbStorage_rocksDB_blockCacheSize": ("index_block_cache_size_bytes", int),
}

_WITHOUT_EFFECT = """\
advertisedAddress allocatorExitOnOutOfMemory allocatorLeakDetectionPolicy
allocatorOutOfMemoryPolicy allocatorPoolingConcurrency allocatorPoolingPolicy
allowEphemeralPorts allowLoopback allowMultipleDirsUnderSameDiskPartition
allowShadedLedgerManagerFactoryClass allowStorageExpansion
auditorAcquireConcurrentOpenLedgerOperationsTimeOutMSec auditorLedgerVerificationPercentage
auditorMaxNumberOfConcurrentOpenLedgerOperations auditorPeriodicBookieCheckInterval
auditorPeriodicCheckInterval auditorPeriodicPlacementPolicyCheckInterval
auditorReplicasCheckInterval authorizedRoles autoRecoveryDaemonEnabled
bookieAuthProviderFactoryClass bookieDeathWatchInterval bookiePort byteBufAllocatorSizeInitial
byteBufAllocatorSizeMax byteBufAllocatorSizeMin closeChannelOnResponseTimeout
compactionMaxOutstandingRequests compactionRate compactionRateByBytes compactionRateByEntries
dataIntegrityChecking dataIntegrityStampMissingCookies dbStorage_directIOEntryLogger
dbStorage_directIOEntryLoggerMaxFdCacheTimeSeconds dbStorage_directIOEntryLoggerReadBufferSizeMB
dbStorage_directIOEntryLoggerTotalReadBufferSizeMB
dbStorage_directIOEntryLoggerTotalWriteBufferSizeMB dbStorage_maxThrottleTimeMs
dbStorage_readAheadCacheBatchSize dbStorage_readAheadCacheMaxSizeMb dbStorage_rocksDB_blockSize
dbStorage_rocksDB_bloomFilterBitsPerKey dbStorage_rocksDB_checksum_type
dbStorage_rocksDB_format_version dbStorage_rocksDB_logLevel dbStorage_rocksDB_logPath
dbStorage_rocksDB_lz4CompressionEnabled dbStorage_rocksDB_maxSizeInLevel1MB
dbStorage_rocksDB_numFilesInLevel0 dbStorage_rocksDB_numLevels dbStorage_rocksDB_sstSizeInMB
dbStorage_rocksDB_writeBufferSizeMB defaultRocksdbConf desiredNumZonesPerWriteQuorum
disableServerSocketBind diskCheckInterval diskUsageLwmThreshold diskUsageThreshold
diskUsageWarnThreshold enableBusyWait enableHealthCheck enableLocalTransport enableStatistics
enableTaskExecutionStats enforceMinNumFaultDomainsForWrite enforceMinNumRacksPerWriteQuorum
enforceStrictZoneawarePlacement entryFormatterClass entryLocationCompactionInterval
entryLocationRocksdbConf entryLogFilePreallocationEnabled
entryLogPerLedgerCounterLimitsMultFactor entryLogPerLedgerEnabled
entrylogMapAccessExpiryTimeInSeconds extraServerComponents fileInfoCacheInitialCapacity
fileInfoFormatVersionToWrite fileInfoMaxIdleTime forceAllowCompaction forceReadOnlyBookie
gcEntryLogMetadataCacheEnabled gcEntryLogMetadataCachePath gcMetadataOpRateLimit
gcOverreplicatedLedgerMaxConcurrentRequests gcOverreplicatedLedgerWaitTime gcWaitTime
httpServerEnabled httpServerHost httpServerKeyStorePassword httpServerKeyStorePath
httpServerPort httpServerTlsEnable httpServerTrustStorePassword httpServerTrustStorePath
ignoreExtraServerComponentsStartupFailures ignoreLocalNodeInPlacementPolicy
inFlightReadEntryNumInLedgerChecker indexDirectories isForceGCAllowWhenNoSpace isThrottleByBytes
journalAdaptiveGroupWrites journalBufferedEntriesThreshold journalChannelProvider
journalFlushWhenQueueEmpty journalFormatVersionToWrite journalMaxGroupWaitMSec
journalPageCacheFlushIntervalMSec journalPreAllocSizeMB journalQueueSize
journalRemoveFromPageCache journalReuseFiles journalSyncData journalWriteBufferSizeKB
journalWriteData ledgerIdFormatterClass ledgerManagerFactoryClass
ledgerManagerFactoryDisableClassCheck ledgerManagerType ledgerMetadataRocksdbConf
ledgerMetadataVersion ledgerStorageClass limitStatsLogging listeningInterface
localConsistencyCheckOnStartup localScrubInterval localScrubRateLimit
lockReleaseOfFailedLedgerGracePeriod lostBookieRecoveryDelay majorCompactionInterval
majorCompactionMaxTimeMillis majorCompactionThreshold maxAddsInProgressLimit maxBatchReadSize
maxOperationNumbersInSingleRocksdbWriteBatch maxPendingAddRequestsPerThread
maxPendingReadRequestsPerThread maxReadsInProgressLimit maximumNumberOfActiveEntryLogs
metadataServiceUri metastoreImplClass metastoreMaxEntriesPerScan minNumRacksPerWriteQuorum
minNumZonesPerWriteQuorum minUsableSizeForEntryLogCreation minUsableSizeForHighPriorityWrites
minUsableSizeForIndexFileCreation minorCompactionInterval minorCompactionMaxTimeMillis
minorCompactionThreshold numAddWorkerThreads numHighPriorityWorkerThreads
numJournalCallbackThreads numLongPollWorkerThreads numReadWorkerThreads
openLedgerRereplicationGracePeriod pageLimit pageSize permittedStartupUsers
persistBookieStatusEnabled preserveMdcForTaskExecution readBufferSizeBytes readOnlyModeEnabled
readOnlyModeOnAnyDiskFullEnabled readWorkerThreadsThrottlingEnabled registrationManagerClass
repairedPlacementPolicyNotAdheringBookieEnabled replicationRateByBytes requestTimerNumTicks
requestTimerTickDurationMs rereplicationEntryBatchSize rwRereplicateBackoffMs
sanityCheckMetricsEnabled serverNumAcceptorThreads serverNumIOThreads serverSockKeepalive
serverTcpLinger serverTcpNoDelay serverWriteBufferHighWaterMark serverWriteBufferLowWaterMark
shadedLedgerManagerFactoryClassPrefix skipListArenaChunkSize skipListArenaMaxAllocSize
skipListSizeLimit skipReplayJournalInvalidRecord sortedLedgerStorageEnabled statsProviderClass
storeSystemTimeAsLedgerCreationTime storeSystemTimeAsLedgerUnderreplicatedMarkTime
tlsCertFilesRefreshDurationSeconds tlsCertificatePath tlsClientAuthentication
tlsEnabledCipherSuites tlsEnabledProtocols tlsKeyStore tlsKeyStorePasswordPath tlsKeyStoreType
tlsProvider tlsProviderFactoryClass tlsTrustStore tlsTrustStorePasswordPath tlsTrustStoreType
underreplicatedLedgerRecoveryGracePeriod useHostNameAsBookieID useShortHostName
useTargetEntryLogSizeForGc useTransactionalCompaction verifyMetadataOnGC
waitTimeoutOnResponseBackpressureMs writeBufferSizeBytes zkEnableSecurity zkLedgersRootPath
zkRequestRateLimit zkRetryBackoffMaxMs zkRetryBackoffMaxRetries zkRetryBackoffStartMs zkServers
zkTimeout
"""

BOOKIE_CONFIGS = ConfigTable(
    "BookKeeper",
    (
        *_USED,
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
) -> BookieConfig:
    """The bookie's configuration; `values` (parsed, only what is set) win over the arguments.

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
    }
    for name, value in values.items():
        if name in _FIELDS and value is not None:
            field, convert = _FIELDS[name]
            fields[field] = convert(value)
    return BookieConfig(**fields, verify_digest_on_write=verify_digest_on_write)
