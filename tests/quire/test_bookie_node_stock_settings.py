"""A bookie with BookKeeper's own bk_server.conf: as it is shipped, and with every line in force.

stock_bk_server.txt (tests/bookie) has the file's names and values. A test says about a machine what
the file cannot know (addresses, ports, directories), and nothing else.
"""

import logging
import re
from pathlib import Path

import pytest
import trio

from bookie.config_definitions import BOOKIE_CONFIGS, bookie_config, bookie_notes
from bookie.config_definitions_known import check_promises
from joined.node_configs import NODE_CONFIGS
from ledger.autorecovery.config import AUTORECOVERY_CONFIGS
from ledger.client import LedgerClient
from ledger.config import LedgerClientConfig
from ledger.config_definitions import CLIENT_KEYS
from ledger.network.client import NetworkBookieClient
from ledger.placement.random_choice import RandomPlacement
from metadata.memory import MemoryStore
from quire import bookie_node
from runtime.config import ConfigError, load_tables

MIB = 1 << 20
ROOT = Path(__file__).parents[2]
STOCK = Path(__file__).parents[1] / "bookie/stock_bk_server.txt"
LINES = [
    match.groups()
    for line in STOCK.read_text().splitlines()
    if (match := re.fullmatch(r"(#?)([A-Za-z][\w.]*)=(.*)", line, re.ASCII))
]
SHIPPED = {name: value for mark, name, value in LINES if not mark}
#: Where a name comes more than once, the line that is not commented out counts.
EVERY_LINE = {name: value for _, name, value in LINES} | SHIPPED
#: Examples of what a site may have, with which Java's bookie does not start either: there is no
#: class «null», no key «null», and mostly no interface eth0.
EXAMPLES = {name for name in EVERY_LINE if EVERY_LINE[name] == "null"} | {
    *("listeningInterface", "tlsProviderFactoryClass", "tlsClientAuthentication"),
}


def of_this_machine(directory):
    return {
        "bookiePort": "0",
        "allowEphemeralPorts": "true",
        "advertisedAddress": "127.0.0.1",
        "listeningInterface": "lo",
        "allowLoopback": "true",
        "prometheusStatsHttpAddress": "127.0.0.1",
        "prometheusStatsHttpPort": "0",
        "journalDirectories": str(directory / "journal"),
        "journalDirectory": str(directory / "no-journal"),
        "ledgerDirectories": str(directory / "ledgers"),
        # 2 GiB of zeros are written before a file of that size is used.
        "journalMaxSizeMB": "16",
    }


@pytest.fixture
def start_bookie(nursery, network_env, monkeypatch, tmp_path):
    """start(settings) -> a ledger client of a cluster of one bookie, which `quire bookie` runs."""
    store = MemoryStore()
    monkeypatch.setattr(bookie_node, "metadata_store", lambda *_, **__: (store, "/ledgers"))

    async def start(settings):
        text = "".join(f"{name}={value}\n" for name, value in settings.items())
        options = bookie_node.BookieOptions(text, of_this_machine(tmp_path))
        address = await nursery.start(bookie_node.run, options)
        bookies = NetworkBookieClient(network_env, lambda _: address)
        await nursery.start(bookies.run)
        names = set(await store.children("/ledgers/available")) - {"readonly"}
        placement = RandomPlacement(lambda: sorted(names), network_env.rng)
        ledgers = LedgerClient(
            store, bookies, network_env, LedgerClientConfig(), placement=placement
        )
        await nursery.start(ledgers.run)
        return ledgers

    return start


async def serves(ledgers):
    writer = await ledgers.create_ledger(
        ensemble_size=1, write_quorum_size=1, ack_quorum_size=1, custom_metadata={}
    )
    done = trio.Event()
    told = []

    def added(entry_id, error):
        told.append((entry_id, error))
        done.set()

    writer.append_nowait([b"an entry"], added)
    with trio.fail_after(20):
        await done.wait()
        await writer.close()
    assert told == [(0, None)]


def notes(caplog, event="setting_without_effect"):
    return [record.args["note"] for record in caplog.records if record.getMessage() == event]


@pytest.mark.parametrize("what", ["shipped", "every line"])
async def test_it_starts_serves_and_says_what_has_no_effect(start_bookie, caplog, tmp_path, what):
    caplog.set_level(logging.WARNING)
    lines = SHIPPED if what == "shipped" else EVERY_LINE
    settings = {name: value for name, value in lines.items() if name not in EXAMPLES}
    await serves(await start_bookie(settings))
    assert (tmp_path / "journal/current").is_dir()
    assert not (tmp_path / "no-journal").exists()
    told = [note.split()[0] for note in notes(caplog)]
    idle = {name for name in settings if BOOKIE_CONFIGS.knows_without_meaning(name)}
    assert sorted(told) == sorted(idle)
    assert {"httpServerClass", "stickyReadSEnabled", "storageserver.grpc.port"} <= idle
    assert len(idle) > (10 if what == "shipped" else 100)


