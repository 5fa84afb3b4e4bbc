"""Rules of compaction, and each one broken."""

from __future__ import annotations

from sim.mutations.mutation import Mutation, Patch

CORE = "broker.log.compact.compaction_core"
ROOM = "tests/broker/log/compact"
OF_CORE = f"{ROOM}/test_compaction_core.py"
OF_CLEANING = (
    f"{ROOM}/test_cleaning_transactions.py"
    "::test_a_killed_owners_transaction_that_the_next_one_aborts"
)

COMPACTION_RULES = (
    Mutation(
        "tombstone-dropped-at-once",
        "a tombstone goes in the first pass that meets it",
        (
            Patch(
                CORE,
                "        is_expired = horizon_ms is not None and rules.now_ms >= horizon_ms\n",
                "        is_expired = horizon_ms is None or rules.now_ms >= horizon_ms\n",
            ),
        ),
        (OF_CORE,),
    ),
    Mutation(
        "stamp-beyond-the-map",
        "a tombstone behind what the key map knows gets its horizon",
        (
            Patch(
                CORE,
                "                fates.has_late_tombstone = True\n",
                "                fates.has_late_tombstone = False\n",
            ),
        ),
        (OF_CORE,),
    ),
    Mutation(
        "aborted-supersedes",
        "an aborted record takes the place of the one before it of its key",
        (
            Patch(
                CORE,
                "        elif not self._transactions.is_aborted(header) and header.last_offset >=",
                "        elif (\n"
                "            self._transactions.is_aborted(header) is not None\n"
                "            and header.last_offset >=",
            ),
            Patch(
                CORE,
                "self._start_offset:\n            yield from self._map(batch, header)",
                "self._start_offset\n        ):\n            yield from self._map(batch, header)",
            ),
        ),
        (OF_CORE,),
    ),
    Mutation(
        "aborted-comes-back",
        "a pass keeps aborted data, and not its entry in the aborted index",
        (
            Patch(
                CORE,
                "            and self._transactions.is_aborted(header)\n        )\n",
                "            and header.producer_id < -1\n        )\n",
            ),
        ),
        (OF_CORE,),
    ),
    Mutation(
        "older-kept",
        "a pass drops the newest record of a key, and keeps the one before it",
        (
            Patch(
                CORE,
                "key is None or offset < get(key) or",
                "key is None or offset == get(key) or",
            ),
        ),
        (OF_CORE,),
    ),
    Mutation(
        "beyond-the-map-dropped",
        "a pass judges records behind what its key map knows",
        (
            Patch(
                CORE,
                "            if offset <= last_mapped:\n",
                "            if offset <= last_mapped + 5:\n",
            ),
        ),
        (OF_CORE,),
    ),
    Mutation(
        "open-is-compacted",
        "a pass takes ledgers with transactions that are still open",
        (
            Patch(
                "broker.log.compact.plan_core",
                "if info.end_offset > last_stable_offset:\n",
                "if info.end_offset < 0:\n",
            ),
        ),
        (f"{ROOM}/test_plan_core.py",),
    ),
    Mutation(
        "marker-behind-unseen",
        "a pass takes data for committed whose abort marker is in the ledger that is open",
        (
            Patch(
                "broker.log.transactions.aborted_list",
                "            segment = self._next(at)\n"
                "            index = self.open if segment is None else segment.aborted\n"
                "            if index is None:\n",
                "            segment = self._next(at)\n"
                "            if segment is None:\n"
                "                return\n"
                "            index = segment.aborted\n"
                "            if index is None:\n",
            ),
        ),
        (OF_CLEANING,),
    ),
    Mutation(
        "swap-taken-back",
        "the ledgers of a swap of which nothing is known are deleted",
        (
            Patch(
                "broker.log.life.swap",
                "        return self.outcome in (SwapOutcome.NOT_ASKED, SwapOutcome.GONE)\n",
                "        return self.outcome is not SwapOutcome.DONE\n",
            ),
        ),
        ("tests/broker/log/life/test_keeper_swaps.py",),
    ),
)
