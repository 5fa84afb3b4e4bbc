"""Settings that contradict each other end the start of every role with a sentence in the words of
who set them, before there is a file."""

import logging

import pytest
from click.testing import CliRunner

from quire.cli import main

EXIT_USAGE = 2
FRAME = "nettyMaxFrameSizeBytes=5242880"
#: What is set -> the line.
OF_A_BOOKIE = {
    "journalMaxSizeMB=1": (
        f"journalMaxSizeMB=1: the largest group needs 14 ({FRAME}, journalAlignmentSize=4096)"
    ),
    "journalMaxSizeMB=13": (
        f"journalMaxSizeMB=13: the largest group needs 14 ({FRAME}, journalAlignmentSize=4096)"
    ),
    "journalMaxSizeMB=-1": (
        f"journalMaxSizeMB=-1: the largest group needs 14 ({FRAME}, journalAlignmentSize=4096)"
    ),
    "nettyMaxFrameSizeBytes=125829120": (
        "journalMaxSizeMB=128: the largest group needs 129 (nettyMaxFrameSizeBytes=125829120,"
        " journalAlignmentSize=4096)"
    ),
    "journalAlignmentSize=1073741824": (
        f"journalMaxSizeMB=128: the largest group needs 3072 ({FRAME},"
        " journalAlignmentSize=1073741824)"
    ),
    "journalAlignmentSize=100": "journalAlignmentSize=100: must be a power of two, at least 64",
    "journalAlignmentSize=32": "journalAlignmentSize=32: must be a power of two, at least 64",
    "logSizeLimit=1048576": (
        f"logSizeLimit=1048576: less than two of the largest entries ({FRAME})"
    ),
    "nettyMaxFrameSizeBytes=1073741823 journalMaxSizeMB=2048": (
        "logSizeLimit=1073741824: less than two of the largest entries"
        " (nettyMaxFrameSizeBytes=1073741823)"
    ),
    "diskUsageThreshold=0.5": "diskUsageWarnThreshold=0.9: more than diskUsageThreshold=0.5",
    "diskUsageWarnThreshold=1": "diskUsageWarnThreshold=1.0: more than diskUsageThreshold=0.95",
    "diskUsageLwmThreshold=1": (
        "diskUsageLwmThreshold=1.0: not between 0 and diskUsageThreshold=0.95"
    ),
    "minorCompactionThreshold=0.8 majorCompactionThreshold=0.8": (
        "minorCompactionThreshold=0.8: must be less than majorCompactionThreshold=0.8"
    ),
    "majorCompactionThreshold=1.5": "majorCompactionThreshold=1.5: is a share, at most 1",
    "minorCompactionThreshold=1.5": "minorCompactionThreshold=1.5: is a share, at most 1",
    "minorCompactionInterval=7200 majorCompactionInterval=7200": (
        "minorCompactionInterval=7200: must be less than majorCompactionInterval=7200"
    ),
    "minorCompactionInterval=60 gcWaitTime=60001": (
        "minorCompactionInterval=60: shorter than gcWaitTime=60001 (ms)"
    ),
    "majorCompactionInterval=60 minorCompactionInterval=0 gcWaitTime=60001": (
        "majorCompactionInterval=60: shorter than gcWaitTime=60001 (ms)"
    ),
    "entryLocationCompactionInterval=9 gcWaitTime=10000": (
        "entryLocationCompactionInterval=9: shorter than gcWaitTime=10000 (ms)"
    ),
}
#: These are chosen for it where several bookies are processes of one server.
OF_DIRECTORIES = {
    "ledgerDirectories=/none/a,/none/b,/none/a": (
        "ledgerDirectories=/none/a,/none/b,/none/a: one is named twice"
    ),
    "ledgerDirectories=,": "ledgerDirectories=',' names no directory",
}
#: Where the least or the most is one of the setting's own.
OF_RANGES = {
    "diskUsageThreshold=0": (
        "diskUsageThreshold='0' is not allowed: expected a share: more than 0, at most 1"
    ),
    "diskUsageWarnThreshold=0": (
        "diskUsageWarnThreshold='0' is not allowed: expected a share: more than 0, at most 1"
    ),
    "logSizeLimit=2147483648": "logSizeLimit='2147483648' is not allowed: the most is 2147483647",
    "nettyMaxFrameSizeBytes=1073741824": (
        "nettyMaxFrameSizeBytes='1073741824' is not allowed: the most is 1073741823"
    ),
}
OF_A_CLIENT = {
    f"{name}=0": f"{name}='0' is not allowed: the least is 1"
    for name in (
        "recoveryReadBatchSize",
        "maxSpeculativeReadTimeout",
        "firstSpeculativeReadLACTimeout",
        "bookieErrorThresholdPerInterval",
        "bookieHealthCheckIntervalSeconds",
    )
}
STANDALONE = ["standalone", "--listen", "127.0.0.1:0", "--data-dir", "data"]
WITH_A_FILE = ["--config", "a.conf"]
ROLES = {
    "standalone": STANDALONE,
    "several brokers": [*STANDALONE, "--processes", "2"],
    "several bookies": [*STANDALONE, "--bookies", "2"],
    "bookie": ["bookie", *WITH_A_FILE],
    "broker": ["broker", *WITH_A_FILE],
    "autorecovery": ["autorecovery", *WITH_A_FILE],
}
HAVE_A_BOOKIE = ("standalone", "several brokers", "several bookies", "bookie")
NAME_DIRECTORIES = ("standalone", "several brokers", "bookie")
HAVE_A_CLIENT = ("standalone", "several brokers", "several bookies", "broker", "autorecovery")
CASES = [
    *((role, *case) for role in HAVE_A_BOOKIE for case in (OF_A_BOOKIE | OF_RANGES).items()),
    *((role, *case) for role in NAME_DIRECTORIES for case in OF_DIRECTORIES.items()),
    *((role, *case) for role in HAVE_A_CLIENT for case in OF_A_CLIENT.items()),
]
#: Nobody is there: a role that gets as far as the metadata waits for them, or fails.
CONFIG = {
    "metadataServiceUri": "quire+unix:///none/metadata.sock",
    "advertisedAddress": "127.0.0.1",
    "allowLoopback": "true",
    "journalDirectories": "journal",
    "ledgerDirectories": "ledgers",
}


@pytest.fixture
def start(tmp_path, monkeypatch):
    """start(role, settings) -> what `quire` said, started in an empty directory."""
    monkeypatch.chdir(tmp_path)
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level

    def start(role, settings):
        text = "".join(f"{name}={value}\n" for name, value in CONFIG.items())
        (tmp_path / "a.conf").write_text(text)
        words = [word for setting in settings for word in ("--set", setting)]
        return CliRunner().invoke(main, [*ROLES[role], *words])

    yield start
    root.handlers[:] = handlers  # the log went to what the runner took for stderr
    root.setLevel(level)


@pytest.mark.parametrize(("role", "settings", "line"), CASES)
def test_a_contradiction_ends_the_start_with_a_sentence(start, tmp_path, role, settings, line):
    result = start(role, settings.split())
    assert result.stderr == f"Error: {line}\n"
    assert (result.stdout, result.exit_code) == ("", EXIT_USAGE)
    assert [path.name for path in tmp_path.iterdir()] == ["a.conf"]
