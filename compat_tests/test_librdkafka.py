"""librdkafka's own integration tests: what librdkafka_tests.txt lists must pass.

By default the tests marked slow in it are skipped; QUIRE_SUITE=all runs all of the list,
QUIRE_SUITE=slow those alone, which is what `make test` leaves out; QUIRE_SUITE=share those of share
groups (`make librdkafka-share`), which take minutes each; QUIRE_SUITE=cluster those of neither kind
against three brokers and three bookies (`make librdkafka-cluster`).
"""

import os
import time

import librdkafka_suite
import pytest
from harness import figures, servers
from harness.brokers import BrokerCluster

WANTED, LEFT_OUT = librdkafka_suite.read_list()
SUITE = os.environ.get("QUIRE_SUITE", "core")
#: Not run against the cluster: what takes long, and what needs brokers with other settings.
ALONE = {"slow", "share", "noautocreate", "joindelay"}
CHOSEN = [
    test
    for listed in WANTED
    if "secured" not in listed.words  # test_librdkafka_security.py's
    and (SUITE not in ("slow", "share") or SUITE in listed.words)
    and (SUITE != "cluster" or not ALONE & listed.words)
    for test in listed.protocols()
]
pytestmark = pytest.mark.suite


def case(test):
    marks = [pytest.mark.needs(feature) for feature in test.needs]
    marks.append(pytest.mark.timeout(2 * test.timeout_s + 60))
    if "slow" in test.words and SUITE == "core":
        marks.append(pytest.mark.skip(reason="slow: only with QUIRE_SUITE=all or slow"))
    if "share" in test.words and SUITE == "core":
        marks.append(pytest.mark.skip(reason="of minutes: only with QUIRE_SUITE=all or share"))
    if "rf3" in test.words and servers.target() == "control":
        marks.append(pytest.mark.skip(reason="the control is one broker, and refuses factor 3"))
    if "bug" in test.words and servers.target() == "quire":
        marks.append(pytest.mark.xfail(reason="a known bug: see librdkafka_tests.txt"))
    return pytest.param(test, id=str(test), marks=marks)


@pytest.fixture(scope="module")
def folder(scratch):
    path = scratch / "librdkafka"
    path.mkdir()
    return path


def started(folder, settings):
    if SUITE != "cluster":
        return servers.make_server(folder, settings).start()
    # Tests make topics with one copy, and write to them with acks=all.
    cluster = BrokerCluster(folder)
    try:
        cluster.start(3, 3, num_partitions="4", min_insync_replicas="1")
        cluster.wait_until_all_run()
    except BaseException:
        cluster.discard()
        raise
    return cluster


@pytest.fixture(scope="module")
def server_for(scratch):
    """server_for(test) -> a running server with what the test asks for, shared by its likes."""
    running = {}

    def get(test):
        settings = {} if SUITE == "cluster" else test.settings(servers.target())
        key = tuple(sorted(settings.items()))
        if key not in running:
            running[key] = started(scratch / f"librdkafka-{len(running)}", settings)
        return running[key]

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
        f"{len(WANTED)} in the list, {len(LEFT_OUT)} left out of it with reasons"
    )
    figures.add(
        "librdkafka, slowest: "
        + ", ".join(
            f"{outcome.name} {outcome.seconds:.0f} s"
            for outcome in sorted(done, key=lambda outcome: -outcome.seconds)[:5]
        )
    )


def test_suite_is_one_that_exists():
    assert SUITE in ("core", "slow", "share", "cluster", "all")
    assert SUITE != "cluster" or servers.target() == "quire", "the control is one broker"


def test_no_test_is_overlooked():
    known = {test.name for test in WANTED} | {name.partition("/")[0] for name in LEFT_OUT}
    assert librdkafka_suite.tests_with_broker() == known


@pytest.mark.parametrize("test", [case(test) for test in CHOSEN])
def test_librdkafka(test, server_for, folder, outcomes):
    outcome = librdkafka_suite.run_test(test, server_for(test).bootstrap, folder)
    is_to_pass = "bug" not in test.words or servers.target() == "control"
    if not outcome.passed and is_to_pass and not os.environ.get("QUIRE_NO_RETRY"):
        # Many of these have time limits of their own that a busy machine breaks. A second try is
        # told in the figures, so that a test which needs it often is seen.
        figures.add(f"librdkafka: {outcome.name} failed at the first try")
        print("\n".join(outcome.output.splitlines()[-60:]))
        outcome = librdkafka_suite.run_test(test, server_for(test).bootstrap, folder)
    outcomes.append(outcome)
    if not outcome.passed:
        print("\n".join(outcome.output.splitlines()[-120:]))
    assert outcome.verdict == "PASSED"
