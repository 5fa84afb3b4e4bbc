"""PLAIN: one message, compared in the same time whoever it names."""

import hmac

import pytest

from broker.security.sasl import plain
from broker.security.sasl.mechanism import AuthenticationFailedError
from broker.security.sasl.plain import PlainMechanism


@pytest.fixture
def compared(monkeypatch):
    """The bytes of a login's password, each time that it is compared."""
    found = []
    compare = hmac.compare_digest

    def counting(known, given):
        found.append(given)
        return compare(known, given)

    monkeypatch.setattr(plain.hmac, "compare_digest", counting)
    return found


def refused(user, password):
    exchange = PlainMechanism({"alice": "wonder", "bob": "builder"}).begin()
    with pytest.raises(AuthenticationFailedError) as caught:
        exchange.step(b"\0" + user + b"\0" + password)
    assert exchange.login is None
    return str(caught.value)


def test_attack_12_a_user_who_is_not_there_costs_what_a_wrong_password_costs(compared):
    """One comparison, of what was sent, and the same words."""
    assert refused(b"alice", b"x" * 6) == refused(b"nobody", b"x" * 6)
    assert compared == [b"x" * 6] * 2


def test_the_password_of_nobody_is_none():
    """What an unknown user's password is compared with lets nobody in."""
    assert b"\0" in plain._NOBODYS, "no message can have it"
