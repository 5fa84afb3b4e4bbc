"""The ports and settings of bookies as processes: each has its own."""

import socket

import pytest

from quire.bookie_processes import BookieProcessesConfig, check_settings, free_port
from runtime.config import ConfigError

HOST = "127.0.0.1"


@pytest.fixture
def kept(tmp_path):
    """(a file, the port that it has, which is free)"""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port = probe.getsockname()[1]
    path = tmp_path / "bookie.conf"
    path.write_text(f"bookiePort={port}\n")
    return str(path), port


def test_a_port_is_kept(kept):
    path, port = kept
    assert free_port(path, "bookiePort", {port + 1}) == port


def test_one_that_somebody_listens_on_is_not(kept):
    path, port = kept
    with socket.create_server((HOST, port)):
        assert free_port(path, "bookiePort", ()) != port


def test_one_that_another_has_been_given_is_not(kept):
    path, port = kept
    assert free_port(path, "bookiePort", {port}) != port


def test_no_two_are_given_the_same(tmp_path):
    """The kernel's choice alone would be the same one sooner or later."""
    path, taken = str(tmp_path / "none"), set()
    for _ in range(2000):
        taken.add(free_port(path, "bookiePort", taken))
    assert len(taken) == 2000


def test_all_are_taken(kept):
    path, _ = kept
    with pytest.raises(OSError, match="no free port"):
        free_port(path, "bookiePort", range(1 << 16))


def test_what_is_chosen_for_each_is_not_judged(tmp_path):
    """A port, directories and an address that no bookie could have are replaced for all of them."""
    settings = {
        "bookiePort": "0",
        "ledgerDirectories": ",",
        "journalDirectories": "/none",
        "advertisedAddress": "127.0.0.2",
        "listeningInterface": "none",
    }
    check_settings(BookieProcessesConfig(str(tmp_path), 3, settings))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("logSizeLimit", "1048576"),
        ("dataIntegrityChecking", "true"),
        ("permittedStartupUsers", "nobody-of-that-name"),
        ("quire.network.location", "rack"),
    ],
)
def test_what_each_would_refuse_is_refused_before_one_starts(tmp_path, name, text):
    with pytest.raises(ConfigError, match=f"^{name}"):
        check_settings(BookieProcessesConfig(str(tmp_path), 3, {name: text}))
