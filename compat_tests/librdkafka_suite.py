"""Runs librdkafka's test-runner, one process per test, and reads its verdict.

By itself, against any broker:  python librdkafka_suite.py BOOTSTRAP NAME...
librdkafka_tests.txt says which tests must pass; test_librdkafka.py holds a server to it.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent))

from harness import paths, tools

LIST = paths.COMPAT / "librdkafka_tests.txt"
TIMEOUT_S = 240
#: Of those of share groups, which wait for most of their time.
SHARE_TIMEOUT_S = 900
#: Words behind a name in the list: see its head.
WORDS = {
    "noautocreate",
    "rf3",
    "joindelay",
    "sockem",
    "full",
    "plain",
    "slow",
    "share",
    "bug",
    "consumer",
    "secured",
}


@dataclass(frozen=True, slots=True)
class Expected:
    """A line of the list. `part` is a piece of the names of the sub-tests to run, "" for all."""

    name: str
    part: str = ""
    words: frozenset[str] = frozenset()
    needs: tuple[str, ...] = ()
    #: group.protocol of the consumers that leave it to the runner.
    protocol: str = "classic"

    @property
    def timeout_s(self) -> float:
        return SHARE_TIMEOUT_S if "share" in self.words else TIMEOUT_S

    def __str__(self) -> str:
        full = "-full" if "full" in self.words else ""
        protocol = "" if self.protocol == "classic" else f"-{self.protocol}"
        return (f"{self.name}/{self.part}" if self.part else self.name) + full + protocol

    def protocols(self) -> list["Expected"]:
        """The test as it is run: once, or once with each protocol of groups."""
        is_both = "consumer" in self.words
        return [self, replace(self, protocol="consumer")] if is_both else [self]

    def settings(self, target: str) -> dict[str, str]:
        """What the test asks of a server, beyond what every suite asks."""
        settings = {}
        if "noautocreate" in self.words:
            settings["auto.create.topics.enable"] = "false"
        if "joindelay" in self.words:
            settings["group.initial.rebalance.delay.ms"] = "2000"
        if "share" in self.words:
            settings["group.share.min.record.lock.duration.ms"] = "1000"
        if "rf3" in self.words and target == "quire":
            settings["quire.clip.replication.factor"] = "true"
        return settings


@dataclass(frozen=True, slots=True)
class Outcome:
    name: str
    verdict: str  # PASSED, FAILED, SKIPPED, or what happened to the process
    seconds: float
    output: str

    @property
    def passed(self) -> bool:
        return self.verdict == "PASSED"


def read_list(path: Path = LIST) -> tuple[list[Expected], dict[str, str]]:
    """(what must pass, left-out test -> reason); ValueError on a line it cannot use."""
    wanted: list[Expected] = []
    left_out: dict[str, str] = {}
    for number, line in enumerate(path.read_text().splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        if line.startswith("-"):
            name, _, reason = line[1:].partition(" ")
            if not reason:
                raise ValueError(f"{path.name}:{number}: {name} is left out without a reason")
            left_out[name] = reason
            continue
        name, *words = line.split()
        name, _, part = name.partition("/")
        needs = tuple(word.removeprefix("needs=") for word in words if word.startswith("needs="))
        rest = frozenset(word for word in words if not word.startswith("needs="))
        if not rest <= WORDS:
            raise ValueError(f"{path.name}:{number}: no such words: {' '.join(rest - WORDS)}")
        wanted.append(Expected(name, part, rest, needs))
    return wanted, left_out


def tests_dir() -> Path:
    return paths.needed(paths.cache_dir() / "librdkafka" / "tests", "librdkafka")


def tests_with_broker() -> set[str]:
    """Names of all tests that talk to a broker, from the table in librdkafka's tests/test.c."""
    source = (tests_dir() / "test.c").read_text()
    table = source[source.index("_TEST(0000_unittests,") :]
    entries = re.split(r"\b_TEST\(", table)[1:]
    names = set()
    for entry in entries:
        name = re.match(r"\w+", entry).group(0)
        # Of each entry only what stands before the next: flags such as TEST_F_LOCAL.
        if name != "name" and "TEST_F_LOCAL" not in entry and "TEST_F_MANUAL" not in entry:
            names.add(name)
    return names


