"""Fixtures: server processes, clients, names; and the closing lines that suites print."""

import itertools
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from harness import absent, figures, loop_turns, servers
from harness.postgres import Postgres

_numbers = itertools.count()


@pytest.fixture(scope="session")
def scratch():
    """A folder for the whole run, outside of the tree, gone at its end."""
    directory = Path(tempfile.mkdtemp(prefix="quire-compat-"))
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def server(scratch):
    """The server that most tests share; tests keep apart by topic and group names."""
    shared = servers.make_server(scratch / "shared").start()
    yield shared
    if servers.target() == "quire" and shared.process is not None:
        shared.stop()  # so that it tells of all its loop's turns
    shared.discard()


@pytest.fixture
def start_server(scratch):
    """start_server(settings) -> a running server of the test's own, killed at its end."""
    mine = []

    def start(settings=None):
        mine.append(servers.make_server(scratch / f"own-{next(_numbers)}", settings))
        return mine[-1].start()

    yield start
    for one in mine:
        one.discard()


@pytest.fixture
def name(request):
    """name("topic") -> a name no other test or run uses."""
    base = request.node.name.split("[")[0].removeprefix("test_")[:40]

    def make(suffix=""):
        return "-".join(filter(None, (base, suffix, str(os.getpid()), str(next(_numbers)))))

    return make


@pytest.fixture
def topic(name):
    return name("topic")


@pytest.fixture(scope="session")
def admin(server):
    return AdminClient({"bootstrap.servers": server.bootstrap})


@pytest.fixture
def closing_line():
    """closing_line("text") -> printed after the run's summary."""
    return figures.add


def pytest_sessionfinish(session):
    _note_loop_turns()
    output = getattr(session.config, "workeroutput", None)
    if output is not None:  # one of pytest-xdist's processes: the figures are printed by its parent
        output["figures"] = figures.LINES
        output["loop_turns"] = loop_turns.TALLY.as_plain()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node, error):
    output = getattr(node, "workeroutput", {})
    figures.LINES.extend(output.get("figures", []))
    if "loop_turns" in output:
        loop_turns.TALLY.add(output["loop_turns"])


def pytest_terminal_summary(terminalreporter):
    if figures.LINES:
        terminalreporter.section("figures")
        for line in figures.LINES:
            terminalreporter.write_line(line)
    if lines := loop_turns.TALLY.summary():
        terminalreporter.section("turns of the servers' loops")
        for line in lines:
            terminalreporter.write_line(line)


def _note_loop_turns():
    for one in servers.LIVE:
        one.note_loop_turns()


def pytest_collection_modifyitems(items):
    """`needs(FEATURE)`: run against the control, skipped where the feature is absent. `long`:
    skipped by `make test`, which has to end; the parts of `make test-long` set QUIRE_SUITE."""
    is_core = os.environ.get("QUIRE_SUITE", "core") == "core"
    for item in items:
        if is_core and item.get_closest_marker("long"):
            item.add_marker(pytest.mark.skip(reason="long: only with QUIRE_SUITE=all or slow"))
        for mark in item.iter_markers("needs"):
            (feature,) = mark.args
            reason = absent.reason(feature)  # also with the control: a wrong name is an error
            if servers.target() == "quire":
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if call.when == "call":
        _note_loop_turns()
    if report.failed:
        for one in servers.LIVE:
            words = one.log_tail(20_000)
            report.sections.append((f"log of {one.name} at {one.bootstrap}", words))
    return report


def pytest_report_header():
    return f"compat target: {servers.target()}"


@pytest.fixture(scope="module")
def postgres():
    server = Postgres()
    try:
        yield server.start()
    finally:
        server.discard()
