"""What a bookie's configuration refuses: who set it is told of settings, not of our fields."""

import pytest

from bookie.config import MIB, BookieConfig
from runtime.config import ConfigError


def made(**changes):
    own = {
        "bookie_id": "b",
        "instance_id": "",
        "journal_directory": "/j",
        "ledger_directory": "/l",
    }
    return BookieConfig(**own, **changes)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            {"journal_size_bytes": 3 * MIB // 2, "journal_group_size_max_bytes": MIB},
            "journalMaxSizeMB=1.5: the largest group needs 7 (nettyMaxFrameSizeBytes=5242880,"
            " journalAlignmentSize=4096)",
        ),
        ({"entry_log_size_limit_bytes": 1 << 31}, "logSizeLimit=2147483648: more than 2147483647"),
        (
            {"write_cache_size_bytes": 7 * MIB},
            "dbStorage_writeCacheMaxSizeMb=7: less than two segments",
        ),
        (
            {"write_cache_size_bytes": 10 * MIB},
            "dbStorage_writeCacheMaxSizeMb=10: half of it does not hold the largest entry"
            " (nettyMaxFrameSizeBytes=5242880)",
        ),
        ({"flush_interval_ms": 0}, "flushInterval=0: must be positive"),
        ({"disk_check_interval_ms": 0}, "diskCheckInterval=0: must be positive"),
        (
            {"disk_usage_threshold": 0.0},
            "diskUsageThreshold=0.0: expected a share: more than 0, at most 1",
        ),
        (
            {"disk_usage_warn_threshold": 1.5},
            "diskUsageWarnThreshold=1.5: expected a share: more than 0, at most 1",
        ),
        (
            {"more_ledger_directories": ("/m", "/l")},
            "ledgerDirectories=/l,/m,/l: one is named twice",
        ),
    ],
)
def test_what_cannot_be_is_told_in_the_words_of_the_settings(changes, line):
    with pytest.raises(ConfigError) as caught:
        made(**changes)
    assert str(caught.value) == line
    assert caught.value.name == line.partition("=")[0]


def test_the_least_that_each_takes():
    made(journal_size_bytes=14 * MIB, write_cache_size_bytes=11 * MIB)
    made(entry_log_size_limit_bytes=10 * MIB)
    made(disk_usage_threshold=0.9, disk_usage_warn_threshold=0.9, disk_usage_low_water_mark=0.9)
