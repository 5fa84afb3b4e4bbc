"""What `quire standalone` makes of its options."""

import pytest

from quire.options import StandaloneOptions
from quire.standalone import _load_config
from runtime.config import ConfigError


@pytest.mark.parametrize(
    ("options", "listeners"),
    [
        ({}, ("PLAINTEXT://127.0.0.1:9092",)),
        ({"properties": "listeners=SSL://:9093"}, ("SSL://:9093",)),
        ({"listen": ("::1", 9)}, ("PLAINTEXT://[::1]:9",)),
        (
            {"listen": ("127.0.0.1", 9), "overrides": {"listeners": "SSL://:9093"}},
            ("SSL://:9093",),
        ),
    ],
)
def test_a_file_says_where_it_listens_unless_the_command_line_does(options, listeners):
    assert _load_config(StandaloneOptions(**options)).broker.listeners == listeners


def test_both_cannot_say_it():
    """A listener that asks who a client is must not give place to one that does not."""
    options = StandaloneOptions(listen=("127.0.0.1", 9), properties="listeners=SSL://:9093")
    with pytest.raises(ConfigError, match="--listen must not be given"):
        _load_config(options)


def test_each_process_has_a_brokers_id():
    options = StandaloneOptions(processes=3, overrides={"node.id": str((1 << 30) - 2)})
    with pytest.raises(ConfigError, match=r"node\.id=1073741822 is too large"):
        _load_config(options)
