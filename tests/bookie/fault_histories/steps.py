"""What happens to a bookie while it serves: one step after the other, each chosen at random."""

import trio

from tests.bookie.conftest import KEY, make_entry
from tests.bookie.fault_histories.judge import check_entries
from tests.bookie.fault_histories.known import GIVEN_UP, GONE, LEDGERS, Lacs
from wire.bookkeeper.status import FLAG_DO_FENCING, FLAG_HIGH_PRIORITY, FLAG_RECOVERY_ADD, Status

RECOVERY = FLAG_RECOVERY_ADD | FLAG_HIGH_PRIORITY
KIB = 1024
#: The collections that a kind of histories has more of come on top of theirs.
SHARES = {
    "add": 42,
    "flush": 12,
    "fault": 12,
    "room": 6,
    "delete": 3,
    "collect": 11,
    "fence": 3,
    "explicit_lac": 2,
    "compact_index": 1,
    "crash_soon": 3,
    "check": 5,
}


def draw_shares(rng, more_collections):
    """Of a history: some steps are three times as frequent, and others are left out, which shows
    what is hidden where everything happens at once. Without adds nothing would be promised."""
    shares = SHARES | {"collect": SHARES["collect"] + more_collections}
    return {
        name: share * (1 if name == "add" else rng.choice([0, 1, 1, 3]))
        for name, share in shares.items()
    }


