"""Rules of a bookie, and each one broken."""

from __future__ import annotations

from sim.mutations.mutation import Mutation, Patch

OPERATIONS = "bookie.ledger_operations"
JOURNAL = "bookie.journal.journal"
START = "bookie.start"
CHECKPOINTER = "bookie.storage.checkpointer"
COMPACTOR = "bookie.space.compactor"
TABLE = "bookie.ledger_table"
FILES = "bookie.journal.journal_files"
ADOPTION = "bookie.storage.adopted"
ADOPTED = "tests/bookie/storage/test_adopted.py"
JOURNALS = "tests/bookie/journal/test_journal.py"
COMPACTION = "tests/bookie/space/test_compactor.py"
SCENARIOS = "tests/sim/test_scenarios.py"
NAMED = "tests/sim/test_named.py"

BOOKIE_RULES = (
    Mutation(
        "fence-early",
        "a fence is answered before it is durable",
        (
            Patch(
                OPERATIONS,
                "state.fence_group = self._journal.append_special(",
                "self._journal.append_special(",
            ),
        ),
        (f"{SCENARIOS}::test_fence_and_power",),
    ),
    Mutation(
        "fence-not-made",
        "a fencing read is answered, and adds are taken as before (bk#2614)",
        (
            Patch(
                "bookie.adds",
                "return Status.EFENCED if state.fenced and not is_recovery else Status.EOK",
                "return Status.EOK",
            ),
        ),
        (f"{NAMED}::test_rivals_are_told_apart",),
    ),
    Mutation(
        "fence-not-replayed",
        "a restart forgets fences that only the journal has",
        (Patch(START, "                state.fenced = True\n", "                pass\n"),),
        ("tests/bookie/test_bookie.py::test_a_fence_that_only_the_journal_has_is_replayed",),
    ),
    Mutation(
        "fence-not-stored",
        "a checkpoint stores ledgers as not fenced",
        (Patch(TABLE, 'b"\\x01" if self.fenced else b"\\x00"', 'b"\\x00"'),),
        ("tests/bookie/test_bookie.py",),
    ),
    Mutation(
        "no-tombstones",
        "a bookie does not remember what it deleted (bk#4462)",
        (
            Patch(
                TABLE,
                "        if ledger_id in self.undone:\n            return True\n"
                "        return ledger_id in self._tombstones or ledger_id in self._old_tombstones",
                "        return False",
            ),
        ),
        (f"{SCENARIOS}::test_deleted_under_its_writer",),
    ),
    Mutation(
        "ack-before-sync",
        "the journal acknowledges before the sync",
        (
            Patch(
                JOURNAL,
                "self._file.sync(self._synced)",
                "self._file.sync(lambda _error: None)\n        self._synced(None)",
            ),
        ),
        (JOURNALS,),
    ),
    Mutation(
        "file-left-unsynced",
        "the journal's next file is begun while the last is not durable",
        (
            Patch(
                JOURNAL,
                "return not self._unsynced and not self._sync_running and self._next_file()",
                "return self._next_file()",
            ),
        ),
        (f"{JOURNALS}::test_a_file_is_left_only_when_all_of_it_is_durable",),
    ),
    Mutation(
        "replay-forgets",
        "the replay leaves entries out",
        (
            Patch(
                START,
                "        start = cache.put(ledger_id, entry_id, (record,), len(record))",
                "        return True\n        start = 0",
            ),
        ),
        ("tests/bookie/test_bookie.py",),
    ),
    Mutation(
        "hole-is-a-tail",
        "damage in the middle of a journal is taken for its torn end",
        (
            Patch(
                "bookie.journal.journal_replay",
                "if unknown or found.durable_sequence > self.sequence:",
                "if False:",
            ),
        ),
        ("tests/bookie/journal/test_journal_damage.py",),
    ),
    Mutation(
        "mark-too-far",
        "the mark moves past entries that are in memory only",
        (
            Patch(
                CHECKPOINTER,
                "await self._move_mark(mark)",
                "await self._move_mark(self._journal._durable)",
            ),
        ),
        ("tests/bookie/test_bookie_model.py", "tests/bookie/test_crash_points.py"),
    ),
    Mutation(
        "mark-before-index",
        "the mark moves before the index is durable",
        (
            Patch(
                "bookie.storage.flush",
                "await self._disk.run(self._index.sync)",
                "await trio.lowlevel.checkpoint()",
            ),
        ),
        ("tests/bookie/test_bookie_model.py", "tests/bookie/test_crash_points.py"),
    ),
    Mutation(
        "mark-before-log",
        "the mark moves before the entry log is durable",
        (
            Patch(
                "bookie.storage.flush",
                "await self._writer.sync()",
                "await trio.lowlevel.checkpoint()",
            ),
        ),
        ("tests/bookie/test_bookie_model.py", "tests/bookie/test_crash_points.py"),
    ),
    Mutation(
        "deletion-hides-state",
        "a ledger's state is not stored while its deletion is on the way to the disk",
        (Patch(TABLE, "if state is not None and ledger_id in self._dirty and", "if False and"),),
        ("tests/bookie/test_bookie.py", "tests/bookie/space/test_garbage_collector.py"),
    ),
    Mutation(
        "blind-repoint",
        "compaction tells the index its new place, wherever the entry is by now",
        (Patch(COMPACTOR, "if found[i] != old_base | moves.old_offsets[i]:", "if False:"),),
        (
            f"{COMPACTION}::test_a_flush_before_the_index_is_told_wins",
            f"{COMPACTION}::test_a_ledger_deleted_meanwhile_does_not_come_back",
        ),
    ),
    Mutation(
        "compaction-index-late",
        "compaction removes the old log before the index is durable",
        (
            Patch(
                COMPACTOR,
                "            await self._disk.run(self._index.sync)\n"
                "            await self._logs.publish",
                "            await self._logs.publish",
            ),
        ),
        ("tests/bookie/space/test_compactor_model.py", "tests/bookie/space/test_compactor.py"),
    ),
    Mutation(
        "compaction-drops",
        "compaction leaves out the last live record of each slice",
        (
            Patch(
                COMPACTOR,
                "for i, offset in enumerate(records.offsets) if found[i] == base | offset]",
                "for i, offset in enumerate(records.offsets) if found[i] == base | offset][:-1]",
            ),
        ),
        ("tests/bookie/space/test_compactor_model.py", "tests/bookie/space/test_compactor.py"),
    ),
    Mutation(
        "adopted-as-spare",
        "a journal that is an entry log too is used again",
        (Patch(FILES, "if self._disk.link_count(path) > 1:", "if False:"),),
        (ADOPTED,),
    ),
    Mutation(
        "adopted-too-early",
        "a journal becomes an entry log while a start still needs it",
        (Patch(ADOPTION, "if journal_id >= mark_journal_id:", "if journal_id > mark_journal_id:"),),
        (ADOPTED,),
    ),
    Mutation(
        "adopted-unnamed",
        "the checkpoint does not say which journals are to be entry logs",
        (Patch(CHECKPOINTER, "tuple(self._adopted.names()),", "(),"),),
        (ADOPTED,),
    ),
    Mutation(
        "adopted-elsewhere",
        "the index points at an entry in a journal one group too early",
        (
            Patch(
                JOURNAL,
                "at = self._offset + GROUP_HEADER_SIZE\n",
                "at = self._offset + GROUP_HEADER_SIZE - self._alignment\n",
            ),
        ),
        (ADOPTED,),
    ),
    Mutation(
        "damage-is-absence",
        "a damaged entry is answered «no such entry»",
        (
            Patch(
                "bookie.reads",
                "str(error))\n        return Status.EIO",
                "str(error))\n        return Status.ENOENTRY",
            ),
        ),
        ("tests/bookie/health/test_damage.py",),
    ),
    Mutation(
        "collects-the-living",
        "collection takes a ledger that metadata knows for deleted",
        (
            Patch(
                "bookie.space.garbage_collector",
                "gone = await (known.confirmed() if only_confirm else"
                " known.gone(self._table.ids()))",
                "gone = await (known.confirmed() if only_confirm else"
                " known.gone(self._table.ids()))\n"
                "            gone = [*gone, *self._table.ids()[:1]]",
            ),
        ),
        ("tests/bookie/space/test_garbage_collector.py",),
    ),
)
