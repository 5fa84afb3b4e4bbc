"""BookKeeper's names of a bookie's settings, as its bk_server.conf has them.

Those that a `BookieConfig` takes are listed with their field; BookKeeper's units are kept, so a
file that a Java bookie reads means the same here. All other names of BookKeeper 4.17's
`ServerConfiguration` and `DbLedgerStorage` are known and mean nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bookie.config import ENTRY_LOG_SIZE_MAX_BYTES, KIB, MIB
from runtime.config import ConfigKey, ConfigTable, ConfigType, Validator, at_least, between

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runtime.config import ConfigValue


@dataclass(slots=True, frozen=True)
class _Setting:
    name: str
    field: str
    type: ConfigType
    validator: Validator | None
    doc: str
    factor: int = 1  # from BookKeeper's unit to the field's


_INT, _LONG, _STRING = ConfigType.INT, ConfigType.LONG, ConfigType.STRING
_MIB_MAX = 2**20

_SETTINGS = (
    _Setting("bookieId", "bookie_id", _STRING, None, "Name of this bookie, in its cookie."),
    _Setting("journalDirectory", "journal_directory", _STRING, None, "Where the journal is."),
    _Setting(
        *("ledgerDirectories", "ledger_directory", _STRING, None),
        "Where entry logs and index are; one directory.",
    ),
    _Setting(
        *("journalMaxSizeMB", "journal_size_bytes", _LONG, between(1, _MIB_MAX)),
        *("Size of one journal file.", MIB),
    ),
    _Setting(
        *("journalAlignmentSize", "journal_alignment_bytes", _INT, between(512, KIB * KIB)),
        "Writes to the journal are padded to a multiple of this; a power of two.",
    ),
    _Setting(
        "journalBufferedWritesThreshold",
        *("journal_buffered_writes_threshold_bytes", _LONG, at_least(1)),
        "What queues while a sync runs is written as soon as it is this much.",
    ),
    _Setting(
        *("journalMaxMemorySizeMb", "journal_queue_size_max_bytes", _LONG, between(1, _MIB_MAX)),
        *("Entries that may wait for the journal; beyond it adds are held back.", MIB),
    ),
    _Setting(
        *("journalMaxBackups", "journal_spare_files_max", _INT, at_least(0)),
        "Checkpointed journal files that are kept for reuse.",
    ),
    _Setting(
        *("dbStorage_writeCacheMaxSizeMb", "write_cache_size_bytes", _LONG),
        *(between(1, _MIB_MAX), "Memory for entries that are not flushed yet.", MIB),
    ),
    _Setting(
        *("flushInterval", "flush_interval_ms", _INT, at_least(1)),
        "Time between two flushes of the write cache.",
    ),
    _Setting(
        *("flushEntrylogBytes", "flush_entry_log_bytes", _LONG, at_least(1)),
        "An entry log is synced each time it grew by this much.",
    ),
    _Setting(
        *("logSizeLimit", "entry_log_size_limit_bytes", _LONG),
        *(between(1, ENTRY_LOG_SIZE_MAX_BYTES), "Size at which a new entry log is begun."),
    ),
    _Setting(
        *("openFileLimit", "entry_log_open_files_max", _INT, at_least(1)),
        "Entry logs that are kept open.",
    ),
    _Setting(
        *("dbStorage_readAheadCacheBatchBytesSize", "read_ahead_size_bytes", _LONG),
        *(at_least(1), "Bytes that are read ahead after a miss."),
    ),
    _Setting(
        *("nettyMaxFrameSizeBytes", "entry_size_max_bytes", _INT, at_least(KIB)),
        "The largest entry that is taken.",
    ),
    _Setting(
        *("dbStorage_rocksDB_blockCacheSize", "index_block_cache_size_bytes", _LONG),
        *(at_least(1), "Memory for blocks of the index."),
    ),
)

_KNOWN = """
advertisedAddress allocatorExitOnOutOfMemory allocatorLeakDetectionPolicy
allocatorOutOfMemoryPolicy allocatorPoolingConcurrency allocatorPoolingPolicy allowEphemeralPorts
allowLoopback allowMultipleDirsUnderSameDiskPartition allowShadedLedgerManagerFactoryClass
allowStorageExpansion auditorAcquireConcurrentOpenLedgerOperationsTimeOutMSec
auditorLedgerVerificationPercentage auditorMaxNumberOfConcurrentOpenLedgerOperations
auditorPeriodicBookieCheckInterval auditorPeriodicCheckInterval
auditorPeriodicPlacementPolicyCheckInterval auditorReplicasCheckInterval authorizedRoles
autoRecoveryDaemonEnabled bookieAuthProviderFactoryClass bookieDeathWatchInterval bookiePort
byteBufAllocatorSizeInitial byteBufAllocatorSizeMax byteBufAllocatorSizeMin
closeChannelOnResponseTimeout compactionMaxOutstandingRequests compactionRate
compactionRateByBytes compactionRateByEntries dataIntegrityChecking
dataIntegrityStampMissingCookies dbStorage_directIOEntryLogger
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
entryLocationRocksdbConf entryLogFilePreallocationEnabled entryLogPerLedgerCounterLimitsMultFactor
entryLogPerLedgerEnabled entrylogMapAccessExpiryTimeInSeconds extraServerComponents
fileInfoCacheInitialCapacity fileInfoFormatVersionToWrite fileInfoMaxIdleTime forceAllowCompaction
forceReadOnlyBookie gcEntryLogMetadataCacheEnabled gcEntryLogMetadataCachePath
gcMetadataOpRateLimit gcOverreplicatedLedgerMaxConcurrentRequests gcOverreplicatedLedgerWaitTime
gcWaitTime httpServerEnabled httpServerHost httpServerKeyStorePassword httpServerKeyStorePath
httpServerPort httpServerTlsEnable httpServerTrustStorePassword httpServerTrustStorePath
ignoreExtraServerComponentsStartupFailures ignoreLocalNodeInPlacementPolicy
inFlightReadEntryNumInLedgerChecker indexDirectories isForceGCAllowWhenNoSpace isThrottleByBytes
journalAdaptiveGroupWrites journalBufferedEntriesThreshold journalChannelProvider
journalDirectories journalFlushWhenQueueEmpty journalFormatVersionToWrite journalMaxGroupWaitMSec
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
numJournalCallbackThreads numLongPollWorkerThreads numOfMemtableFlushThreads numReadWorkerThreads
openLedgerRereplicationGracePeriod pageLimit pageSize permittedStartupUsers
persistBookieStatusEnabled preserveMdcForTaskExecution readBufferSizeBytes readOnlyModeEnabled
readOnlyModeOnAnyDiskFullEnabled readWorkerThreadsThrottlingEnabled readahead-max-batch-size
registrationManagerClass repairedPlacementPolicyNotAdheringBookieEnabled replicationRateByBytes
requestTimerNumTicks requestTimerTickDurationMs rereplicationEntryBatchSize rwRereplicateBackoffMs
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
waitTimeoutOnResponseBackpressureMs write-cache-max-size writeBufferSizeBytes zkEnableSecurity
zkLedgersRootPath zkRequestRateLimit zkRetryBackoffMaxMs zkRetryBackoffMaxRetries
zkRetryBackoffStartMs zkServers zkTimeout
"""

BOOKIE_CONFIGS = ConfigTable(
    "BookKeeper",
    [
        *(ConfigKey(s.name, s.type, None, s.doc, s.validator) for s in _SETTINGS),
        *(ConfigKey(name, _STRING, has_effect=False) for name in _KNOWN.split()),
    ],
    hints={"ledgerDirectory": "ledgerDirectories"},
)


def bookie_config_fields(values: Mapping[str, ConfigValue]) -> dict[str, int | str]:
    """Parsed values by BookKeeper's names -> the fields of a `BookieConfig` that they set, in its
    units. Names without meaning are left out."""
    chosen: dict[str, int | str] = {}
    for setting in _SETTINGS:
        value = values.get(setting.name)
        if isinstance(value, str):
            chosen[setting.field] = value
        elif isinstance(value, int):
            chosen[setting.field] = value * setting.factor
    return chosen
