"""kafka-python's own integration tests: the allow-list in kafka_python_tests.txt must pass."""

import time

import kafka_python_suite
import pytest
from harness import figures

WANTED, LEFT_OUT = kafka_python_suite.read_list()
pytestmark = [pytest.mark.suite, pytest.mark.timeout(kafka_python_suite.TIMEOUT_S + 60)]


@pytest.fixture(scope="module")
def suite(scratch, server):
    started = time.monotonic()
    found, output = kafka_python_suite.outcomes(server.bootstrap, scratch)
    passed = sum(verdict == "passed" for verdict in found.values())
    figures.add(
        f"kafka-python: {passed} tests passed in {time.monotonic() - started:.0f} s; "
        f"{len(WANTED)} in the list, {len(LEFT_OUT)} left out of it with reasons"
    )
    return found, output


def test_no_test_is_overlooked(suite):
    assert set(suite[0]) == WANTED.keys() | LEFT_OUT.keys()


def case(test):
    return pytest.param(test, marks=[pytest.mark.needs(feature) for feature in WANTED[test]])


@pytest.mark.parametrize("test", [case(test) for test in sorted(WANTED)])
def test_kafka_python(test, suite):
    found, output = suite
    if found.get(test) != "passed":
        # The suite ran once for all: show the part that is about this test.
        name = test.partition("::")[2]
        start = output.find(f"_ {name} _")
        print(output[start : start + 6000] if start >= 0 else output[-4000:])
    assert found.get(test) == "passed"
