"""What a role begins with is a setting of its tables, is what the role runs with, and loses."""

import pytest

from bookie.config_definitions import BOOKIE_CONFIGS
from bookie.space.gc_config import GcConfig
from broker.cluster.config import BROKER_CONFIGS
from ledger.autorecovery.config import AUTORECOVERY_CONFIGS
from ledger.config import LedgerClientConfig
from ledger.config_definitions import CLIENT_KEYS, client_config
from quire.autorecovery_node import standalone_config
from quire.role_defaults import ENTRY_CACHE, GARBAGE, ROLES, copies, ensemble_change, fields_by
from runtime.config import ConfigTable

TABLES = (
    *(BROKER_CONFIGS, BOOKIE_CONFIGS, AUTORECOVERY_CONFIGS),
    ConfigTable("the ledger client", CLIENT_KEYS),
)


@pytest.mark.parametrize("one", ROLES, ids=lambda one: one.role)
def test_each_is_a_setting_and_another_value_than_its_declaration_has(one):
    for name, text in one.defaults.items():
        [key] = [key for table in TABLES for key in table if key.name == name and key.has_effect]
        assert key.parse(text) != key.parse_default()


def test_collection_of_a_machine_with_little_data():
    config = GcConfig(**fields_by(GcConfig, GARBAGE))
    assert (config.wait_ms, config.minor_interval_ms, config.major_interval_ms) == (
        10_000,
        60_000,
        3_600_000,
    )
    assert (config.throttle_by_bytes, config.rate_bytes) == (True, 32 << 20)


@pytest.mark.parametrize("values", [{}, {"quire.entry.cache.size.mb": 0}])
def test_what_is_set_wins(values):
    base = LedgerClientConfig(**fields_by(LedgerClientConfig, ENTRY_CACHE))
    assert client_config(values, base).entry_cache_bytes == (0 if values else 64 << 20)


@pytest.mark.parametrize(
    ("count", "wanted", "waits"), [(2, "2", True), (3, "3", True), (9, "3", False)]
)
def test_copies_are_as_many_as_there_are_bookies_for(count, wanted, waits):
    assert set(copies(count).values()) == {wanted}
    fields = fields_by(LedgerClientConfig, ensemble_change(count))
    assert fields == {"delay_ensemble_change": waits}


@pytest.mark.parametrize(("texts", "delay"), [({}, 60), ({"lostBookieRecoveryDelay": "0"}, 0)])
def test_a_lost_bookie_of_a_standalone_server_is_waited_for(texts, delay):
    assert standalone_config(texts).lost_bookie_recovery_delay_s == delay


def test_a_name_that_a_class_does_not_declare():
    with pytest.raises(KeyError, match="gcWaitTime"):
        fields_by(LedgerClientConfig, GARBAGE)
