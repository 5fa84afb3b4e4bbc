"""BookKeeper's client settings by name: what they come to, and what is refused."""

import pytest

from joined.node_configs import NODE_CONFIGS
from ledger.config import LedgerClientConfig
from ledger.config_definitions import (
    Policy,
    client_config,
    network_config,
    placement_config,
)
from ledger.placement.candidates import BOOKIE_INFO_INTERVAL_SECONDS, BOOKIE_INFO_RETRY_SECONDS
from ledger.placement.spread import SpreadRules
from runtime.config import ConfigError

REGIONS = "org.apache.bookkeeper.client.RegionAwareEnsemblePlacementPolicy"


def parsed(**texts):
    return NODE_CONFIGS.parse(texts)


def test_nothing_set_changes_nothing():
    base = LedgerClientConfig(window_entries_max=7, delay_ensemble_change=True)
    assert client_config(parsed(), base) == base
    assert placement_config(parsed()).policy is Policy.RANDOM


def test_the_client_settings():
    base = LedgerClientConfig(window_entries_max=7)
    config = client_config(
        parsed(
            delayEnsembleChange="true",
            addEntryQuorumTimeoutSec="3",
            explicitLacInterval="250",
            firstSpeculativeReadTimeout="0",
            bookieErrorThresholdPerInterval="4",
            bookieHealthCheckIntervalSeconds="5",
            bookieQuarantineTimeSeconds="6",
            stickyReadSEnabled="false",
        ),
        base,
    )
    assert config == LedgerClientConfig(
        window_entries_max=7,
        delay_ensemble_change=True,
        add_quorum_timeout_ms=3000,
        explicit_lac_interval_ms=250,
        speculative_read_timeout_ms=0,
        bookie_error_threshold=4,
        bookie_error_interval_ms=5000,
        bookie_quarantine_ms=6000,
        sticky_reads=False,
    )
    assert client_config(parsed(bookieHealthCheckEnabled="false"), base).bookie_quarantine_ms == 0
    with pytest.raises(ConfigError, match=r"recoveryReadBatchSize='0' .*: the least is 1"):
        parsed(recoveryReadBatchSize="0")


def test_the_network_settings():
    config = network_config(parsed(addEntryTimeoutSec="1", clientConnectTimeoutMillis="20"))
    assert (config.add_timeout_ms, config.read_timeout_ms) == (1000, 5000)
    assert config.connect_timeout_ms == 20


@pytest.mark.parametrize(
    ("texts", "policy", "rules"),
    [
        ({"ensemblePlacementPolicy": "DefaultEnsemblePlacementPolicy"}, Policy.RANDOM, {}),
        ({"networkTopologyScriptFileName": "/bin/x"}, Policy.RACKS, {}),
        (
            {"minNumRacksPerWriteQuorum": "3", "enforceMinNumRacksPerWriteQuorum": "true"},
            Policy.RACKS,
            {"min_racks": 3, "enforce_racks": True},
        ),
        (
            {
                "diskWeightBasedPlacementEnabled": "true",
                "bookieMaxMultipleForWeightBasedPlacement": "0",
            },
            Policy.RACKS,
            {"is_weighted": True, "max_weight_multiple": 0},
        ),
        ({"ensemblePlacementPolicy": REGIONS}, Policy.REGIONS, {"min_regions": 2}),
        (
            {
                "ensemblePlacementPolicy": REGIONS,
                "reppRegionsToWrite": "east; /west",
                "reppMinimumRegionsForDurability": "1",
            },
            Policy.REGIONS,
            {"min_regions": 1, "regions": ("/east", "/west")},
        ),
        # Of regions only who asks for regions reads.
        ({"reppRegionsToWrite": "east"}, Policy.RACKS, {}),
    ],
)
def test_the_placement(texts, policy, rules):
    config = placement_config(parsed(**texts))
    assert config.policy is policy
    assert config.rules == SpreadRules(**rules)


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        ({"ensemblePlacementPolicy": "a.b.Zoneaware"}, "Zoneaware is not known here; Default"),
        (
            {"networkTopologyScriptFileName": "a", "networkTopologyTableFileName": "b"},
            "networkTopologyScriptFileName is set, too",
        ),
    ],
)
def test_what_is_refused(texts, words):
    with pytest.raises(ConfigError, match=words):
        placement_config(parsed(**texts))


def test_where_hosts_are_and_how_often_bookies_are_asked():
    unset = placement_config(parsed())
    assert (unset.script_path, unset.table_path) == (None, None)
    assert unset.info_interval_seconds == BOOKIE_INFO_INTERVAL_SECONDS
    assert unset.info_retry_seconds == BOOKIE_INFO_RETRY_SECONDS
    config = placement_config(
        parsed(
            networkTopologyTableFileName="/t",
            getBookieInfoIntervalSeconds="7",
            getBookieInfoRetryIntervalSeconds="8",
        )
    )
    assert (config.policy, config.table_path) == (Policy.RACKS, "/t")
    assert (config.info_interval_seconds, config.info_retry_seconds) == (7, 8)
