"""Runs kafka-python's integration tests against a broker and reads what became of each.

By itself, against any broker:  python kafka_python_suite.py BOOTSTRAP
kafka_python_tests.txt says which tests must pass; test_kafka_python_suite.py holds a server to it.
"""

import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent))

from harness import paths

LIST = paths.COMPAT / "kafka_python_tests.txt"
TIMEOUT_S = 400


def read_list(path: Path = LIST) -> tuple[dict[str, tuple[str, ...]], dict[str, str]]:
    """(test that must pass -> features it needs, left-out test -> reason); names as `outcomes`
    gives them."""
    wanted: dict[str, tuple[str, ...]] = {}
    left_out: dict[str, str] = {}
    for number, line in enumerate(path.read_text().splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        if line.startswith("-"):
            name, _, reason = line[1:].partition(" because ")
            if not reason:
                raise ValueError(f"{path.name}:{number}: left out without a reason")
            left_out[name] = reason
            continue
        name, *words = line.split()
        if not all(word.startswith("needs=") for word in words):
            raise ValueError(f"{path.name}:{number}: only needs=FEATURE may follow a name")
        wanted[name] = tuple(word.removeprefix("needs=") for word in words)
    return wanted, left_out


#: Files whose tests start brokers of their own, with logins and with TLS.
SECURED = ("test_sasl_integration", "test_ssl_integration")


def outcomes(
    bootstrap: str, scratch: Path, only: list[str] | None = None
) -> tuple[dict[str, str], str]:
    """Runs what needs one running broker, or `only` some tests of it.

    Gives (file::test -> passed, skipped, failed or error; what it wrote)."""
    arguments = [f"test/integration/{_path(name)}" for name in only or ()]
    if only is None:
        arguments = ["test/integration"]
        arguments += [f"--ignore=test/integration/{name}.py" for name in SECURED]
    return _run(arguments, scratch, {"KAFKA_URI": f"kafka://{bootstrap}"})


def secured_outcomes(scratch: Path) -> tuple[dict[str, str], str]:
    """The same of SECURED's files, whose brokers kafka_python_brokers.py makes."""
    arguments = ["-p", "kafka_python_brokers"]
    arguments += [f"test/integration/{name}.py" for name in SECURED]
    path = os.pathsep.join([str(paths.COMPAT), os.environ.get("PYTHONPATH", "")])
    return _run(arguments, scratch, {"PYTHONPATH": path})


def _path(name: str) -> str:
    file, _, test = name.partition("::")
    return f"{file}.py::{test}"


def _run(arguments: list[str], scratch: Path, more: dict[str, str]) -> tuple[dict[str, str], str]:
    home = paths.needed(paths.cache_dir() / "kafka-python", "kafka-python")
    report = scratch / "kafka-python.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += ["-o", "junit_family=xunit1", f"--junit-xml={report}"]
    command += ["--basetemp", str(scratch / "kafka-python")]
    command += arguments
    environment = {
        **os.environ,
        # What the client must infer from ApiVersions; it caps its requests by it.
        "KAFKA_VERSION": "4.3",
        "KAFKA_ROOT": ".",
        "PYTHONDONTWRITEBYTECODE": "1",
        **more,
    }
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=environment,
        cwd=home,
        timeout=TIMEOUT_S,
        check=False,
    )
    if not report.exists():
        raise RuntimeError(f"no report; the suite said:\n{done.stdout}")
    found: dict[str, str] = {}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        kinds = [child.tag for child in case if child.tag in ("skipped", "failure", "error")]
        file = re.sub(r"^.*\.integration\.", "", case.get("classname", ""))
        verdict = {"failure": "failed"}.get(kinds[0], kinds[0]) if kinds else "passed"
        found[f"{file}::{case.get('name')}"] = verdict
    return found, done.stdout


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="kafka-python-") as scratch:
        found, output = outcomes(sys.argv[1], Path(scratch))
    print(output)
    for name, verdict in sorted(found.items()):
        print(f"{verdict:8} {name}")
    return 1 if {"failed", "error"} & set(found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
