"""Ledger states: BookKeeper's bytes, and that deleted ledgers are remembered."""

import pytest

from bookie.ledger_table import LedgerTable, decode_ledger_state

KEY = b"k" * 20


def test_ledger_data_is_bookkeepers_protobuf():
    table = LedgerTable()
    state = table.create(5, b"\x01\x02\x03")
    assert state.encode().hex() == "080110001a03010203"
    state.fenced = True
    state.explicit_lac = b"\xff" * 200
    assert state.encode() == bytes.fromhex("080110011a0301020322c801") + b"\xff" * 200
    again = decode_ledger_state(5, state.encode() + bytes.fromhex("2800"))
    assert (again.fenced, again.master_key, again.explicit_lac) == (
        True,
        b"\x01\x02\x03",
        b"\xff" * 200,
    )
    for bad in (b"", b"\x08", b"\x1a\x05abc", b"\x0d\x00\x00\x00\x00", b"\x08\x01\x10\x01"):
        with pytest.raises(ValueError, match=r"ledger 5|number"):
            decode_ledger_state(5, bad)


def test_deleted_ledgers_are_remembered():
    table = LedgerTable()
    table.create(5, KEY)
    table.delete(5)
    assert table.get(5) is None
    assert table.is_deleted(5)
    assert table.take_dirty({5}) == []
