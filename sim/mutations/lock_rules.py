"""Rules of optimistic locks, at the broker and in quire_locks, and each one broken."""

from __future__ import annotations

from sim.mutations.mutation import Mutation, Patch

HEADERS = "broker.log.locks.lock_headers_core"
TABLE = "broker.log.locks.lock_table_core"
LOCKS = "broker.log.locks.partition_locks"
PARTITION = "broker.log.partition"
STORE = "quire_locks.sqlite_store"
#: Of the simulation: the rules that a client has to keep.
TELLER = "sim.bank"
ROOM = "tests/broker/log/locks"
ON_A_LOG = "tests/broker/log/test_partition_locks.py"
OF_CLIENT = "tests/quire_locks/test_client.py"
OF_STORE = "tests/quire_locks/test_sqlite_store.py"

LOCK_RULES = (
    Mutation(
        "locks-seen-at-ack",
        "what is in flight has written no lock yet (NATS, 2023)",
        (
            Patch(
                LOCKS,
                "        conflicts = table.conflicts(locks, high_watermark)\n",
                "        conflicts = table.conflicts(locks, high_watermark)\n"
                "        conflicts = [\n            one\n            for one in conflicts\n"
                "            if one.is_ahead or one.offset < high_watermark\n        ]\n",
            ),
        ),
        (f"{ON_A_LOG}::test_scenario_6_the_answer_waits_for_what_it_conflicts_with",),
    ),
    Mutation(
        "locks-answered-early",
        "who conflicts with what is in flight is told at once, and cannot read it yet",
        (
            Patch(
                LOCKS,
                "latest if is_in_flight else -1",
                "-1",
            ),
        ),
        (f"{ON_A_LOG}::test_scenario_6_the_answer_waits_for_what_it_conflicts_with",),
    ),
    Mutation(
        "locks-without-floor",
        "a table begins with locks that nobody ever wrote, after a take-over too",
        (Patch(LOCKS, "LockTable(size, next_offset - 1)", "LockTable(size, -1)"),),
        (f"{ON_A_LOG}::test_scenario_12_a_take_over_refuses_who_has_not_caught_up",),
    ),
    Mutation(
        "locks-before-duplicates",
        "a batch that is here already is tested for locks, and conflicts with itself",
        (
            Patch(
                PARTITION,
                "        if header.producer_id >= 0 and not self.is_new(append, checked):\n"
                "            return\n"
                "        if self.is_suspended and",
                "        has_locks = checked.locks is not None\n"
                "        if has_locks and not self._are_locks_free(append, checked):\n"
                "            return\n"
                "        if header.producer_id >= 0 and not self.is_new(append, checked):\n"
                "            return\n"
                "        if self.is_suspended and",
            ),
        ),
        (f"{ON_A_LOG}::test_scenario_8_a_duplicate_is_answered_before_its_locks_are_asked",),
    ),
    Mutation(
        "locks-one-too-far",
        "a lock that was written at the sender's position does not count",
        (
            Patch(
                TABLE,
                "if offset >= position and (worst",
                "if offset > position and (worst",
            ),
        ),
        (f"{ROOM}/test_lock_table_core.py",),
    ),
    Mutation(
        "locks-not-written",
        "a WRITE lock is tested, and marks nothing",
        (
            Patch(
                HEADERS,
                "                if name != READ:\n",
                "                if name == APPEND:\n",
            ),
        ),
        (f"{ROOM}/test_lock_headers_core.py",),
    ),
    Mutation(
        "locks-blind-in-a-batch",
        "what an earlier record of the batch writes does not count",
        (Patch(TABLE, "            if name in written:\n", "            if name in ():\n"),),
        (f"{ROOM}/test_lock_table_core.py",),
    ),
    Mutation(
        "locks-not-looked-for",
        "what was checked while locks were off, and numbered when they are on, is forgotten",
        (Patch(LOCKS, "        elif not checked.header.is_control:\n", "        elif False:\n"),),
        (f"{ON_A_LOG}::test_what_was_checked_without_locks_and_is_numbered_with_them",),
    ),
    Mutation(
        "locks-ahead-undoubted",
        "a deposed owner says that a position is beyond the end, and believes it",
        (
            Patch(
                PARTITION, "        if is_doubted:  # a deposed", "        if False:  # a deposed"
            ),
        ),
        (f"{ON_A_LOG}::test_scenario_13_a_deposed_owner_does_not_say_that_a_position_is_ahead",),
    ),
    Mutation(
        "locks-snapshot-moves",
        "the position is not of the snapshot that the decision read",
        (Patch(STORE, '        db.execute("BEGIN")\n', ""),),
        (f"{OF_STORE}::test_a_snapshot_stands_still",),
    ),
    Mutation(
        "locks-position-apart",
        "the position is moved in a transaction of its own, before the records are applied",
        (
            Patch(
                STORE,
                "            self._apply_all(db, records, function)\n",
                "            db.execute(COMMIT)\n"
                "            db.execute(BEGIN)\n"
                "            self._apply_all(db, records, function)\n",
            ),
        ),
        (f"{OF_CLIENT}::test_scenario_23_a_crash_applies_nothing_twice_and_loses_nothing",),
    ),
    Mutation(
        "locks-sent-under-another-id",
        "a send that had no answer is repeated under another id",
        (
            Patch(
                "quire_locks.client",
                "        old_until = time.monotonic() + OLD_SECONDS\n        while True:\n",
                "        old_until = time.monotonic() + OLD_SECONDS\n        while True:\n"
                "            txn_id = uuid.uuid4().bytes if tries else pending.txn_id\n"
                "            headers = draft.headers(position, txn_id)\n",
            ),
        ),
        (f"{OF_CLIENT}::test_scenario_9_a_lost_answer_is_found_out",),
    ),
    Mutation(
        "locks-decided-before-position",
        "a teller decides by one state, and sends the position of a later one",
        (
            Patch(
                TELLER,
                "            refusal, was_lost = await self._send(drafts, position)\n",
                "            await self.read_on()\n"
                "            position = self._ledger.position\n"
                "            refusal, was_lost = await self._send(drafts, position)\n",
            ),
        ),
    ),
    Mutation(
        "locks-tried-under-another-id",
        "a teller repeats what had no answer under another id",
        (
            Patch(
                TELLER,
                "                was_lost = True\n",
                "                was_lost = True\n"
                "                for number, one in enumerate(drafts):\n"
                "                    drafts[number] = one._replace(txn_id=one.txn_id + b'+')\n"
                "                request = self._request(drafts, position)\n",
            ),
        ),
    ),
)
