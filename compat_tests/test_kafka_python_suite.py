"""kafka-python's own integration tests: the allow-list in kafka_python_tests.txt must pass.

A few may fail once. kafka-python 3.0.12 has a race: a consumer whose subscribe() comes between the
first metadata request, without topics, and its answer takes the answer for its topics' and asks
again after five minutes; its debug log then ends with «Updated partition assignment: []», and no
other request is sent. The sooner a server answers, the likelier. Such tests get a second run, and
the closing line tells how many did.
"""

import time

import kafka_python_suite
import pytest
from harness import absent, figures, servers

WANTED, LEFT_OUT = kafka_python_suite.read_list()
# More than these at once are not bad luck.
SECOND_RUNS_MAX = 5
pytestmark = [pytest.mark.suite, pytest.mark.timeout(3 * kafka_python_suite.TIMEOUT_S + 60)]


def is_excused(test):
    return servers.target() == "quire" and any(one in absent.ABSENT for one in WANTED[test])


def is_secured(test):
    return test.startswith(kafka_python_suite.SECURED)


@pytest.fixture(scope="module")
def suite(scratch, server):
    started = time.monotonic()
    found, output = kafka_python_suite.outcomes(server.bootstrap, scratch)
    if servers.target() == "quire":  # the control is started with one listener
        secured, more = kafka_python_suite.secured_outcomes(scratch)
        found.update(secured)
        output += more
    again = [
        test
        for test in WANTED
        if found.get(test) == "failed" and not is_secured(test) and not is_excused(test)
    ]
    if 0 < len(again) <= SECOND_RUNS_MAX:
        second, more = kafka_python_suite.outcomes(server.bootstrap, scratch, again)
        found.update(second)
        output += more
    passed = sum(verdict == "passed" for verdict in found.values())
    figures.add(
        f"kafka-python: {passed} tests passed in {time.monotonic() - started:.0f} s; "
        f"{len(again)} needed a second run; "
        f"{len(WANTED)} in the list, {len(LEFT_OUT)} left out of it with reasons"
    )
    return found, output


def test_no_test_is_overlooked(suite):
    known = WANTED.keys() | LEFT_OUT.keys()
    if servers.target() == "control":
        known = {test for test in known if not is_secured(test)}
    assert set(suite[0]) == known


def case(test):
    marks = [pytest.mark.needs(feature) for feature in WANTED[test]]
    if is_secured(test) and servers.target() == "control":
        marks.append(pytest.mark.skip(reason="the control is started with one listener"))
    return pytest.param(test, marks=marks)


@pytest.mark.parametrize("test", [case(test) for test in sorted(WANTED)])
def test_kafka_python(test, suite):
    found, output = suite
    if found.get(test) != "passed":
        # The suite ran once for all: show the part that is about this test.
        name = test.partition("::")[2]
        start = output.rfind(f"_ {name} _")
        print(output[start : start + 6000] if start >= 0 else output[-4000:])
    assert found.get(test) == "passed"
