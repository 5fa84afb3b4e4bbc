"""Rules of what stands between the code and its disk, its network and its memory, each one broken.
The worlds' own edges take their place in the simulation, so named tests are what finds most."""

from __future__ import annotations

from sim.mutations.mutation import Mutation, Patch

ROCKS_INDEX = "tests/bookie/storage/test_rocks_index.py"
REQUEST_MEMORY = "tests/runtime/test_request_memory.py"
ADDRESSES = "tests/ledger/test_bookie_watcher.py"

EDGE_RULES = (
    Mutation(
        "greeted-elsewhere",
        "a bookie that does not tell its id is used although its place changed in the greeting",
        (
            Patch(
                "ledger.network.connection",
                "place.is_certain and self._resolve() == place",
                "place.is_certain",
            ),
        ),
        (f"{ADDRESSES}::test_a_greeting_without_proof_counts_for_the_place_it_began_with",),
    ),
    Mutation(
        "believed-at-any-place",
        "a bookie that does not tell its id is used where another one may be",
        (
            Patch(
                "ledger.network.connection",
                "place.is_certain and self._resolve() == place",
                "self._resolve() == place",
            ),
        ),
        (f"{ADDRESSES}::test_who_does_not_tell_is_not_believed_at_a_place_that_is_not_certain",),
    ),
    Mutation(
        "replay-of-clean-pages",
        "a replay reads pages that only the page cache has",
        (
            Patch(
                "bookie.journal.journal_replay",
                "file.drop_cached(file.size(), 0)",
                "pass",
            ),
        ),
        (
            "tests/bookie/test_killed_then_power_fails.py"
            "::test_what_is_replayed_is_what_the_disk_has",
        ),
    ),
    Mutation(
        "ends-outlive-the-mend",
        "an index that was opened again remembers the ledgers' last entries of before",
        (
            Patch(
                "bookie.storage.rocks_index",
                "            self._last_entry_ids.clear()\n",
                "",
            ),
        ),
        (f"{ROCKS_INDEX}::test_a_mended_index_remembers_no_ends_of_before",),
    ),
    Mutation(
        "waiting-is-stuck",
        "a frame that waits for memory is given up with the one that it waits for",
        (Patch("runtime.request_memory", "WAITING_LOOKS = 2", "WAITING_LOOKS = 0"),),
        (f"{REQUEST_MEMORY}::test_who_may_not_grow_is_not_given_up_before_whom_it_waits_for",),
    ),
    Mutation(
        "waiting-counts-on",
        "the looks in which a frame waited for memory count on when it has it",
        (
            Patch(
                "runtime.request_memory",
                "self._progress[holder] = holder.frame_bytes_received, 0",
                "self._progress.setdefault(holder, (holder.frame_bytes_received, 0))",
            ),
        ),
        (f"{REQUEST_MEMORY}::test_who_may_grow_at_last_has_time_to_do_so",),
    ),
)