def test_every_line_is_known_and_allowed():
    """Also by those that read the same file for what is theirs: auto-recovery, say."""
    text = "".join(f"{name}={value}\n" for name, value in EVERY_LINE.items())
    assert len(EVERY_LINE) > 215
    for tables in ([BOOKIE_CONFIGS], [NODE_CONFIGS], [AUTORECOVERY_CONFIGS, NODE_CONFIGS]):
        loaded = load_tables(text, {}, tables)
        assert not any("unknown" in note for note in loaded.notes)
    check_promises(BOOKIE_CONFIGS.parse(load_tables(text, {}, [BOOKIE_CONFIGS]).texts[0]))


def test_what_others_read_is_known_to_a_bookie():
    """One file is for a bookie and for the auto-recovery beside it."""
    theirs = {key.name for key in (*CLIENT_KEYS, *AUTORECOVERY_CONFIGS)}
    assert {name for name in theirs if name not in BOOKIE_CONFIGS} == set()


def config_of(values, **changes):
    return bookie_config(
        values,
        bookie_id="b",
        instance_id="i",
        journal_directory="/j",
        ledger_directory="/l",
        verify_digest_on_write=False,
        held_adds_max=10,
        held_adds_size_max_bytes=1,
        **changes,
    )


def set_to(**texts):
    values = BOOKIE_CONFIGS.parse(texts)
    config = config_of(values)
    return config, bookie_notes(values, config)


@pytest.mark.parametrize(
    ("texts", "field", "value"),
    [
        ({"journalDirectories": "/a"}, "journal_directory", "/a"),
        ({"journalDirectory": "/b"}, "journal_directory", "/b"),
        ({"journalDirectories": "/a", "journalDirectory": "/b"}, "journal_directory", "/a"),
        ({"journalDirectories": ""}, "journal_directory", "/j"),
        ({"journalMaxSizeMB": "2048"}, "journal_size_bytes", 2048 * MIB),
        ({"flushEntrylogBytes": "0"}, "flush_entry_log_bytes", MIB),
        ({"dbStorage_readAheadCacheBatchBytesSize": "-1"}, "read_ahead_size_bytes", 4 * MIB),
        ({"dbStorage_writeCacheMaxSizeMb": "1"}, "write_cache_size_bytes", 11 * MIB),
        ({"dbStorage_writeCacheMaxSizeMb": "10"}, "write_cache_size_bytes", 11 * MIB),
        ({"dbStorage_writeCacheMaxSizeMb": "11"}, "write_cache_size_bytes", 11 * MIB),
        ({"dbStorage_writeCacheMaxSizeMb": ""}, "write_cache_size_bytes", 48 * MIB),
        ({"journalMaxMemorySizeMb": " "}, "journal_queue_size_max_bytes", 64 * MIB),
        ({"dbStorage_rocksDB_blockCacheSize": ""}, "index_block_cache_size_bytes", 64 * MIB),
        ({"bookieId": ""}, "bookie_id", "b"),
        ({"maxPendingAddRequestsPerThread": "7"}, "held_adds_max", 7),
        ({"maxPendingAddRequestsPerThread": "0"}, "held_adds_max", 2**63 - 1),
        ({}, "held_adds_max", 10),
    ],
)
def test_what_stock_values_come_to(texts, field, value):
    assert getattr(set_to(**texts)[0], field) == value


def test_what_acts_otherwise_is_told():
    assert set_to(journalDirectories="/a, /b,/c")[1] == [
        "journalDirectories: there is one journal, in /a; none in /b, /c"
    ]
    assert set_to(dbStorage_writeCacheMaxSizeMb="2")[1] == [
        "dbStorage_writeCacheMaxSizeMb=2 is too small for the largest entry: 11 are used"
    ]
    assert "flushEntrylogBytes=0 has no effect" in set_to(flushEntrylogBytes="0")[1][0]
    assert set_to(dbStorage_writeCacheMaxSizeMb="48", journalDirectories="/a")[1] == []


def test_the_older_name_of_a_limit():
    assert set_to(compactionRate="7")[0].gc.rate_entries == 7
    both = {"compactionRate": "7", "compactionRateByEntries": "8"}
    assert set_to(**both)[0].gc.rate_entries == 8


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("autoRecoveryDaemonEnabled", "True"),
        ("allowMultipleDirsUnderSameDiskPartition", "false"),
        ("dataIntegrityChecking", "true"),
        ("disableServerSocketBind", "true"),
        ("permittedStartupUsers", "nobody-of-that-name,another"),
    ],
)
async def test_what_promises_safety_and_is_not_done_ends_the_start(start_bookie, name, value):
    with pytest.raises(ConfigError, match=name):
        await start_bookie({**SHIPPED, name: value})
