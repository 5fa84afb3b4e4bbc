"""What is kept of a password, and that it is not shown."""

import json

import pytest

from broker.security.sasl.scram.credentials import (
    Credential,
    credentials_from_json,
    from_bytes,
    salt_text,
    to_bytes,
)
from broker.security.sasl.scram.hashes import BY_NAME, SCRAM_SHA_256

WORDS = {"salt", "stored_key", "server_key", "iterations"}


def both():
    return {
        name: Credential.of_password(kind, "wonder", b"salty")
        for name, kind in sorted(BY_NAME.items())
    }


def test_a_document_holds_all_mechanisms_and_no_password():
    data = to_bytes(both())
    assert from_bytes(data) == both()
    assert {key for one in json.loads(data).values() for key in one} == WORDS
    assert b"wonder" not in data
    assert from_bytes(b"{}") == {}
    assert to_bytes({}) == b"{}"


def test_nothing_of_it_is_in_a_repr():
    shown = repr(both()["SCRAM-SHA-256"])
    assert shown == "Credential(iterations=4096)"


def test_the_clients_salted_password_comes_to_the_same():
    salted = SCRAM_SHA_256.salted(b"wonder", b"salty", 4096)
    made = Credential.of_salted(SCRAM_SHA_256, salted, b"salty", 4096)
    assert made == both()["SCRAM-SHA-256"]


@pytest.mark.parametrize(
    "change",
    [
        {"salt": "*"},
        {"salt": 5},
        {"stored_key": "AAAA"},
        {"server_key": ""},
        {"iterations": "4096"},
        {"iterations": None},
    ],
)
def test_what_is_damaged_is_no_credential_and_not_shown(change):
    value = json.loads(to_bytes(both()))
    value["SCRAM-SHA-512"].update(change)
    with pytest.raises(ValueError, match=r"is not base64|SCRAM-SHA-512") as raised:
        credentials_from_json(value)
    assert both()["SCRAM-SHA-512"].stored_key.hex() not in str(raised.value)
    assert len(str(raised.value)) < 60
    for bad in ([], {"SCRAM-SHA-512": 1}):
        with pytest.raises(ValueError, match="no object"):
            credentials_from_json(bad)


def test_mechanisms_of_a_newer_version_are_left_out():
    value = json.loads(to_bytes(both()))
    value["SCRAM-SHA3-512"] = {"more": 1}
    assert credentials_from_json(value) == both()


def test_salts_are_digits_as_kafka_configs_makes_them():
    assert salt_text(0) == b"0"
    assert salt_text(36**3 + 35) == b"100z"
    assert salt_text((1 << 130) + 7) == b"7"
    assert int(salt_text((1 << 130) - 1), 36) == (1 << 130) - 1
