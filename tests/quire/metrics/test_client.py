"""Of thousands of ledgers that are written a page is made in slices."""

from types import SimpleNamespace

from ledger.statistics import LedgerStatistics
from quire.metrics.client import ledger_client_collector
from runtime.metrics import SAMPLES_PER_TURN


class Writer:
    def __init__(self, asked):
        self._asked = asked

    @property
    def pending_count(self):
        self._asked.append(self)
        return 2


def test_in_slices():
    asked, now = [], LedgerStatistics()
    writers = [Writer(asked) for _ in range(3 * SAMPLES_PER_TURN + 1)]
    now.writers.update({id(each): each for each in writers})
    pending = None
    collect = ledger_client_collector(now, SimpleNamespace(monotonic=lambda: 1.0))
    for family in collect():
        assert len(asked) <= SAMPLES_PER_TURN
        asked.clear()
        if family is not None and family.name == "bookkeeper_client_NUM_PENDING_ADD":
            pending = family.samples[0].value
    assert pending == 2 * len(writers)