def run_test(
    test: Expected,
    bootstrap: str,
    scratch: Path,
    *,
    properties: dict[str, str] | None = None,
    environment: dict[str, str] | None = None,
    timeout_s: float | None = None,
) -> Outcome:
    """One test, by itself; `properties` and `environment` are told to it beyond the usual ones.
    `timeout_s` None: the test's own."""
    timeout_s = test.timeout_s if timeout_s is None else timeout_s
    name = test.name
    configuration = scratch / "test.conf"
    said = {"bootstrap.servers": bootstrap, "test.timeout.multiplier": "2", **(properties or {})}
    configuration.write_text("".join(f"{key}={value}\n" for key, value in said.items()))
    libraries = f"{tests_dir().parent / 'src'}:{tests_dir().parent / 'src-cpp'}"
    environment = {
        **os.environ,
        **(environment or {}),
        **tools.java_environment(),
        "LD_LIBRARY_PATH": libraries,
        "RDKAFKA_TEST_CONF": str(configuration),
        # -V, the flag for this, frees what it must not and crashes the runner at its end
        "TEST_KAFKA_VERSION": "4.3.1",
        "KAFKA_PATH": str(tools.kafka_path(scratch / "kafka")),
        "BROKERS": bootstrap,
        "TESTS": name,
        "TEST_CONSUMER_GROUP_PROTOCOL": test.protocol,
    }
    environment.pop("CI", None)  # or some tests that measure times skip themselves
    if test.part:
        environment["SUBTESTS"] = test.part
    command = [str(tests_dir() / "test-runner"), "-p1", "-L"]
    command += [] if "full" in test.words else ["-Q"]
    # Socket emulation slows every test down; those that are about it need it.
    command += [] if "sockem" in test.words else ["-E"]
    command += ["-s", "noautocreate"] if "noautocreate" in test.words else []
    started = time.monotonic()
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=tests_dir(),
            timeout=timeout_s,
            check=False,
        )
        output, code = done.stdout, str(done.returncode)
    except subprocess.TimeoutExpired as expired:
        output, code = expired.stdout or b"", f"no end in {timeout_s} s"
    seconds = time.monotonic() - started
    for left in tests_dir().glob(f"stats_{name}_*.json"):
        left.unlink(missing_ok=True)
    text = re.sub(r"\x1b\[[0-9;]*m", "", output.decode(errors="replace"))
    return Outcome(str(test), verdict_of(test, text, code), seconds, text)


def verdict_of(test: Expected, text: str, code: str) -> str:
    """The runner's word for the test, unless that word is not worth much."""
    row = re.search(rf"^\| {test.name} +\| +(\w+) +\|", text, re.M)
    if row is None:
        return f"no verdict, exit code {code}"
    verdict = row.group(1)
    if verdict != "PASSED":
        return verdict
    if code != "0":
        return f"PASSED, yet exit code {code}"
    # The runner is content with a test all of whose parts it left out.
    parts = re.findall(r"\[ (\S+:\d+.*): PASS \(", text)
    if has_parts(test) and not any(test.part in part for part in parts):
        return "PASSED, yet did nothing"
    return verdict


def has_parts(test: Expected) -> bool:
    """Whether the test is made of sub-tests, by which the runner reports; not all are."""
    sources = tests_dir().glob(f"{test.name[:4]}[-_]*.c*")
    (source,) = (path for path in sources if path.suffix in (".c", ".cpp"))
    return "plain" not in test.words and "SUB_TEST" in source.read_text()


def main() -> int:
    bootstrap, *names = sys.argv[1:]
    failed = 0
    with tempfile.TemporaryDirectory(prefix="librdkafka-") as scratch:
        for test in (one for listed in read_list()[0] for one in listed.protocols()):
            if names and test.name not in names and str(test) not in names:
                continue
            outcome = run_test(test, bootstrap, Path(scratch))
            failed += not outcome.passed
            print(f"{outcome.name:50} {outcome.seconds:6.1f} s  {outcome.verdict}", flush=True)
            if not outcome.passed:
                print("\n".join(outcome.output.splitlines()[-60:]))
    print(f"librdkafka: {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
