"""What tests of adopted journals add to a bookie and find in it again."""

import random

import trio

from wire.bookkeeper.status import Status

LEDGERS = "/ledgers/current"
JOURNALS = "/journal/current"
SIZE = 1500


def payload_of(ledger_id, entry_id, size=SIZE):
    return random.Random(ledger_id << 20 | entry_id).randbytes(size)


async def add(machine, bookie, ids, entry_bytes, size=SIZE, flags=0):
    """Waits for all of them: the next journal may have to be prepared."""
    answers = []
    for ledger_id, entry_id in ids:
        entry = entry_bytes(ledger_id, entry_id, payload_of(ledger_id, entry_id, size))
        bookie.add_entry(ledger_id, entry_id, b"k" * 20, [entry], flags, answers.append)
        machine.turn.run()
    with trio.fail_after(60):
        while len(answers) < len(ids):
            await trio.sleep(0.01)
    assert answers == [Status.EOK] * len(ids)


async def check(bookie, ids, entry_bytes, size=SIZE):
    for ledger_id, entry_id in ids:
        status, entry = await bookie.read_entry(ledger_id, entry_id)
        assert status is Status.EOK, (ledger_id, entry_id)
        assert entry == entry_bytes(ledger_id, entry_id, payload_of(ledger_id, entry_id, size))
