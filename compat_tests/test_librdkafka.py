"""librdkafka's own integration tests: the allow-list in librdkafka_tests.txt must pass."""

import time

import librdkafka_suite
import pytest
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
    """of_scenario(name) -> a running server for it: with auto.create.topics.enable, or not."""
    running = {}

    def get(scenario):
        if scenario.startswith("rf3") and servers.target() == "control":
            pytest.skip("the control is one broker here, and refuses replication factor 3")
        creates = "false" if scenario.endswith("noautocreate") else "true"
        if creates not in running:
            settings = {"auto.create.topics.enable": creates}
            running[creates] = servers.make_server(scratch / f"rd-{creates}", settings).start()
        return running[creates]

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
