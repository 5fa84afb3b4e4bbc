"""Each group's header, by checksums that were known, is that of its bytes read again: under random
adds, large and small, with deferred sync, forced, refused, in segments of the write cache that are
swapped."""

import random

import pytest
import trio

from bookie import adds
from bookie.journal import journal
from bookie.journal.journal_format import pack_group_header
from tests.bookie.conftest import KEY, make_entry
from wire.bookkeeper.status import FLAG_DEFERRED_SYNC, Status


def some_entry(rng, ledger_id, number):
    payload = rng.randbytes(rng.choice([0, 20, 150, 800, 3000]))
    entry = make_entry(ledger_id, number, payload)
    if rng.random() < 0.05:
        entry[0] = entry[0][:20] + b"\x7f" + entry[0][21:]
    if rng.random() < 0.05:
        entry = make_entry(ledger_id + 1, number, b"of another")
    return entry


@pytest.mark.parametrize("seed", range(30))
async def test_each_header(machine_class, monkeypatch, seed, autojump_clock):
    rng = random.Random(seed)
    monkeypatch.setattr(adds, "JOINED_SIZE_MIN", rng.choice([0, 60, 200, 700]))
    known_count = 0

    def checked(header, body, known=None):
        nonlocal known_count
        made = pack_group_header(header, body, known)
        assert made == pack_group_header(header, body)
        known_count += bool(known)
        return made

    monkeypatch.setattr(journal, "pack_group_header", checked)
    machine = machine_class(
        seed,
        verify_digest_on_write=rng.random() < 0.6,
        journal_group_size_max_bytes=rng.choice([0, 300, 2048]),
        journal_buffered_writes_threshold_bytes=rng.choice([1, 500, 100_000]),
        flush_interval_ms=rng.choice([3, 50, 10_000]),
        journal_kept_entry_min_bytes=rng.choice([0, 200, 1000]),
    )
    machine.disk.faults.sync_seconds = rng.choice([(0.0, 0.0), (0.0, 0.01)])
    answers = []
    async with machine.running() as bookie:
        for number in range(250):
            ledger_id = rng.randrange(3)
            flags = FLAG_DEFERRED_SYNC if rng.random() < 0.2 else 0
            entry = some_entry(rng, ledger_id, number)
            bookie.add_entry(ledger_id, number, KEY, entry, flags, answers.append)
            if rng.random() < 0.05:
                await bookie.set_explicit_lac(rng.randrange(3), KEY, bytes(rng.randrange(1, 60)))
            if rng.random() < 0.03:
                await bookie.force_ledger(ledger_id)
            if rng.random() < 0.15:
                await trio.sleep(rng.choice([0, 0.001, 0.02]))
        await bookie.flush()
    assert answers.count(Status.EOK) > 50
    assert known_count > 5
