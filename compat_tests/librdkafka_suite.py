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
from dataclasses import dataclass
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent))

from harness import paths, tools

LIST = paths.COMPAT / "librdkafka_tests.txt"
TIMEOUT_S = 240
SCENARIOS = ("", "noautocreate", "sockem", "rf3", "rf3-noautocreate")


@dataclass(frozen=True, slots=True)
class Expected:
    name: str
    scenario: str


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
    """(tests that must pass, left-out test -> reason); ValueError on a line it cannot use."""
    wanted: list[Expected] = []
    left_out: dict[str, str] = {}
    for number, line in enumerate(path.read_text().splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        name, _, rest = line.partition(" ")
        if name.startswith("-"):
            if not rest:
                raise ValueError(f"{path.name}:{number}: {name} is left out without a reason")
            left_out[name[1:]] = rest
        elif rest not in SCENARIOS:
            raise ValueError(f"{path.name}:{number}: no scenario {rest!r}")
        else:
            wanted.append(Expected(name, rest or "default"))
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
    name: str, bootstrap: str, scratch: Path, scenario: str = "default", *, quick: bool = True
) -> Outcome:
    """One test, by itself."""
    configuration = scratch / "test.conf"
    configuration.write_text(f"bootstrap.servers={bootstrap}\ntest.timeout.multiplier=2\n")
    libraries = f"{tests_dir().parent / 'src'}:{tests_dir().parent / 'src-cpp'}"
    environment = {
        **os.environ,
        **tools.java_environment(),
        "LD_LIBRARY_PATH": libraries,
        "RDKAFKA_TEST_CONF": str(configuration),
        # -V, the flag for this, frees what it must not and crashes the runner at its end
        "TEST_KAFKA_VERSION": "4.3.1",
        "KAFKA_PATH": str(tools.kafka_path(scratch / "kafka")),
        "BROKERS": bootstrap,
        "TESTS": name,
    }
    command = [str(tests_dir() / "test-runner"), "-p1", "-L"]
    command += ["-Q"] if quick else []
    # Socket emulation slows every test down; those that are about it need it.
    command += [] if scenario == "sockem" else ["-E"]
    command += ["-s", "noautocreate"] if scenario.endswith("noautocreate") else []
    started = time.monotonic()
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=tests_dir(),
            timeout=TIMEOUT_S,
            check=False,
        )
        output, code = done.stdout, str(done.returncode)
    except subprocess.TimeoutExpired as expired:
        output, code = expired.stdout or b"", f"no end in {TIMEOUT_S} s"
    seconds = time.monotonic() - started
    text = re.sub(r"\x1b\[[0-9;]*m", "", output.decode(errors="replace"))
    row = re.search(rf"^\| {name} +\| +(\w+) +\|", text, re.M)
    verdict = row.group(1) if row else f"no verdict, exit code {code}"
    if verdict == "PASSED" and code != "0":
        verdict = f"PASSED, yet exit code {code}"
    return Outcome(name, verdict, seconds, text)


def main() -> int:
    bootstrap, *names = sys.argv[1:]
    failed = 0
    with tempfile.TemporaryDirectory(prefix="librdkafka-") as scratch:
        scenarios = {test.name: test.scenario for test in read_list()[0]}
        for name in names or list(scenarios):
            outcome = run_test(name, bootstrap, Path(scratch), scenarios.get(name, "default"))
            failed += not outcome.passed
            print(f"{name:50} {outcome.seconds:6.1f} s  {outcome.verdict}", flush=True)
            if not outcome.passed:
                print("\n".join(outcome.output.splitlines()[-60:]))
    print(f"librdkafka: {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
