"""History: lives of one bookie on one machine, each on what the one before left."""

import logging
import random

import pytest

from bookie.space.gc_config import GcConfig
from bookie.storage.entry_log_format import HEADER_SIZE
from tests.bookie.fault_histories.known import Known, Metadata
from tests.bookie.fault_histories.life import live, live_in_peace
from tests.bookie.fault_histories.machine import Machine
from tests.bookie.fault_histories.steps import KIB, Steps, draw_shares
from tests.seeded import run_seeded

#: `gc`: collections find something to do more often, take longer, and the checkpoint's second file
#: finds no space now and then. `spoil`: between lives bits rot in what complete logs say of
#: themselves, which may cost space, and no entry.
KINDS = ("plain", "gc", "spoil")
#: How many lives, and fewer than how many steps in each.
LIVES = ((4, 60), (8, 25), (16, 25), (24, 6))
#: How often it is the process that ends, and not the power that fails.
KILL_SHARES = (0.1, 0.4, 0.6, 0.9)
#: Of the trace, in a failure.
LAST_STEPS = 40


class History:
    def __init__(self, kind, seed):
        self.known = Known()
        self._kind = kind
        self._rng = random.Random(f"{kind} {seed}")
        self._lives, self._steps_max = self._rng.choice(LIVES)
        self._shares = draw_shares(self._rng, 18 if kind == "gc" else 0)
        self._metadata = Metadata(self.known)
        #: Logs whose header says no more where the map is.
        self._misleading = set()
        self._machine = Machine(
            random.Random(f"{kind} {seed} machine"),
            kill_share=self._rng.choice(KILL_SHARES),
            **self._config(),
        )

    async def main(self):
        machine, rng = self._machine, self._rng
        for _ in range(self._lives):
            self._set_disk()
            await live(
                machine,
                self.known,
                self._metadata,
                self._steps,
                step_count=rng.randrange(2, self._steps_max),
                is_clean=rng.random() < 0.3,
            )
            machine.turn_on()
            self._between()
        machine.end_faults()
        for _ in range(2):
            await live_in_peace(machine, self.known, self._metadata)

    def _config(self):
        rng = self._rng
        thresholds = {"major_threshold": 1.0, "minor_threshold": 0.5} if self._kind == "gc" else {}
        return {
            "gc": GcConfig(
                rate_entries=0,
                over_replicated_wait_ms=1,
                wait_ms=rng.choice([2000, 600_000]),
                **thresholds,
            ),
            "more_ledger_directories": rng.choice([(), ("/more",)]),
            "verify_digest_on_write": rng.random() < 0.5,
            "flush_interval_ms": rng.choice([20, 1000]),
            "journal_kept_entry_min_bytes": rng.choice([0, 200, 1000]),
            "journal_size_bytes": rng.choice([12, 16, 24]) * KIB,
            "entry_log_size_limit_bytes": rng.choice([9, 16, 64]) * KIB,
            "write_cache_size_bytes": 64 * KIB,
            "disk_check_interval_ms": 500,
            "disk_reserve_size_bytes": rng.choice([0, 4 * KIB]),
            "scrub_interval_ms": rng.choice([0, 500, 3000]),
            # It refuses the start for what has rotted, as it should.
            "local_consistency_check_on_startup": self._kind != "spoil" and rng.random() < 0.4,
        }

    def _steps(self, bookie, nursery):
        return Steps(
            bookie,
            self._machine,
            self.known,
            self._metadata,
            self._rng,
            nursery,
            self._shares,
        )

    def _set_disk(self):
        """How fast it is in the next life, and whether that ends early: in its start, perhaps."""
        disk, rng = self._machine.disk, self._rng
        disk.faults.sync_seconds = rng.choice([(0.0, 0.0), (0.0001, 0.002)])
        slow = [(0.0, 0.001), (0.0, 0.02)] if self._kind == "gc" else [(0.0, 0.0), (0.0, 0.001)]
        disk.faults.run_seconds = rng.choice(slow)
        disk.faults.cached_share = rng.choice([1.0, 0.5])
        disk.last_mark_full_share = 0.1 if self._kind == "gc" else 0.0
        if rng.random() < 0.2:
            self._machine.crash_after(rng.randrange(1, 200))

    def _between(self):
        machine, rng = self._machine, self._rng
        disk, index = machine.disk, machine.index
        disk.operations_until_crash = None
        index.full_share = index.full_sync_share = 0.0
        if rng.random() < 0.7:
            disk.operations_until_full = index.operations_until_full = None
        # A start needs room for an entry log; whether it finds more is left to chance.
        spare = disk.used_bytes + rng.choice([4 * KIB, 40 * KIB, 1 << 30])
        disk.faults.capacity_bytes = max(disk.faults.capacity_bytes, spare)
        if self._kind == "spoil" and rng.random() < 0.5:
            for directory in ("/ledgers/current", "/more/current"):
                if disk.exists(directory):
                    self._spoil(directory)

    def _spoil(self, directory):
        """Flips a bit of some complete logs: of the map, or of where the header says that it is."""
        disk, rng = self._machine.disk, self._rng
        for name in disk.list(directory):
            path = f"{directory}/{name}"
            if path in self._misleading or not name.endswith(".log") or rng.random() >= 0.4:
                continue
            file = disk.open(path)
            place, size = int.from_bytes(file.pread(8, 8), "big"), file.size()
            file.close()
            if place >= HEADER_SIZE and place + 4 < size:
                if not (is_map := rng.random() < 0.7):
                    self._misleading.add(path)
                at = rng.randrange(place + 4, size) if is_map else rng.randrange(8, 16)
                disk.flip_bit(path, at, rng.randrange(8))
                self.known.note("spoilt", path, at)


def run_history(kind, seed):
    """Fails with the last steps of a history in which a promise was broken."""
    history = History(kind, seed)
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # each bookie tells of its start and of its end
    try:
        run_seeded(history.main, seed)
    except Exception as error:  # whatever it is, who reads of it wants to know the seed
        steps = "\n  ".join(history.known.trace[-LAST_STEPS:])
        words = "; ".join(f"{type(each).__name__}: {each}" for each in _leaves(error))
        raise AssertionError(f"{kind}, seed {seed}: {words}\n  {steps}") from error
    finally:
        logging.disable(before)
    if not history.known.acknowledged:
        pytest.fail(f"{kind}, seed {seed}: nothing was ever acknowledged")


def _leaves(error):
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    return [leaf for each in error.exceptions for leaf in _leaves(each)]
