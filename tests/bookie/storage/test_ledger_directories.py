"""Several ledger directories: where logs go, what the cookies say, how the set may grow."""

import collections
import random

import pytest

from bookie.config import BookieConfig
from bookie.config_definitions import BOOKIE_CONFIGS, bookie_config
from bookie.cookie import Cookie, parse_cookie
from bookie.errors import BookieStartError
from bookie.storage.entry_log_format import log_id_of
from bookie.storage.ledger_directories import LedgerDirectories
from runtime.config import ConfigError
from wire.bookkeeper.status import Status

PATHS = ("/a/current", "/b/current", "/c/current")


class Usages:
    """A disk that only tells how full it is."""

    def __init__(self, free_bytes, total_bytes=1000):
        self.free = dict(zip(PATHS, free_bytes, strict=True))
        self.total_bytes = total_bytes

    def usage(self, path):
        return self.total_bytes, self.free[path]


def choices(tiny, free_bytes, **config):
    directories = LedgerDirectories(
        tiny(**config), Usages(free_bytes), random.Random(1), tuple(PATHS)
    )
    return collections.Counter(directories.choose() for _ in range(3000))


def test_logs_are_spread_by_free_space(tiny):
    found = choices(tiny, (100, 200, 300), entry_log_creation_min_usable_bytes=1)
    assert [round(found[path] / 500) for path in PATHS] == [1, 2, 3]


def test_full_directories_are_skipped(tiny):
    assert set(choices(tiny, (10, 200, 40), entry_log_creation_min_usable_bytes=1)) == {
        "/b/current"
    }


def test_directories_without_room_for_a_log_come_last(tiny):
    found = choices(tiny, (100, 200, 300), entry_log_creation_min_usable_bytes=250)
    assert set(found) == {"/c/current"}
    found = choices(tiny, (100, 200, 240), entry_log_creation_min_usable_bytes=250)
    assert set(found) == set(PATHS)


def test_if_all_are_full_the_one_with_most(tiny):
    assert set(choices(tiny, (10, 30, 20))) == {"/b/current"}


def test_settings_by_bookkeepers_names():
    texts = {
        "ledgerDirectories": " /a , /b,/c ",
        "allowStorageExpansion": "true",
        "diskUsageThreshold": "0.8",
        "diskUsageWarnThreshold": "0.7",
        "diskUsageLwmThreshold": "0.6",
        "diskCheckInterval": "500",
        "minUsableSizeForHighPriorityWrites": "12345",
        "readOnlyModeEnabled": "false",
        "isForceGCAllowWhenNoSpace": "true",
    }
    values = BOOKIE_CONFIGS.parse(texts)
    config = bookie_config(
        values,
        bookie_id="b",
        instance_id="i",
        journal_directory="/j",
        ledger_directory="/l",
        verify_digest_on_write=True,
        held_adds_max=1,
        held_adds_size_max_bytes=1,
    )
    assert config.ledger_directories == ("/a", "/b", "/c")
    assert config.allow_storage_expansion
    assert config.disk_usage_threshold == 0.8
    assert config.disk_usage_low_water_mark == 0.6
    assert config.disk_check_interval_ms == 500
    assert config.high_priority_min_usable_bytes == 12345
    assert not config.read_only_mode_enabled
    assert config.force_gc_when_no_space


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"more_ledger_directories": ("/ledgers",)}, "ledgerDirectories"),
        (
            {"disk_usage_threshold": 0.5, "disk_usage_warn_threshold": 0.6},
            "diskUsageWarnThreshold",
        ),
        ({"disk_usage_threshold": 1.5}, "diskUsageThreshold"),
        ({"disk_usage_low_water_mark": 0.99}, "diskUsageLwmThreshold"),
        ({"disk_check_interval_ms": 0}, "diskCheckInterval"),
    ],
)
def test_settings_that_do_not_go_together(tiny, wrong, name):
    with pytest.raises(ConfigError, match=f"^{name}="):
        tiny(**wrong)


def test_the_cookie_names_all_as_bookkeeper_does():
    cookie = Cookie("host:3181", "/j", "/a", "id", ("/b", "/c"))
    assert 'ledgerDirs: "3\\t/a\\t/b\\t/c"' in cookie.encode()
    assert parse_cookie(cookie.encode()) == cookie
    with pytest.raises(ValueError, match="says 2 directories, and names 3"):
        parse_cookie(cookie.encode().replace('"3\\t', '"2\\t'))


async def write(bookie, adds_class, ledger_id, count=40):
    adds = adds_class(bookie)
    for entry_id in range(count):
        adds.add(ledger_id, entry_id, bytes(1000))
        await adds.wait(entry_id + 1)
    await bookie.flush()
    assert set(adds.statuses()) == {Status.EOK}


