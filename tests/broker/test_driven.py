"""What is announced was driven, what may go wrong was provoked; driven.py says by what record."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.broker import driven
from tests.broker.node.announced import of_a_cluster, of_every_broker
from wire.kafka.errors import ErrorCode

ROOT = Path(__file__).parents[2]
KNOWN = driven.known()
ERRORS = driven.errors_of_apis()
PROVOKED = {what for what in KNOWN if what[1] in ErrorCode.__members__}


def announced():
    """(API's name, version) of all that brokers announce, without what they close on."""
    return {
        (driven.api_name(api.key), f"v{version}")
        for api in (*of_every_broker(), *of_a_cluster())
        for version in range(api.version_min, api.version_max + 1)
    }


def test_each_version_that_is_announced_was_driven():
    assert announced() - KNOWN.keys() == set()


def test_no_version_is_named_that_is_not_announced():
    named = {what for what in KNOWN if what not in PROVOKED}
    assert named - announced() == set()


def test_each_api_says_which_errors_it_may_answer():
    assert ERRORS.keys() == {api for api, _ in announced()}
    for listed, cannot in ERRORS.values():
        assert listed <= ErrorCode.__members__.keys()
        assert cannot.keys() <= listed


def test_each_error_that_may_occur_was_provoked():
    missing = {
        (api, error)
        for api, (listed, cannot) in ERRORS.items()
        for error in listed - cannot.keys()
        if (api, error) not in PROVOKED
    }
    assert sorted(missing) == []


def test_nothing_else_was_provoked():
    """An answer that no client of Kafka's expects, or an excuse that is none any more."""
    odd = {(api, error) for api, error in PROVOKED if error not in ERRORS[api][0]}
    assert sorted(odd) == []
    excused = {(api, error) for api, error in PROVOKED if error in ERRORS[api][1]}
    assert sorted(excused) == []


def test_each_name_is_a_test():
    """Asked of pytest itself, which refuses what it does not find."""
    names = sorted({test for tests in KNOWN.values() for test in tests})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    result = subprocess.run([*command, *names], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]


def test_the_page_shows_it():
    text = driven.PAGE.read_text(encoding="utf-8")
    assert driven.page_with(text, KNOWN) == text


@pytest.mark.parametrize("count", [1, 2])
def test_only_what_every_run_had_counts(tmp_path, count):
    """And of many tests those that drive the least else."""
    lines = [
        '["a", [["Fetch", "v4"], ["Fetch", "v5"], ["Fetch", "v6"]]]',
        '["b", [["Fetch", "v4"], ["Produce", "v3"]]]',
        '["c", [["Fetch", "v4"]]]',
    ]
    runs = []
    for last in ('["d", [["Fetch", "v5"]]]', '["d", []]')[:count]:
        runs.append(tmp_path / str(len(runs)))
        runs[-1].write_text("\n".join([*lines, last]))
    assert driven.chosen(runs, {}) == {
        ("Fetch", "v4"): ["b", "c"],
        ("Fetch", "v5"): ["a", "d"] if count == 1 else ["a"],
        ("Fetch", "v6"): ["a"],
        ("Produce", "v3"): ["b"],
    }


def test_who_did_not_run_keeps_what_he_is_named_for(tmp_path):
    before = {
        ("Fetch", "v4"): ["ran", "slept"],
        ("Fetch", "v5"): ["ran"],
        ("Fetch", "INVALID_REQUEST"): ["slept"],
    }
    (tmp_path / "one").write_text('["ran", [["Fetch", "v6"]]]')
    (tmp_path / "other").write_text('["new", [["Fetch", "v4"]]]')
    assert driven.chosen([tmp_path / "one", tmp_path / "other"], before) == {
        ("Fetch", "v4"): ["new", "slept"],
        ("Fetch", "v6"): ["ran"],
        ("Fetch", "INVALID_REQUEST"): ["slept"],
    }


def test_tests_are_held_to_versions_only():
    """What a test is answered may hang on what was faster."""
    named = driven.versions_by_test()
    assert set().union(*named.values()) == KNOWN.keys() - PROVOKED
    assert {test for what in KNOWN.keys() - PROVOKED for test in KNOWN[what]} == named.keys()


def test_a_page_without_its_marks_is_not_written_over():
    with pytest.raises(ValueError, match="not enough values"):
        driven.page_with(re.sub("begin", "", driven.BEGIN), KNOWN)
