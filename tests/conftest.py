"""What all tests share: hypothesis profiles, the marker of slow tests, a bookie's server, and what
commands leave of their logs.

`--hypothesis-profile=fast` is for `make check`, `thorough` for `make test`, `long` for
`make test-long`. No profile has a deadline: on a shared machine a slow example says nothing.
"""

import inspect
import logging
import shutil
import tempfile

import pytest
from hypothesis import HealthCheck, settings

from bookie.bookie import Bookie
from bookie.config import BookieConfig
from bookie.server.server import BookieServer, BookieServerSettings
from runtime.env import real_env
from tests.turns import pytest_runtest_makereport, pytest_runtest_protocol  # noqa: F401

settings.register_profile("default", deadline=None)
settings.register_profile(
    "fast", deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "thorough", deadline=None, max_examples=200, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "long",
    deadline=None,
    max_examples=5000,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("default")


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: takes seconds; left out of `make check`")
    words = (
        "turns: of the loop, whose time is asserted; `make test` runs them in a process of theirs"
    )
    config.addinivalue_line("markers", words)


def pytest_sessionstart(session):
    """Bookies with default settings take no writes on a disk that is 95 % full: two hundred tests
    would fail, each in its own words."""
    directory = tempfile.gettempdir()
    usage = shutil.disk_usage(directory)
    if usage.free < 0.07 * usage.total:
        pytest.exit(
            f"{directory}: {usage.free / usage.total:.1%} of the disk are free, tests need 7 %: "
            "bookies are read-only from diskUsageThreshold (95 % in use) on",
            returncode=3,
        )


def pytest_itemcollected(item):
    """pytest-trio takes the clock from the test's own arguments. One that only a fixture asks for
    is not used, and the test waits in real time: 20 s for the stop of a broker that was killed."""
    clocks = {"autojump_clock", "mock_clock"}.intersection(getattr(item, "fixturenames", ()))
    missing = clocks.difference(inspect.signature(item.obj).parameters) if clocks else ()
    if missing:
        words = f"{item.nodeid}: a fixture asks for {', '.join(missing)}, and the test does not"
        raise pytest.UsageError(words)


@pytest.fixture
async def network_env(nursery):
    """An Env with a network, at work."""
    env = real_env()
    nursery.start_soon(env.turn.serve)
    await nursery.start(env.poller.run)
    await nursery.start(env.net.run)
    return env


@pytest.fixture
async def serve(network_env, nursery, tmp_path):
    """serve(**BookieServerSettings) -> a running server of a small bookie, and its port.
    `disk_space()`: total and free bytes of its disk."""

    async def serve(disk_space=lambda: (1000, 500), **settings):
        config = BookieConfig(
            bookie_id="b",
            instance_id="",
            journal_directory=str(tmp_path / "journal"),
            ledger_directory=str(tmp_path / "ledgers"),
            journal_size_bytes=8 << 20,
            journal_group_size_max_bytes=1 << 20,
            write_cache_size_bytes=16 << 20,
        )
        bookie = Bookie(config, network_env)
        await nursery.start(bookie.run)
        chosen = BookieServerSettings(port=0, **settings)
        server = BookieServer(bookie, network_env, chosen, disk_space)
        return server, (await nursery.start(server.run))[1]

    yield serve
    nursery.cancel_scope.cancel()


@pytest.fixture
def quiet_logs():
    """Commands set logging up for their own process; here that is the tests'."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
