"""What is in C is used where it was built, unless the environment refuses it."""

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

from wire import checksum, compiled
from wire.kafka.plain_produce import plain_produce
from wire.kafka.records import walk

ROOMS = """
from wire.kafka.plain_produce import plain_produce
from wire import checksum
from wire.kafka.records import walk
print(plain_produce is not None, walk.IS_COMPILED, checksum.IS_COMPILED)
"""


def is_built(name):
    return find_spec(name) is not None


def said_with(value):
    environment = {**os.environ, compiled.VARIABLE: value}
    command = [sys.executable, "-c", ROOMS]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_this_process_uses_what_the_environment_says():
    """`make test` runs tests with the variable and without: so each time it was the other one."""
    is_refused = os.environ.get("QUIRE_PURE_PYTHON") == "1"
    assert (walk.walk is walk.walk_pure) == (not walk.IS_COMPILED)
    assert (is_built("wire.kafka.records._walk") and not is_refused) == walk.IS_COMPILED
    assert (checksum.joined is checksum.joined_pure) == (not checksum.IS_COMPILED)
    assert (is_built("wire._checksum") and not is_refused) == checksum.IS_COMPILED
    assert (plain_produce is not None) == (is_built("wire.kafka._produce") and not is_refused)


@pytest.mark.parametrize("value", ["", "0", "1"])
def test_a_process_uses_what_its_environment_says(value):
    modules = ("wire.kafka._produce", "wire.kafka.records._walk", "wire._checksum")
    expected = [is_built(name) and value != "1" for name in modules]
    assert said_with(value).stdout.split() == [str(each) for each in expected]


@pytest.mark.parametrize("value", ["2", "yes", "true", " 1"])
def test_what_means_nothing_is_refused(value):
    ended = said_with(value)
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1].startswith(f"ValueError: QUIRE_PURE_PYTHON={value}: 1 is")
