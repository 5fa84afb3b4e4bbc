"""librdkafka's own integration tests: the allow-list in librdkafka_tests.txt must pass."""

import time

import pytest

import librdkafka_suite
from harness import figures, servers

WANTED, LEFT_OUT = librdkafka_suite.read_list()
pytestmark = pytest.mark.suite


@pytest.fixture(scope="module")
def folder(scratch):
    path = scratch / "librdkafka"
    path.mkdir()
    return path


@pytest.fixture(scope="module")
def of_scenario(scratch):
    """of_scenario(name) -> the running server for it; one per scenario."""
    running = {}

    def get(scenario):
        if scenario not in running:
            settings = {} if scenario != "noautocreate" else {"auto.create.topics.enable": "false"}
            running[scenario] = servers.make_server(scratch / f"rd-{scenario}", settings).start()
        return running[scenario]

    yield get
    for one in running.values():
        one.discard()


@pytest.fixture(scope="module")
def outcomes():
    done = []
    started = time.monotonic()
    yield done
    passed = sum(outcome.passed for outcome in done)
    figures.add(
        f"librdkafka: {passed} of {len(done)} tests passed in {time.monotonic() - started:.0f} s; "
        f"{len(LEFT_OUT)} left out, with reasons, in librdkafka_tests.txt"
    )


def test_no_test_is_overlooked():
    known = {test.name for test in WANTED} | set(LEFT_OUT)
    assert librdkafka_suite.tests_with_broker() == known


@pytest.mark.timeout(librdkafka_suite.TIMEOUT_S + 60)
@pytest.mark.parametrize("test", WANTED, ids=lambda test: test.name)
def test_librdkafka(test, of_scenario, folder, outcomes):
    server = of_scenario(test.scenario)
    outcome = librdkafka_suite.run_test(test.name, server.bootstrap, folder, test.scenario)
    outcomes.append(outcome)
    if not outcome.passed:
        print("\n".join(outcome.output.splitlines()[-120:]))
    assert outcome.verdict == "PASSED"