class Steps:
    """Of one life. What takes its time goes on beside the next steps, in the nursery."""

    def __init__(self, bookie, machine, known, metadata, rng, nursery, shares):
        self._bookie = bookie
        self._machine = machine
        self._known = known
        self._metadata = metadata
        self._rng = rng
        self._nursery = nursery
        self._names, self._shares = list(shares), list(shares.values())

    async def make_one(self):
        [name] = self._rng.choices(self._names, self._shares)
        await getattr(self, f"_{name}")()
        await trio.sleep(self._rng.choice([0, 0.001, 0.01, 1.1]))

    async def _add(self):
        count = self._rng.choice([1, 2, 5])
        self._known.note("add", count)
        for _ in range(count):
            ledger_id = self._rng.choice(LEDGERS)
            if ledger_id not in self._known.deleted:
                self._add_to(ledger_id)

    def _add_to(self, ledger_id):
        known, rng = self._known, self._rng
        is_again = rng.random() < 0.15 and known.next_ids[ledger_id] > 0
        if is_again:  # as recoveries do
            key = ledger_id, rng.randrange(known.next_ids[ledger_id])
            entry = known.sent[key]
        else:
            key = ledger_id, known.next_ids[ledger_id]
            known.next_ids[ledger_id] += 1
            payload = rng.randbytes(rng.choice([30, 300, 1500, 2000, 3000]))
            entry = known.sent[key] = b"".join(make_entry(*key, payload))

        def done(status):
            # What a dead bookie says reaches nobody.
            is_heard = not self._machine.crashed and ledger_id not in known.deleted
            if is_heard and status is Status.EOK:
                known.acknowledged[key] = entry

        is_recovery = (
            is_again or ledger_id == GIVEN_UP or ledger_id in known.fenced or rng.random() < 0.3
        )
        self._bookie.add_entry(*key, KEY, [entry], RECOVERY if is_recovery else 0, done)

    async def _flush(self):
        self._known.note("flush")
        with trio.move_on_after(self._rng.random() * 3):
            await self._bookie.flush()

    async def _fault(self):
        """Something is to find no space: some operations, some syncs, or whatever is written."""
        disk, index, rng = self._machine.disk, self._machine.index, self._rng
        what = rng.choices(["disk", "index", "syncs", "capacity", "puts"], [45, 30, 10, 10, 5])[0]
        if what == "disk":
            disk.operations_until_full = rng.choice([1, 2, 3, 5, 10, 20, 40])
            disk.burst = rng.choice([0, 0, 1, 3, 10, 30])
            details = disk.operations_until_full, disk.burst
        elif what == "index":
            details = [rng.choice([1, 2, 3, 5, 10, 20])]
            [index.operations_until_full] = details
        elif what == "syncs":
            details = [rng.choice([0.0, 0.3, 0.7])]
            [index.full_sync_share] = details
        elif what == "capacity":
            details = [rng.choice([0, 500, 3 * KIB, 20 * KIB, 40 * KIB, 1 << 30])]
            disk.faults.capacity_bytes = disk.used_bytes + details[0]
        else:
            details = [rng.choice([0.0, 0.1, 0.5])]
            [index.full_share] = details
        self._known.note("fault:", what, *details)

    async def _room(self):
        self._known.note("room")
        self._machine.make_room()

    async def _delete(self):
        ledger_id = self._rng.choice([each for each in LEDGERS if each != GIVEN_UP])
        self._known.note("delete", ledger_id)
        if ledger_id == GONE:
            self._known.deleted[GONE] = False
            self._known.gone.add(GONE)
        else:
            self._nursery.start_soon(self._delete_ledger, ledger_id)

    async def _delete_ledger(self, ledger_id):
        self._known.deleted.setdefault(ledger_id, False)
        status = await self._bookie.delete_ledger(ledger_id)
        if not self._machine.crashed and status is Status.EOK:
            self._known.deleted[ledger_id] = True

    async def _collect(self):
        self._metadata.is_over_replicated = self._rng.random() < 0.6
        is_major = self._rng.random() < 0.8
        words = ["major"] * is_major + ["gives up"] * self._metadata.is_over_replicated
        self._known.note("collect", *words)
        if self._rng.random() < 0.25:
            # Amid what a compaction tells the index; the next one then finds that half done.
            self._machine.index.operations_until_full = self._rng.choice([1, 2, 3, 5])
        if self._rng.random() < 0.5:
            self._nursery.start_soon(self._collect_garbage, is_major)
        else:
            await self._collect_garbage(is_major)

    async def _collect_garbage(self, is_major):
        with trio.move_on_after(5):
            await self._bookie.collect_garbage(force_major=is_major, force_minor=True)

    async def _fence(self):
        ledger_id = self._rng.choice(LEDGERS)
        self._known.note("fence", ledger_id)
        self._nursery.start_soon(self._fence_ledger, ledger_id)

    async def _fence_ledger(self, ledger_id):
        if ledger_id in self._known.deleted:
            return  # it would be made anew
        self._known.fenced.setdefault(ledger_id, False)
        status, _ = await self._bookie.read_entry(
            ledger_id, 0, flags=FLAG_DO_FENCING, master_key=KEY
        )
        # Whether it has that entry: it fenced the ledger before it looked.
        if not self._machine.crashed and status in (Status.EOK, Status.ENOENTRY):
            self._known.fenced[ledger_id] = True

    async def _explicit_lac(self):
        ledger_id = self._rng.choice(LEDGERS)
        self._known.note("explicit LAC", ledger_id)
        self._nursery.start_soon(self._set_explicit_lac, ledger_id)

    async def _set_explicit_lac(self, ledger_id):
        if ledger_id in self._known.deleted:
            return  # as with fences
        lacs = self._known.lacs.setdefault(ledger_id, Lacs())
        number, packet = len(lacs.sent), self._rng.randbytes(40)
        lacs.sent.append(packet)
        status = await self._bookie.set_explicit_lac(ledger_id, KEY, packet)
        if not self._machine.crashed and status is Status.EOK:
            lacs.last_done = max(lacs.last_done, number)

    async def _compact_index(self):
        self._known.note("compact index")
        self._nursery.start_soon(self._compact_entry_locations)

    async def _compact_entry_locations(self):
        with trio.move_on_after(5):
            await self._bookie.compact_entry_locations()

    async def _crash_soon(self):
        operations = self._rng.choice([1, 2, 5, 10, 30, 100])
        self._machine.crash_after(operations)
        self._known.note("crash after", operations, "operations")

    async def _check(self):
        self._known.note("check")
        await check_entries(self._bookie, self._known, self._machine)