async def check(bookie, entry_bytes, ledger_id, count=40):
    _, entries = await bookie.read_entries(ledger_id, 0, 0, 1 << 30)
    expected = [entry_bytes(ledger_id, i, bytes(1000)) for i in range(count)]
    assert [bytes(entry) for entry in entries] == expected


def logs_in(machine, directory):
    return {name for name in machine.disk.list(directory) if log_id_of(name) is not None}


async def test_logs_of_all_directories_are_found_again(machine_class, adds_class, entry_bytes):
    machine = machine_class(more_ledger_directories=("/more",))
    for ledger_id in range(3):
        async with machine.running() as bookie:
            await write(bookie, adds_class, ledger_id)
    first, more = logs_in(machine, "/ledgers/current"), logs_in(machine, "/more/current")
    assert first
    assert more
    assert not first & more, "an id is used once over all"
    async with machine.running_until_crash() as bookie:
        for ledger_id in range(3):
            await check(bookie, entry_bytes, ledger_id)


async def refused(machine, match):
    with pytest.raises(BaseExceptionGroup) as error:
        async with machine.running():
            pass
    assert error.group_contains(BookieStartError, match=match, depth=None)


async def test_a_set_that_changed_is_refused(machine_class, adds_class):
    machine = machine_class(more_ledger_directories=("/more",))
    async with machine.running() as bookie:
        await write(bookie, adds_class, 1)
    whole = machine.config
    for others, words in (
        (("/more", "/new"), "allowStorageExpansion"),
        ((), "another bookie's data, or the configuration"),
        (("/other",), "another bookie's data, or the configuration"),
    ):
        machine.config = _with(whole, more_ledger_directories=others)
        await refused(machine, words)
    machine.config = whole
    machine.disk.remove("/more/current/VERSION")
    await refused(machine, "/more/current/VERSION is missing")


def _with(config, **changes):
    values = {name: getattr(config, name) for name in BookieConfig.__dataclass_fields__}
    return BookieConfig(**{**values, **changes})


async def test_expansion(machine_class, adds_class, entry_bytes):
    machine = machine_class()
    async with machine.running() as bookie:
        await write(bookie, adds_class, 1)
    grown = _with(
        machine.config, more_ledger_directories=("/new", "/newer"), allow_storage_expansion=True
    )
    machine.config = grown
    machine.disk.make_directory("/newer/current")
    stray = machine.disk.open("/newer/current/7f.log", create=True)
    stray.close()
    await refused(machine, "/newer/current is to be added .* not empty")
    machine.disk.remove("/newer/current/7f.log")
    async with machine.running() as bookie:
        await write(bookie, adds_class, 2)
        await check(bookie, entry_bytes, 1)
    machine.config = _with(grown, allow_storage_expansion=False)
    async with machine.running() as bookie:
        await check(bookie, entry_bytes, 1)
        await check(bookie, entry_bytes, 2)
    # It grew, so it may not shrink again, and a disk that is not mounted is missed.
    machine.disk.remove("/new/current/VERSION")
    machine.config = grown
    await refused(machine, "/new/current/VERSION is missing")


async def test_expansion_that_a_crash_interrupts(machine_class, adds_class, entry_bytes):
    machine = machine_class()
    async with machine.running() as bookie:
        await write(bookie, adds_class, 1)
    machine.config = _with(
        machine.config, more_ledger_directories=("/new",), allow_storage_expansion=True
    )
    for number in range(1, 12):
        machine.disk.faults.failing_sync_number = machine.disk.sync_count + number
        try:
            async with machine.running_until_crash():
                pass
        except* OSError:
            machine.crash()
        machine.disk.faults.failing_sync_number = None
    async with machine.running() as bookie:
        await check(bookie, entry_bytes, 1)


@pytest.mark.parametrize("seed", range(12))
async def test_a_log_that_comes_back_after_a_power_failure_has_nobody_elses_id(
    machine_class, monkeypatch, autojump_clock, seed
):
    """A start on a full disk made a log and removed it; the next one took its id in another
    directory. Of unsynced changes of a directory any may be lost."""
    machine = machine_class(seed, more_ledger_directories=("/more",), disk_reserve_size_bytes=0)
    async with machine.running_until_crash():
        pass
    chosen = ["/more/current"]
    monkeypatch.setattr(LedgerDirectories, "choose", lambda self: chosen[0])
    machine.disk.faults.capacity_bytes = machine.disk.used_bytes
    with pytest.RaisesGroup(
        pytest.RaisesExc(OSError, match="No space left"), flatten_subgroups=True
    ):
        async with machine.running():
            pass
    machine.disk.faults.capacity_bytes = 1 << 40
    chosen[0] = "/ledgers/current"
    async with machine.running_until_crash():
        pass
    async with machine.running() as bookie:
        assert bookie.list_ledgers() == []
