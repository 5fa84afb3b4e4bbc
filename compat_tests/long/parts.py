"""The parts of `make test-long`: each a command, and the time after which it is ended.

All together are to take 90 minutes at most on two cores with nothing else to do, and a part ten:
their limits add up to that, and `--limits` gives a busy machine longer ones. The sizes are from
processor time. A simulated world takes 3 to 5 s of it; there are as many as take four fifths of the
limit at most. What goes on for longer has targets of its own: `make mutations`, `make sim`, `make
soak`.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
PYTEST = (sys.executable, "-m", "pytest")
MINUTE = 60


@dataclass(frozen=True)
class Part:
    name: str
    command: tuple[str, ...]
    #: Then it is ended, and has failed.
    seconds: float
    #: In the environment besides what is there.
    environment: dict[str, str] = field(default_factory=dict)
    directory: Path = ROOT
    #: A regular expression: lines of the output with it go into the table, besides the last one.
    telling: str = ""


def module(name: str, *arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-m", name, *arguments)


def properties(name: str, minutes: float, *folders: str) -> Part:
    """Property tests with many examples. Those of a test take minutes, so it has no limit of its
    own. Two processes take one test at a time."""
    options = ("-m", "hypothesis", "--hypothesis-profile=long", "--timeout=0", "-q")
    processes = ("-n", "2", "--maxschedchunk=1")
    return Part(f"properties-{name}", (*PYTEST, *options, *processes, *folders), minutes * MINUTE)


def compat(name: str, minutes: float, *arguments: str, telling: str, **environment: str) -> Part:
    return Part(
        name,
        (*PYTEST, "-v", *arguments),
        minutes * MINUTE,
        environment,
        ROOT / "compat_tests",
        telling,
    )


def simulation(name: str, minutes: float, *arguments: str) -> Part:
    """Seeds from the clock: other ones each time; the log says which."""
    command = module("sim", "--jobs", "2", "--quiet", *arguments)
    telling = r"^(seeds from|\d+ runs in|reached by no run)"
    return Part(f"simulation{name}", command, minutes * MINUTE, telling=telling)


def chaos(name: str, minutes: float, *arguments: str) -> Part:
    """Three minutes of faults; the rest is for JVMs that start, and for reading all of it back."""
    return Part(
        f"chaos-{name}",
        module("compat_tests.chaos", *arguments, "--minutes", "3"),
        minutes * MINUTE,
        telling=r"(records|entries) acked|records read|deleted, |counts, |^(seed \d|copies:|WRONG)",
    )


#: Tests marked long, that `make test` has no time for: of clusters and their faults, and of Spark.
#: Those of a file share servers, so one process runs it.
LONG = ("-m", "long", "-n", "2", "--dist", "loadfile")
OF_CLUSTERS = (
    *("test_lagging_followers.py", "test_full_disk.py", "test_cluster_faults.py"),
    *("test_autorecovery.py", "test_broker_cluster.py", "test_chaos.py"),
    *("test_operators_guide.py", "test_zookeeper_lag.py", "test_bookkeeper_autorecovery.py"),
    *("test_streams_groups.py", "test_cluster_faults_network.py"),
    *("test_groups_coordinator_gone.py", "test_connect.py"),
)
OF_SPARK = (
    *("test_spark_faults.py", "test_spark_secured.py", "test_spark_examples.py"),
    *("test_spark_quire.py", "test_spark_jobs.py"),
)

PARTS = (
    # They wait for most of their time: three at a time.
    compat(
        *("librdkafka", 9.5, "test_librdkafka.py", "-n", "3", "--maxschedchunk=1"),
        QUIRE_SUITE="slow",
        telling=r"^librdkafka: |^FAILED",
    ),
    compat(
        *("clusters", 7, *OF_CLUSTERS, *LONG),
        QUIRE_SUITE="slow",
        telling=r"^broker|^a broker|^FAILED",
    ),
    compat("spark", 3.5, *OF_SPARK, *LONG, QUIRE_SUITE="slow", telling=r"^Spark|^FAILED"),
    compat("kills", 1, "test_kill.py", "-n", "2", QUIRE_KILLS="10", telling=r"^SIG|^FAILED"),
    compat(
        *("streams", 4.5, "test_streams.py"),
        QUIRE_STREAMS_SECONDS="150",
        telling=r"^Streams|^FAILED",
    ),
    compat(
        *("bank", 2.5, "test_bank_example.py"),
        QUIRE_BANK_SECONDS="120",
        telling=r"^bank example|^FAILED",
    ),
    compat(
        *("testers", 1, "test_copiers.py", "test_java_tools.py::test_log_compaction_tester"),
        *("-n", "2"),
        QUIRE_COPIER_KILLS="2",
        QUIRE_COMPACTION_MESSAGES="500000",
        telling=r"^copiers|^LogCompactionTester|^FAILED",
    ),
    simulation("", 7.5, "--count", "160", "--require-coverage"),
    simulation("-blind", 1.5, "--count", "30", "--shape", "witness=0"),
    simulation("-twice", 1.5, "--count", "14", "--twice"),
    Part(
        "crashes",
        (*PYTEST, "-n", "2", "tests/sim/transactions/test_crashes.py", "-k", "each_append"),
        1.5 * MINUTE,
        {"QUIRE_SWEPT_APPENDS": "8"},
    ),
    properties("wire", 7.5, "tests/wire"),
    properties(
        *("ledger", 5, "tests/ledger", "tests/metadata", "tests/runtime", "tests/quire"),
        *("tests/bookie", "tests/joined", "tests/pyspark_quire", "tests/spark_jobs"),
    ),
    properties("broker", 6.5, "tests/broker"),
    chaos("bookies", 3.5, "bookies"),
    # A minute and more goes by until what is left of deleted topics is collected.
    chaos("lag", 5.5, "bookies", "--lag", "--brokers", "3"),
    chaos("cluster", 4.5, "cluster"),
    chaos("transactions", 4, "transactions", "--network-if-possible"),
    # Groups of the newer protocols on several brokers.
    chaos("groups", 4, "groups", "--network-if-possible"),
    # Three minutes of faults on a cluster all of whose links are secured; beside it tests that wait
    # for most of their time.
    compat(
        *("secured", 4, "test_secured_chaos.py", "test_librdkafka_security.py", "-n", "3"),
        QUIRE_SECURED_SECONDS="180",
        QUIRE_SUITE="slow",
        telling=r"^secured: |^librdkafka: |^FAILED",
    ),
    Part("soak", module("bench.soak", "--minutes", "4"), 4.5 * MINUTE),
)
