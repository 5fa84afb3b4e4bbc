"""A driver for one transactional id's state machine: carries out effects as the shell does, and
checks what must always hold (a request is answered once; records are acknowledged in order)."""

from __future__ import annotations

import itertools

import pytest

from broker.transactions import txn_core
from broker.transactions.types import (
    TV2,
    AddInput,
    Answer,
    Append,
    ArmTimer,
    EndInput,
    Forget,
    InitInput,
    NeedProducerId,
    SendMarkers,
    Transaction,
    TxnSnapshot,
    TxnState,
)
from wire.kafka.errors import ErrorCode

E = ErrorCode
T0 = 1_700_000_000_000
P = frozenset({("t", 0), ("u", 3)})


class TxnDriver:
    """Records and markers are acknowledged at once, unless `auto` is switched off."""

    def __init__(self, txn=None, *, server_version=TV2, auto=True):
        self.txn = txn
        self.server_version = server_version
        self.auto_store = self.auto_mark = auto
        self.now_ms = T0
        self.ids = itertools.count(1000)
        self.answers = {}  # token -> (result, needs_barrier)
        self.unstored = []  # Append, in order
        self.stored = []  # TxnSnapshot, in order
        self.unmarked = []  # Markers, in order
        self.marks = []  # Markers, all that were ever sent
        self.timer_ms = None
        self.forgotten = 0
        self._tokens = itertools.count(1)

    # --- inputs: what was answered, or None if nothing was yet

    def init(self, producer_id=-1, epoch=-1, *, timeout_ms=60_000):
        if self.txn is None:
            self.txn = Transaction("id")
        request = InitInput(timeout_ms, producer_id, epoch)
        return self._ask(
            lambda token, fresh: txn_core.init_producer_id(
                self.txn, token, request, self.now_ms,
                server_version=self.server_version, fresh_id=fresh,
            )
        )  # fmt: skip

    def add(self, producer_id, epoch, partitions=P, version=TV2):
        request = AddInput(producer_id, epoch, frozenset(partitions), version)
        return self._ask(
            lambda token, _: txn_core.add_partitions(self.txn, token, request, self.now_ms)
        )

    def verify(self, producer_id, epoch, partitions=P):
        request = AddInput(producer_id, epoch, frozenset(partitions))
        return self._ask(lambda token, _: txn_core.verify(self.txn, token, request))

    def end(self, producer_id, epoch, is_commit, version=TV2):
        request = EndInput(producer_id, epoch, is_commit, version)
        return self._ask(
            lambda token, fresh: txn_core.end(self.txn, token, request, self.now_ms, fresh_id=fresh)
        )

    def tick(self, after_ms=0):
        self.now_ms += after_ms
        self._apply_with_id(
            lambda fresh: txn_core.tick(
                self.txn, self.now_ms, server_version=self.server_version, fresh_id=fresh
            )
        )

    def store(self, error=E.NONE):
        """Acknowledges the first record on its way, or fails it."""
        append = self.unstored.pop(0)
        if not error:
            self.stored.append(append.snapshot)
        self.apply(txn_core.stored(self.txn, append.then, error, self.now_ms))

    def mark(self, error=E.NONE, partitions=None):
        """The partitions of the first round of markers answer."""
        markers = self.unmarked.pop(0)
        results = dict.fromkeys(partitions or markers.partitions, error)
        self.apply(txn_core.marked(self.txn, markers.round_id, results, self.now_ms))

    def reload(self):
        """Another coordinator loads what was acknowledged."""
        other = TxnDriver(server_version=self.server_version)
        other.now_ms, other.ids = self.now_ms, self.ids
        if self.stored:
            other.stored = [self.stored[-1]]
            other.txn = Transaction.restore(self.stored[-1])
        return other

    def start(self):
        if self.txn is not None:
            self.apply(txn_core.start(self.txn, self.now_ms))
        return self

    # --- effects

    def _ask(self, call):
        token = next(self._tokens)
        self._apply_with_id(lambda fresh: call(token, fresh))
        return self.answers.get(token, (None, None))[0]

    def _apply_with_id(self, call):
        before = None if self.txn is None else self.txn.snapshot()
        effects = call(None)
        if effects == [NeedProducerId()]:
            assert self.txn.snapshot() == before
            effects = call(next(self.ids))
        self.apply(effects)

    def apply(self, effects):
        for effect in effects:
            match effect:
                case Answer(token, result, needs_barrier):
                    assert token not in self.answers, "answered twice"
                    self.answers[token] = (result, needs_barrier)
                case Append():
                    self.unstored.append(effect)
                case SendMarkers(markers):
                    assert self.stored[-1].state in (2, 3), "not before Prepare* is stored"
                    self.marks.append(markers)
                    self.unmarked.append(markers)
                case ArmTimer(at_ms):
                    self.timer_ms = at_ms
                case Forget():
                    self.forgotten += 1
                case _:
                    pytest.fail(f"{effect}")
        while self.auto_store and self.unstored:
            self.store()
        while self.auto_mark and self.unmarked:
            self.mark()

    @property
    def last(self):
        """(result, needs_barrier) of the last request."""
        return self.answers[max(self.answers)]


def in_state(state, *, epoch=5, producer_id=7, version=TV2, started_ms=T0, **fields) -> TxnDriver:
    """A loaded id; partitions as that state has them, and nothing on its way."""
    has_partitions = state in (TxnState.ONGOING, TxnState.PREPARE_COMMIT, TxnState.PREPARE_ABORT)
    values = {
        "transactional_id": "id",
        "producer_id": producer_id,
        "previous_producer_id": -1,
        "next_producer_id": -1,
        "epoch": epoch,
        "timeout_ms": 60_000,
        "state": state,
        "partitions": P if has_partitions else frozenset(),
        "updated_ms": T0,
        "started_ms": started_ms,
        "version": version,
    }
    driver = TxnDriver(Transaction.restore(TxnSnapshot(**(values | fields))), auto=False)
    driver.stored.append(driver.txn.snapshot())
    return driver
