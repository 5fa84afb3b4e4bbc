"""Producer state against a naive model that remembers everything."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from broker.log.append.producer_state import Duplicate, ProducerState
from broker.log.append.producer_store import Room
from wire.kafka.errors import ErrorCode, KafkaError
from wire.kafka.records.batch import BatchHeader, build_batch, parse_header
from wire.kafka.records.control import EndTransactionMarker, build_end_transaction_batch

SEQUENCE_MAX = 2**31 - 1
NOW = 1_700_000_000_000
COMMIT = EndTransactionMarker(committed=True, coordinator_epoch=1)
MARKER = parse_header(
    build_end_transaction_batch(
        COMMIT,
        producer_id=0,
        producer_epoch=0,
        timestamp_ms=NOW,
    )
)
BATCHES = {
    transactional: parse_header(build_batch([], is_transactional=transactional))
    for transactional in (False, True)
}


class Model:
    """What the rules mean, without any cleverness: every sequence number that is in the log."""

    def __init__(self) -> None:
        self.epoch = -1
        self.log: list[tuple[int, int, int]] = []  # (first, last, offset) of this epoch
        self.run: list[int] = []  # sequence numbers, each following the one before it
        self.transaction: int | None = None
        self.appended = 0

    def numbers(self, first: int, count: int) -> list[int]:
        return [(first + index) % 2**31 for index in range(count)]

    def expected(self, first: int, count: int, epoch: int, transactional: bool):
        numbers = self.numbers(first, count)
        if epoch == self.epoch:
            for known in self.log[-5:]:
                if known[:2] == (first, numbers[-1]):
                    is_of_it = self.transaction is not None and known[2] >= self.transaction
                    if transactional and not is_of_it:
                        return ErrorCode.INVALID_TXN_STATE  # what it was part of has ended
                    return Duplicate(known[2], -1)
        if epoch < self.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if epoch > self.epoch:
            in_order = first == 0
        else:
            in_order = first == ((self.run[-1] + 1) % 2**31 if self.run else 0)
        if not in_order:
            kept = [each for known in self.log[-5:] for each in self.numbers_between(*known[:2])]
            gone = set(self.run) - set(kept)
            if epoch == self.epoch and set(numbers) <= gone:
                return ErrorCode.DUPLICATE_SEQUENCE_NUMBER
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        if self.transaction is not None and not transactional:
            return ErrorCode.INVALID_TXN_STATE
        return None

    def numbers_between(self, first: int, last: int) -> list[int]:
        return self.numbers(first, (last - first) % 2**31 + 1)

    def append(self, first: int, count: int, epoch: int, offset: int, transactional: bool) -> None:
        if epoch != self.epoch:
            self.epoch, self.log, self.run = epoch, [], []
        numbers = self.numbers(first, count)
        self.log.append((first, numbers[-1], offset))
        self.run += numbers
        if transactional and self.transaction is None:
            self.transaction = offset

    def mark(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.epoch, self.log, self.run = epoch, [], []
        self.transaction = None


def marker_of(header: BatchHeader):
    return COMMIT if header.is_control else None


def is_before(sequence: int, other: int) -> bool:
    """Numbers wrap: of the two ways round the shorter one counts."""
    return 0 < (other - sequence) % 2**31 < 2**30


PIDS = st.integers(1, 4)
COUNTS = st.integers(1, 4)


class ProducerStateMachine(RuleBasedStateMachine):
    """Random producers against the model, with snapshots, replays, expiry and refusals; most of
    them are bytes, not objects."""

    def __init__(self) -> None:
        super().__init__()
        self.state = ProducerState(producers_max=3, hot_max=1)
        self.room = Room(100)
        self.state.enter(self.room)
        self.models: dict[int, Model] = {}  # the one that appended last is last
        self.refused: dict[int, tuple[int, int, int]] = {}  # epoch, first number, when
        self.now_ms = NOW
        self.end = 0
        self.since_snapshot: list[BatchHeader] = []
        self.last_snapshot = [part() for part in self.state.snapshot()]

    def _append(self, header: BatchHeader) -> None:
        header = header._replace(base_offset=self.end)
        self.state.append(header, self.end, self.now_ms, marker=marker_of(header))
        self.since_snapshot.append(header)
        self.end += header.last_offset_delta + 1

    def _touch(self, pid: int) -> Model:
        self.refused.pop(pid, None)
        model = self.models.pop(pid, None) or Model()
        self.models[pid] = model
        model.appended = self.now_ms
        return model

    def _send(self, pid: int, first: int, count: int, epoch: int, transactional: bool) -> None:
        header = BATCHES[transactional]._replace(
            last_offset_delta=count - 1,
            producer_id=pid,
            producer_epoch=epoch,
            base_sequence=first,
        )
        model = self.models.get(pid)
        if model is not None:
            expected = model.expected(first, count, epoch, transactional)
        elif len(self.models) >= 3:
            expected = ErrorCode.THROTTLING_QUOTA_EXCEEDED
            self._note(pid, epoch, first)
        elif self._comes_too_early(pid, epoch, first):
            expected = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        else:
            expected = None
        try:
            got = self.state.check(header, self.now_ms)
        except KafkaError as error:
            got = error.code
        assert got == expected, header
        if expected is None:
            offset = self.end
            self._append(header)
            self._touch(pid).append(first, count, epoch, offset, transactional)

    def _note(self, pid: int, epoch: int, first: int) -> None:
        known_epoch, known_first, known_ms = self.refused.get(pid, (-1, 0, self.now_ms))
        if epoch > known_epoch or (epoch == known_epoch and is_before(first, known_first)):
            self.refused[pid] = epoch, first, known_ms

    def _comes_too_early(self, pid: int, epoch: int, first: int) -> bool:
        """Something of this epoch was refused and is to come before it."""
        if pid not in self.refused:
            return False
        refused_epoch, refused_first, _ = self.refused[pid]
        if epoch == refused_epoch:
            return is_before(refused_first, first)
        return epoch > refused_epoch and first != 0

    @rule(pid=PIDS, count=COUNTS, transactional=st.booleans())
    def go_on(self, pid, count, transactional):
        model = self.models.get(pid)
        if model is None:
            self._send(pid, SEQUENCE_MAX - 5, count, 0, transactional)
        else:
            first = (model.run[-1] + 1) % 2**31 if model.run else 0
            keep = transactional or model.transaction is not None
            self._send(pid, first, count, model.epoch, keep)

    @precondition(lambda self: any(model.log for model in self.models.values()))
    @rule(data=st.data(), shift=st.integers(0, 2))
    def retry(self, data, shift):
        pid = data.draw(st.sampled_from([pid for pid, model in self.models.items() if model.log]))
        model = self.models[pid]
        first, last, _ = data.draw(st.sampled_from(model.log))
        count = (last - first) % 2**31 + 1
        self._send(pid, (first + shift) % 2**31, count, model.epoch, True)

    @rule(
        pid=PIDS,
        first=st.sampled_from([0, 1, 2, 5, 9, SEQUENCE_MAX - 5, SEQUENCE_MAX - 1, SEQUENCE_MAX]),
        count=COUNTS,
        epoch=st.integers(0, 4),
        transactional=st.booleans(),
    )
    def anything(self, pid, first, count, epoch, transactional):
        self._send(pid, first, count, epoch, transactional)

    @rule(pid=PIDS, bump=st.booleans())
    def end_transaction(self, pid, bump):
        model = self.models.get(pid)
        if model is None:
            return
        header = MARKER._replace(producer_id=pid, producer_epoch=model.epoch + bump)
        self.state.check_marker(header, COMMIT, 0)
        self._append(header)
        self._touch(pid).mark(model.epoch + bump)

    @rule(step_ms=st.integers(0, 600))
    def time_passes(self, step_ms):
        self.now_ms += step_ms
        expired = [
            pid
            for pid, model in self.models.items()
            if model.transaction is None and self.now_ms - model.appended >= 1000
        ]
        assert self.state.expire(self.now_ms, 1000) == len(expired)
        self.refused = {
            pid: noted for pid, noted in self.refused.items() if self.now_ms - noted[2] < 1000
        }
        for pid in expired:
            del self.models[pid]
        if expired:  # what a replay cannot know
            self.since_snapshot, self.last_snapshot = [], [part() for part in self.state.snapshot()]

    @rule()
    def take_snapshot(self):
        self.since_snapshot, self.last_snapshot = [], [part() for part in self.state.snapshot()]

    @rule()
    def take_over(self):
        """Another broker: the last snapshot, and what the log holds behind it."""
        other = ProducerState(producers_max=3, hot_max=1)
        other.restore(self.last_snapshot)
        for header in self.since_snapshot:
            other.append(header, header.base_offset, self.now_ms, marker=marker_of(header))
        assert other.end_offset == self.state.end_offset
        assert list(other.producers()) == list(self.state.producers())
        self.state.leave()
        self.refused = {}
        assert self.room.count == 0
        self.state = other
        self.state.enter(self.room)
        for header in self.since_snapshot:  # the log does not tell when it was appended
            if header.producer_id in self.models:
                self.models[header.producer_id].appended = self.now_ms

    @invariant()
    def same_facts(self):
        shown = {each.producer_id: each for each in self.state.producers()}
        assert list(shown) == list(self.models)
        assert self.room.count == len(self.state) == len(shown)
        assert self.room.noted_count == len(self.refused)
        for pid, model in self.models.items():
            assert shown[pid].producer_epoch == model.epoch
            assert shown[pid].last_sequence == (model.run[-1] if model.run else -1)
            start = -1 if model.transaction is None else model.transaction
            assert shown[pid].transaction_start_offset == start
        opened = [each.transaction for each in self.models.values() if each.transaction is not None]
        assert self.state.first_open_transaction_offset == min(opened, default=None)


TestProducerStateMachine = ProducerStateMachine.TestCase
TestProducerStateMachine.settings = settings(
    max_examples=150, stateful_step_count=60, deadline=None
)
