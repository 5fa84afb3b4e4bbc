"""Rules of writing, recovering, reading and repairing a ledger, and each one broken."""

from __future__ import annotations

from sim.mutations.mutation import Mutation, Patch

WRITER = "ledger.writer_core"
RECOVERY = "ledger.recovery"
CORES = "ledger.recovery_core"
SCENARIOS = "tests/sim/test_scenarios.py"
NAMED = "tests/sim/test_named.py"

LEDGER_RULES = (
    Mutation(
        "confirm-at-qa-1",
        "an entry is confirmed with one ack fewer than the ack quorum",
        (
            Patch(
                WRITER,
                "self._ack_quorum_size = schedule.ack_quorum_size",
                "self._ack_quorum_size = max(schedule.ack_quorum_size - 1, 1)",
            ),
        ),
        ("tests/ledger/test_writer_core.py",),
    ),
    Mutation(
        "confirm-in-change",
        "entries are confirmed while a new ensemble is on its way to the metadata (bk#4097)",
        (
            Patch(
                WRITER, "            not self.changing\n            and bool", "            bool"
            ),
            Patch(
                WRITER,
                "if self.changing or self.error is not None:\n            return confirmed",
                "if self.error is not None:\n            return confirmed",
            ),
        ),
        (f"{SCENARIOS}::test_acks_during_the_change",),
    ),
    Mutation(
        "acks-kept",
        "acks of a bookie that was replaced count on (bk#3005)",
        (Patch(WRITER, "pending.acks &= kept_mask", "pending.acks &= -1"),),
        (f"{SCENARIOS}::test_ack_of_a_replaced_bookie",),
    ),
    Mutation(
        "lac-ahead",
        "an entry says that all before it were confirmed",
        (
            Patch(
                WRITER,
                "PendingAdd(entry_id, self.last_add_confirmed, length, size, done)",
                "PendingAdd(entry_id, entry_id - 1, length, size, done)",
            ),
        ),
        ("tests/ledger/test_writer_core.py",),
    ),
    Mutation(
        "no-resend",
        "what is in flight is not sent to the bookie that replaces another",
        (Patch(WRITER, "resend.extend((pending", "list((pending"),),
        ("tests/ledger/test_writer_core.py",),
    ),
    Mutation(
        "trial-in-change",
        "a kept bookie is sent an entry while another one takes its place in the metadata",
        (
            Patch(
                "ledger.pipeline",
                "may_try = is_uneasy and not core.changing",
                "may_try = is_uneasy",
            ),
        ),
        ("tests/ledger/test_writer_kept_bookies.py",),
    ),
    Mutation(
        "ensemble-before-durable",
        "a new ensemble is used before the metadata has it (bk#1591)",
        (
            Patch(
                "ledger.open_ledger",
                "            return metadata.with_segment(request.first_entry_id, ensemble)\n\n"
                "        self._versioned = await",
                "            return metadata.with_segment(request.first_entry_id, ensemble)\n\n"
                "        return\n        self._versioned = await",
            ),
        ),
        (f"{SCENARIOS}::test_ensemble_that_metadata_never_saw",),
    ),
    Mutation(
        "no-floor",
        "recovery begins before the last segment (bk#2615)",
        (
            Patch(
                CORES,
                "self.last_add_confirmed = last_segment_first - 1",
                "self.last_add_confirmed = -1",
            ),
        ),
        (f"{SCENARIOS}::test_end_below_the_last_segment",),
    ),
    Mutation(
        "coverage-short",
        "recovery is content with one fenced bookie fewer than cover every write set",
        (
            Patch(
                "ledger.distribution",
                "if unknown_count >= ack_quorum_size:",
                "if unknown_count > ack_quorum_size:",
            ),
        ),
        ("tests/ledger/test_distribution.py",),
    ),
    Mutation(
        "negative-short",
        "one bookie fewer without an entry proves that it was never acked",
        (
            Patch(
                "ledger.distribution",
                "write_quorum_size - ack_quorum_size + 1",
                "max(write_quorum_size - ack_quorum_size, 1)",
            ),
        ),
        ("tests/ledger/test_distribution.py", "tests/ledger/test_recovery.py"),
    ),
    Mutation(
        "silence-is-negative",
        "an error is taken for «no such entry» (bk#2281)",
        (Patch(CORES, "if status in _NEGATIVE:", "if status is not Status.EOK:"),),
        (f"{SCENARIOS}::test_silence_is_no_answer",),
    ),
    Mutation(
        "no-fence",
        "recovery's reads do not fence (bk#2614)",
        (
            Patch(
                RECOVERY,
                "self._flags = 0 if master_key is None else FLAG_DO_FENCING",
                "self._flags = 0",
            ),
        ),
        (f"{NAMED}::test_rivals_are_told_apart",),
    ),
    Mutation(
        "no-write-back",
        "recovery counts what it finds behind the LAC, and does not write it to the others",
        (
            Patch(
                RECOVERY,
                "self._pipeline.append((entry.payload,), self._on_done)",
                "core.last_add_pushed += 1\n"
                "        core.last_add_confirmed = core.last_add_pushed\n"
                "        core.length = core.confirmed_length = entry.length",
            ),
        ),
        ("tests/ledger/test_recovery.py",),
    ),
    Mutation(
        "recovered-ensemble-lost",
        "ensembles that changed while a recovery wrote back are not stored when it closes",
        (
            Patch(
                RECOVERY,
                "for first_entry_id, bookies in segments.items():",
                "for first_entry_id, bookies in ():",
            ),
        ),
        ("tests/ledger/test_recovery.py",),
    ),
    Mutation(
        "recovery-stops-early",
        "recovery closes the ledger at the LAC that bookies know, without looking further",
        (
            Patch(
                RECOVERY,
                "await self._write_back(reads, written, end.last_add_confirmed + 1)",
                "await written.finish()",
            ),
        ),
        ("tests/ledger/test_recovery.py",),
    ),
    Mutation(
        "close-at-pushed",
        "a ledger is closed at the last entry that was sent, confirmed or not",
        (
            Patch(
                "ledger.writer",
                "return self._core.last_add_confirmed, self._core.confirmed_length",
                "return self._core.last_add_pushed, self._core.length",
            ),
        ),
        ("tests/ledger/test_writer.py",),
    ),
    Mutation(
        "digest-unchecked",
        "nobody checks an entry's digest",
        (
            Patch("wire.bookkeeper.entry", "if not intact:", "if False:"),
            Patch(
                "wire.bookkeeper.entry",
                "crc32c(payload, crc32c(view[:32])) != stored\n                or found_entry_id",
                "found_entry_id",
            ),
        ),
        ("tests/wire/bookkeeper",),
    ),
)
