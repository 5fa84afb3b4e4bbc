"""BookKeeper's names that mean nothing to a bookie of ours, and what of them is refused.

Data, and one check. Names are those of `ServerConfiguration`, of `bk_server.conf` as Apache ships
it, and of what clients and auto-recovery read from that file. A bookie takes them with a log line.
Those that promise safety end the start when they are set to what would not be done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from runtime.config import ConfigError, ConfigKey, ConfigType

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runtime.config import ConfigValue

STRING = ConfigType.STRING

_NAMES = """\
allocatorExitOnOutOfMemory allocatorLeakDetectionPolicy allocatorOutOfMemoryPolicy
allocatorPoolingConcurrency allocatorPoolingPolicy allowMultipleDirsUnderSameDiskPartition
allowShadedLedgerManagerFactoryClass auditorAcquireConcurrentOpenLedgerOperationsTimeOutMSec
autoRecoveryDaemonEnabled bookieAddressResolverEnabled bookieDeathWatchInterval
byteBufAllocatorSizeInitial byteBufAllocatorSizeMax byteBufAllocatorSizeMin
clientTrustStorePasswordPath closeChannelOnResponseTimeout codahaleStatsCSVEndpoint
codahaleStatsGraphiteEndpoint codahaleStatsJmxEndpoint codahaleStatsOutputFrequencySeconds
codahaleStatsPrefix codahaleStatsSlf4jEndpoint compactionMaxOutstandingRequests
dataIntegrityChecking dataIntegrityStampMissingCookies dbStorage_directIOEntryLogger
dbStorage_directIOEntryLoggerMaxFdCacheTimeSeconds dbStorage_directIOEntryLoggerReadBufferSizeMB
dbStorage_directIOEntryLoggerTotalReadBufferSizeMB
dbStorage_directIOEntryLoggerTotalWriteBufferSizeMB dbStorage_maxThrottleTimeMs
dbStorage_readAheadCacheBatchSize dbStorage_rocksDB_blockSize
dbStorage_rocksDB_bloomFilterBitsPerKey dbStorage_rocksDB_checksum_type
dbStorage_rocksDB_format_version dbStorage_rocksDB_logLevel dbStorage_rocksDB_logPath
dbStorage_rocksDB_lz4CompressionEnabled dbStorage_rocksDB_maxSizeInLevel1MB
dbStorage_rocksDB_numFilesInLevel0 dbStorage_rocksDB_numLevels dbStorage_rocksDB_sstSizeInMB
dbStorage_rocksDB_writeBufferSizeMB defaultRocksdbConf desiredNumZonesPerWriteQuorum digestType
disableServerSocketBind dlog.bkcAckQuorumSize dlog.bkcEnsembleSize dlog.bkcWriteQuorumSize
enableBusyWait enableDigestTypeAutodetection enableHealthCheck enableLocalTransport
enableTaskExecutionStats enforceMinNumFaultDomainsForWrite enforceStrictZoneawarePlacement
entryFormatterClass entryLocationRocksdbConf entryLogFilePreallocationEnabled
entrylogMapAccessExpiryTimeInSeconds entryLogPerLedgerCounterLimitsMultFactor
entryLogPerLedgerEnabled exposeDefaultJVMMetrics extraServerComponents
fileInfoCacheInitialCapacity fileInfoFormatVersionToWrite fileInfoMaxIdleTime
gcEntryLogMetadataCacheEnabled gcEntryLogMetadataCachePath
gcOverreplicatedLedgerMaxConcurrentRequests gcOverreplicatedLedgerWaitTime httpServerClass
httpServerKeyStorePassword httpServerKeyStorePath httpServerTlsEnable httpServerTrustStorePassword
httpServerTrustStorePath ignoreExtraServerComponentsStartupFailures
ignoreLocalNodeInPlacementPolicy indexDirectories inFlightReadEntryNumInLedgerChecker
journalAdaptiveGroupWrites journalBufferedEntriesThreshold journalChannelProvider
journalFlushWhenQueueEmpty journalFormatVersionToWrite journalMaxGroupWaitMSec
journalPageCacheFlushIntervalMSec journalPreAllocSizeMB journalQueueSize
journalRemoveFromPageCache journalReuseFiles journalSyncData journalWriteBufferSizeKB
journalWriteData ledgerIdFormatterClass ledgerManagerFactoryClass
ledgerManagerFactoryDisableClassCheck ledgerManagerType ledgerMetadataRocksdbConf
ledgerMetadataVersion ledgerStorageClass limitStatsLogging maximumNumberOfActiveEntryLogs
maxOperationNumbersInSingleRocksdbWriteBatch metastoreImplClass metastoreMaxEntriesPerScan
minNumZonesPerWriteQuorum minUsableSizeForIndexFileCreation networkTopologyScriptNumberArgs
networkTopologyStabilizePeriodSeconds numAddWorkerThreads numHighPriorityWorkerThreads
numJournalCallbackThreads numLongPollWorkerThreads numOfMemtableFlushThreads numReadWorkerThreads
pageLimit pageSize passwd persistBookieStatusEnabled preserveMdcForTaskExecution
prometheusStatsLatencyRolloverSeconds readBufferSizeBytes readWorkerThreadsThrottlingEnabled
registrationManagerClass reorderReadSequenceEnabled reppDnsResolverClass requestTimerNumTicks
requestTimerTickDurationMs sanityCheckMetricsEnabled serverNumAcceptorThreads serverNumIOThreads
serverSockKeepalive serverTcpLinger serverTcpNoDelay serverWriteBufferHighWaterMark
serverWriteBufferLowWaterMark shadedLedgerManagerFactoryClassPrefix skipListArenaChunkSize
skipListArenaMaxAllocSize skipListSizeLimit skipReplayJournalInvalidRecord
sortedLedgerStorageEnabled storage.cluster.controller.schedule.interval.ms
storage.range.store.dirs storage.serve.readonly.tables storageserver.grpc.port
storeSystemTimeAsLedgerCreationTime storeSystemTimeAsLedgerUnderreplicatedMarkTime
tlsCertFilesRefreshDurationSeconds tlsEnabledCipherSuites tlsEnabledProtocols tlsProvider
tlsTrustStorePasswordPath useHostNameAsBookieID useShortHostName useTransactionalCompaction
verifyMetadataOnGC waitTimeoutOnResponseBackpressureMs writeBufferSizeBytes
zkReplicationTaskRateLimit zkRequestRateLimit zkRetryBackoffMaxMs zkRetryBackoffMaxRetries
zkRetryBackoffStartMs
"""

#: A client reads them, or auto-recovery, from the file that a bookie has beside it.
_OF_OTHER_ROLES = """\
addEntryQuorumTimeoutSec addEntryTimeoutSec auditorLedgerVerificationPercentage
auditorMaxNumberOfConcurrentOpenLedgerOperations auditorPeriodicBookieCheckInterval
auditorPeriodicCheckInterval auditorPeriodicPlacementPolicyCheckInterval
auditorReplicasCheckInterval bookieErrorThresholdPerInterval bookieHealthCheckEnabled
bookieHealthCheckIntervalSeconds bookieMaxMultipleForWeightBasedPlacement
bookieQuarantineTimeSeconds clientAuthProviderFactoryClass clientConnectTimeoutMillis
clientKeyStore clientKeyStorePasswordPath clientKeyStoreType clientTrustStore clientTrustStoreType
delayEnsembleChange diskWeightBasedPlacementEnabled enforceMinNumRacksPerWriteQuorum
ensemblePlacementPolicy explicitLacInterval firstSpeculativeReadLACTimeout
firstSpeculativeReadTimeout getBookieInfoIntervalSeconds getBookieInfoRetryIntervalSeconds
lockReleaseOfFailedLedgerGracePeriod lostBookieRecoveryDelay maxSpeculativeReadTimeout
minNumRacksPerWriteQuorum networkTopologyScriptFileName networkTopologyTableFileName
openLedgerRereplicationGracePeriod quire.entry.cache.size.mb quire.replication.ledgers
quire.replication.rate.entries readEntryTimeoutSec recoveryReadBatchSize
repairedPlacementPolicyNotAdheringBookieEnabled replicationRateByBytes
reppMinimumRegionsForDurability reppRegionsToWrite rereplicationEntryBatchSize
rwRereplicateBackoffMs saslJaasAuditorSectionName saslJaasClientSectionName stickyReadSEnabled
tlsHostnameVerificationEnabled underreplicatedLedgerRecoveryGracePeriod
"""


#: Setting -> the value that promises what is not done, and why not.
_PROMISES: Mapping[str, tuple[str, str]] = {
    "allowMultipleDirsUnderSameDiskPartition": (
        *("false", "whether directories share a disk is not looked at"),
    ),
    "autoRecoveryDaemonEnabled": (
        *("true", "a bookie repairs nothing: quire autorecovery does, as a process of its own"),
    ),
    "dataIntegrityChecking": (
        *("true", "auto-recovery looks for what a bookie has lost, and its start does not"),
    ),
    "dataIntegrityStampMissingCookies": (
        *("true", "auto-recovery looks for what a bookie has lost, and its start does not"),
    ),
    "disableServerSocketBind": ("true", "a bookie always listens"),
    "httpServerTlsEnable": ("true", "its pages are served without TLS only"),
}

KNOWN_KEYS: tuple[ConfigKey, ...] = tuple(
    ConfigKey(name, STRING, None, "A setting of BookKeeper.", has_effect=False)
    for name in (*_NAMES.split(), *_OF_OTHER_ROLES.split())
)


def check_promises(values: Mapping[str, ConfigValue]) -> None:
    """ConfigError for a setting of a bookie that somebody relies on, and that is not done."""
    for name, (promising, why_not) in _PROMISES.items():
        value = values.get(name)
        if isinstance(value, str) and value.strip().lower() == promising:
            raise ConfigError(name, f"{name}={value} cannot be kept: {why_not}")
