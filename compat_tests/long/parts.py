"""The parts of `make test-long`: each a command, and the time after which it is ended.

A part is what takes half an hour at most on two cores; what is longer is two parts, or goes on
where it was when it is started again (the mutations).
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
    seconds: float
    #: In the environment besides what is there.
    environment: dict[str, str] = field(default_factory=dict)
    directory: Path = ROOT


def module(name: str, *arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-m", name, *arguments)


def properties(name: str, *folders: str) -> Part:
    """Property tests with many examples. Those of a test take minutes, so it has no limit of its
    own."""
    options = ("-m", "hypothesis", "--hypothesis-profile=long", "-n", "2", "--timeout=0", "-q")
    return Part(f"properties-{name}", (*PYTEST, *options, *folders), 45 * MINUTE)


def compat(name: str, *arguments: str, **environment: str) -> Part:
    return Part(name, (*PYTEST, "-v", *arguments), 45 * MINUTE, environment, ROOT / "compat_tests")


PARTS = (
    compat("librdkafka", "test_librdkafka.py", QUIRE_SUITE="all"),
    compat("kills", "test_kill.py", "--timeout=2400", QUIRE_KILLS="50"),
    Part("mutations", module("sim.mutations", "--jobs", "2"), 60 * MINUTE),
    Part(
        "simulation",
        module("sim", "--count", "1000", "--jobs", "2", "--quiet", "--require-coverage"),
        45 * MINUTE,
    ),
    Part(
        "simulation-blind",
        module("sim", "--count", "300", "--jobs", "2", "--quiet", "--shape", "witness=0"),
        20 * MINUTE,
    ),
    Part(
        "simulation-twice",
        module("sim", "--count", "100", "--jobs", "2", "--quiet", "--twice"),
        20 * MINUTE,
    ),
    properties("wire", "tests/wire", "tests/runtime", "tests/metadata"),
    properties("bookie", "tests/bookie"),
    properties("ledger", "tests/ledger"),
    properties("broker", "tests/broker", "tests/quire"),
    Part(
        "chaos-bookies",
        module("compat_tests.chaos", "bookies", "--minutes", "20"),
        35 * MINUTE,
    ),
    Part(
        "chaos-cluster",
        module("compat_tests.chaos", "cluster", "--minutes", "20"),
        35 * MINUTE,
    ),
    Part("soak", module("bench.soak", "--minutes", "20"), 35 * MINUTE),
)
