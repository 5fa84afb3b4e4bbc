"""Rules of transactions in a partition, and each one broken."""

from __future__ import annotations

from sim.mutations.mutation import Mutation, Patch

PARTITION = "broker.log.partition"
PRODUCERS = "broker.log.append.producer_state"
LISTS = "broker.log.transactions.aborted_list"
GATE = "broker.log.transactions.gate"
ROOM = "tests/broker/log/transactions"
MODEL = f"{ROOM}/test_aborted_list_model.py"
SCENARIOS = f"{ROOM}/test_stable_offset_scenarios.py"

TRANSACTION_RULES = (
    Mutation(
        "lso-without-third-term",
        "the last stable offset forgets transactions whose marker is not acknowledged",
        (
            Patch(
                PARTITION,
                "return max(stable if ended is None else min(stable, ended),",
                "return max(stable,",
            ),
        ),
        (f"{SCENARIOS}::test_lso_waits_for_marker_ack_not_marker_append",),
    ),
    Mutation(
        "aborted-unsorted",
        "aborted transactions are listed in the order of their markers (Redpanda)",
        (
            Patch(
                LISTS,
                '_first_offset = attrgetter("first_offset")',
                '_first_offset = attrgetter("last_offset")',
            ),
        ),
        (MODEL,),
    ),
    Mutation(
        "late-marker-taken",
        "a marker of the producer's last epoch but one ends its transaction",
        (
            Patch(
                PRODUCERS,
                "is_late = epoch < producer.epoch\n",
                "is_late = epoch + 1 < producer.epoch\n",
            ),
        ),
        ("tests/broker/log/append/test_producer_state.py",),
    ),
    Mutation(
        "marker-retry-refused",
        "the same marker once more is refused, and its coordinator tries for ever (KAFKA-19999)",
        (
            Patch(
                PRODUCERS,
                "            is_late = producer.transaction_start_offset >= 0\n",
                "            is_late = True\n",
            ),
        ),
        ("tests/broker/log/append/test_producer_state.py",),
    ),
    Mutation(
        "rows-lost-at-roll",
        "a sealed ledger has only those aborted transactions that came since the last snapshot",
        (
            Patch(
                LISTS,
                "        parts = self.open.parts()\n",
                "        parts = self.open.parts(self._written)\n",
            ),
        ),
        (f"{SCENARIOS}::test_a_sealed_ledgers_index_is_read_and_not_made_anew",),
    ),
    Mutation(
        "boundary-without-snapshot",
        "a ledger behind a recovered one does not begin with a snapshot",
        (
            Patch(
                PARTITION,
                "self.queue.opening_snapshot = self.producers.snapshot()",
                "pass",
            ),
        ),
        (SCENARIOS,),
    ),
    Mutation(
        "newest-snapshot-dropped",
        "retention drops the ledger with the newest snapshot of the producers",
        (
            Patch(
                "broker.log.life.keeper",
                "keeps_producers = len(log.producers) > 0\n        await",
                "keeps_producers = False\n        await",
            ),
        ),
        (f"{SCENARIOS}::test_retention_keeps_newest_snapshot",),
    ),
    Mutation(
        "guard-survives-marker",
        "what was verified before a marker is appended behind it (KAFKA-14884)",
        (
            Patch(
                GATE,
                "        self._give_up(guard, ErrorCode.INVALID_TXN_STATE,",
                "        return\n        self._give_up(guard, ErrorCode.INVALID_TXN_STATE,",
            ),
        ),
        (f"{ROOM}/test_gate.py",),
    ),
)
