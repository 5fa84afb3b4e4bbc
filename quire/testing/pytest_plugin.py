"""Fixtures for pytest: a server for a test, one for the session, and as many as a test asks for.

They are `quire.testing.SyncServer`s, which tests of any kind may use: plain functions, asyncio and
trio. A `quire_server_config` of one's own in a conftest.py sets what all of them start with.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Protocol

import pytest

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping

    from quire.testing import SyncServer


class ServerFactory(Protocol):
    """Starts a server; the fixture stops it. Arguments as `quire.testing.Server`'s; `config` is
    laid over `quire_server_config`."""

    def __call__(
        self,
        *,
        data_dir: str | os.PathLike[str] | None = None,
        config: Mapping[str, object] | None = None,
        topics: Mapping[str, int] | None = None,
        port: int = 0,
    ) -> SyncServer: ...


class _Factory:
    def __init__(self, stack: ExitStack, config: Mapping[str, object]) -> None:
        self._stack = stack
        self._config = config

    def __call__(
        self,
        *,
        data_dir: str | os.PathLike[str] | None = None,
        config: Mapping[str, object] | None = None,
        topics: Mapping[str, int] | None = None,
        port: int = 0,
    ) -> SyncServer:
        from quire.testing import SyncServer  # slow to import; most runs of pytest have no use

        merged = {**self._config, **(config or {})}
        return self._stack.enter_context(
            SyncServer(data_dir=data_dir, config=merged, topics=topics, port=port)
        )


@pytest.fixture(scope="session")
def quire_server_config() -> Mapping[str, object]:
    """Settings of every server that these fixtures start; override it in a conftest.py."""
    return {}


@pytest.fixture
def quire_server_factory(quire_server_config: Mapping[str, object]) -> Iterator[ServerFactory]:
    """`quire_server_factory(config=..., topics=...)` starts a server; all stop after the test."""
    with ExitStack() as stack:
        yield _Factory(stack, quire_server_config)


@pytest.fixture
def quire_server(quire_server_factory: ServerFactory) -> SyncServer:
    """A server of the test's own, empty."""
    return quire_server_factory()


@pytest.fixture(scope="session")
def quire_session_server(quire_server_config: Mapping[str, object]) -> Iterator[SyncServer]:
    """One server that the tests of a session share; they keep apart by names."""
    with ExitStack() as stack:
        yield _Factory(stack, quire_server_config)()
