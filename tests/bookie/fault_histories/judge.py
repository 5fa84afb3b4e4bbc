"""Whether a bookie kept what it promised: what the clients know, against what it has."""

from wire.bookkeeper.status import Status

#: Entries that a batch is asked for.
BATCH_COUNT = 4


class BrokenPromiseError(AssertionError):
    pass


async def check_entries(bookie, known, machine):
    """What was acknowledged is there, alone and as the first of a batch; what follows it in the
    batch may end anywhere, and is what was sent."""
    for key, entry in sorted(known.acknowledged.items()):
        if key[0] in known.deleted:
            continue
        status, found = await bookie.read_entry(*key)
        if machine.crashed:
            return  # its answers are nobody's
        _judge_entry(key, entry, status, found, known)
        if key[0] in known.deleted or key in known.uncertain:
            continue
        status, batch = await bookie.read_entries(*key, BATCH_COUNT, 1 << 20)
        if machine.crashed:
            return
        _judge_batch(key, status, batch, known)


def _judge_entry(key, entry, status, found, known):
    if key[0] in known.deleted:
        return  # while it was read
    if status is Status.EOK and bytes(found) != entry:
        raise BrokenPromiseError(f"entry {key} is another one")
    if status is not Status.EOK and key not in known.uncertain:
        raise BrokenPromiseError(f"acknowledged entry {key}: {status!r}")


def _judge_batch(key, status, batch, known):
    ledger_id, entry_id = key
    if ledger_id in known.deleted or (status is not Status.EOK and key in known.uncertain):
        return  # while it was read
    if status is not Status.EOK:
        raise BrokenPromiseError(f"batch from acknowledged entry {key} on: {status!r}")
    for behind, each in enumerate(batch):
        if bytes(each) != known.sent.get((ledger_id, entry_id + behind)):
            raise BrokenPromiseError(f"batch from {key} on: its entry {behind} is another one")


def check_ledgers(bookie, known):
    """Fences, explicit LACs and deletions that were answered EOK."""
    for ledger_id, is_answered in known.fenced.items():
        if is_answered and ledger_id not in known.deleted:
            state = bookie._table.get(ledger_id)
            if state is None or not state.fenced:
                raise BrokenPromiseError(f"ledger {ledger_id} is not fenced any more: {state}")
    for ledger_id, lacs in known.lacs.items():
        if lacs.last_done >= 0 and ledger_id not in known.deleted:
            status, packet = bookie.get_explicit_lac(ledger_id)
            # A later one that had no answer may have been taken.
            if status is not Status.EOK or packet not in lacs.sent[lacs.last_done :]:
                raise BrokenPromiseError(f"explicit LAC of ledger {ledger_id} went back: {status}")
    for ledger_id, is_answered in known.deleted.items():
        if is_answered:
            _check_deleted(bookie, known, ledger_id)


def _check_deleted(bookie, known, ledger_id):
    if bookie._table.get(ledger_id) is not None:
        raise BrokenPromiseError(f"deleted ledger {ledger_id} is back")
    if ledger_id in bookie._checkpointer.deletions:
        return  # the next checkpoint takes it out of the index
    for entry_id in range(known.next_ids[ledger_id]):
        if bookie._index.get(ledger_id, entry_id):
            raise BrokenPromiseError(f"deleted ledger {ledger_id} has entry {entry_id} once more")
