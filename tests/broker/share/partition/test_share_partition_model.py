"""The core of a share partition against a model that knows each offset by itself."""

from dataclasses import dataclass

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from broker.api import all_steps
from broker.share.partition.acknowledgements import Acknowledgement
from broker.share.partition.acquiring import LogBatch, Taker, acquire
from broker.share.partition.runs import ACKNOWLEDGED, ACQUIRED, ARCHIVED, AVAILABLE
from broker.share.partition.share_partition_core import SharePartitionCore, changing, stored_form
from broker.share.ports import ShareGroupSettings, StateBatch
from wire.kafka.errors import ErrorCode

MEMBERS = ("a", "b", "c")
OVER = (ACKNOWLEDGED, ARCHIVED)
TARGET = {0: ARCHIVED, 1: ACKNOWLEDGED, 2: AVAILABLE, 3: ARCHIVED}


@dataclass
class Offset:
    state: int = AVAILABLE
    count: int = 0
    member: str = ""
    deadline_ms: int = 0
    change: object = None
    target: int = AVAILABLE

    @property
    def is_over(self):
        return self.state in OVER and self.change is None


class Model(RuleBasedStateMachine):
    @initialize(
        locks=st.integers(5, 40), limit=st.integers(2, 6), batches=st.integers(0, 3), data=st.data()
    )
    def begin(self, locks, limit, batches, data):
        self.settings = ShareGroupSettings(
            record_lock_duration_ms=100,
            delivery_count_limit=limit,
            partition_max_record_locks=locks,
        )
        self.log, self.log_end, self.now_ms = [], 0, 0
        self.changes, self.acknowledged = [], set()
        self.offsets, self.start = {}, 0
        stored, at = [], 0
        for _ in range(batches):
            first = at + data.draw(st.integers(0, 3))
            last = first + data.draw(st.integers(0, 4))
            state = data.draw(st.sampled_from((AVAILABLE, ACKNOWLEDGED, ARCHIVED)))
            stored.append(StateBatch(first, last, state, data.draw(st.integers(1, limit - 1))))
            at = last + 1
        for batch in stored:
            for offset in range(batch.first_offset, batch.last_offset + 1):
                state = batch.delivery_state
                self.offsets[offset] = Offset(state, batch.delivery_count, target=state)
        for offset in range(at):
            self.offsets.setdefault(offset, Offset())
        self.core = SharePartitionCore(0, stored)
        self.advance()
        if at:
            self.log.append(LogBatch(0, at - 1))
            self.log_end = at

    # -- the model's part ------------------------------------------------------------------------

    def advance(self):
        while self.start in self.offsets and self.offsets[self.start].is_over:
            del self.offsets[self.start]
            self.start += 1

    def free(self, offset):
        it = self.offsets[offset]
        is_last = it.count >= self.settings.delivery_count_limit
        self.offsets[offset] = Offset(state := ARCHIVED if is_last else AVAILABLE, it.count)
        self.offsets[offset].target = state

    # -- what happens ----------------------------------------------------------------------------

    @rule(size=st.integers(1, 12), gap=st.integers(0, 3), is_hidden=st.booleans())
    def produce(self, size, gap, is_hidden):
        first = self.log_end + gap
        self.log.append(LogBatch(first, first + size - 1, is_hidden))
        self.log_end = first + size

    @rule(
        member=st.sampled_from(MEMBERS),
        records_max=st.integers(1, 30),
        batch_size=st.integers(1, 10),
        is_limit=st.booleans(),
        read_max=st.integers(1, 6),
    )
    def take(self, member, records_max, batch_size, is_limit, read_max):
        offset = self.core.next_fetch_offset()
        available = [
            each
            for each, it in sorted(self.offsets.items())
            if it.state == AVAILABLE and it.change is None
        ]
        assert offset == (available[0] if available else self.core.end)
        read = [batch for batch in self.log if batch.last >= offset][:read_max]
        taker = Taker(member, self.now_ms, records_max, batch_size, is_limit)
        end = self.core.end
        got = acquire(self.core, taker, offset, read, self.settings)
        present = {
            each
            for batch in read
            if not batch.is_hidden
            for each in range(batch.first, batch.last + 1)
        }
        limit = self.settings.delivery_count_limit
        given = [each for first, last, _ in got for each in range(first, last + 1)]
        assert given == sorted(set(given))
        for first, last, deliveries in got:
            assert deliveries <= limit
            for each in range(first, last + 1):
                assert each in present
                assert each not in self.acknowledged
                assert each >= self.start
                before = self.offsets.get(each, Offset())
                assert each >= end or each in self.offsets
                assert (before.state, before.change) == (AVAILABLE, None)
                assert before.count + 1 == deliveries
                self.offsets[each] = Offset(
                    ACQUIRED, deliveries, member, self.now_ms + 100, None, ACQUIRED
                )
        batch_of = {each: batch for batch in read for each in range(batch.first, batch.last + 1)}
        if is_limit:
            assert len(given) <= records_max
        elif len(given) > records_max:
            assert (
                len(given) - records_max < batch_of[given[-1]].last - batch_of[given[-1]].first + 1
            )
        throttle = max(2, (limit + 1) // 2)
        if limit > 2 and any(deliveries == limit for *_, deliveries in got):
            assert len(given) == 1, "the last attempt is made alone"
        elif limit > 2 and any(deliveries > throttle for *_, deliveries in got):
            assert len({batch_of[each] for each in given}) == 1
        # What core archived the log does not have, or may not show.
        for run in self.core.runs:
            for each in range(run.first, run.last + 1):
                self._is_archived_rightly(each, run, present, limit)
        for each in range(self.start, self.core.start):
            if each not in self.offsets:
                self.offsets[each] = Offset(ARCHIVED, 0, target=ARCHIVED)
            it = self.offsets[each]
            if not it.is_over:
                assert it.state == AVAILABLE
                assert each not in present or it.count >= limit
                self.offsets[each] = Offset(ARCHIVED, it.count, target=ARCHIVED)
        self.advance()
        is_wanted = any(
            each in present and each >= offset and self._is_free(each) for each in present
        )
        room = self.settings.partition_max_record_locks - (self.core.end - self.core.start)
        if not given and is_wanted and room > 0 and read_max > 3:
            first = min(each for each in present if self._is_free(each))
            assert first - self.core.start >= self.settings.partition_max_record_locks

    def _is_free(self, offset):
        if offset in self.offsets:
            return self.offsets[offset].state == AVAILABLE and not self.offsets[offset].change
        return offset >= self.core.end

    def _is_archived_rightly(self, each, run, present, limit):
        it = self.offsets.get(each)
        if run.state == ARCHIVED and (it is None or it.state == AVAILABLE):
            count = 0 if it is None else it.count
            assert each not in present or count >= limit
            self.offsets[each] = Offset(ARCHIVED, count, target=ARCHIVED)

    @rule(
        member=st.sampled_from(MEMBERS),
        data=st.data(),
        kinds=st.lists(st.integers(0, 4), min_size=1),
    )
    def acknowledge(self, member, data, kinds):
        mine = [each for each, it in self.offsets.items() if it.member == member]
        low = min(mine, default=0) if data.draw(st.booleans()) else max(self.start - 2, 0)
        first = low + data.draw(st.integers(0, 4))
        last = first + data.draw(st.integers(0, 8))
        size = last - first + 1
        types = bytes(kinds[:1]) if data.draw(st.booleans()) else bytes((kinds * size)[:size])
        want = ErrorCode.NONE
        for each in range(first, last + 1):
            if each < self.start:
                continue
            it = self.offsets.get(each)
            if it is None or (it.state, it.member, it.change) != (ACQUIRED, member, None):
                want = ErrorCode.INVALID_RECORD_STATE
        error, change = all_steps(
            self.core.acknowledge(
                member, [Acknowledgement(first, last, types)], self.now_ms, self.settings
            )
        )
        if last >= max(self.offsets, default=self.start - 1) + 1 and last >= self.start:
            assert error in (ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_RECORD_STATE)
        else:
            assert error is want
        if error is not ErrorCode.NONE:
            # What was begun is undone; locks whose time is over end.
            assert not change.runs
            for each, it in self.offsets.items():
                if (
                    first <= each <= last
                    and it.member == member
                    and it.change is None
                    and (it.deadline_ms <= self.now_ms)
                ):
                    self.doubtful(each)
            self.advance()
            return
        kind_of = {
            each: types[0] if len(types) == 1 else types[each - first]
            for each in range(max(first, self.start), last + 1)
        }
        for each, kind in kind_of.items():
            it = self.offsets[each]
            if kind == 4:
                it.deadline_ms = self.now_ms + 100
            else:
                it.change, it.target = change, TARGET[kind]
                if kind == 2 and it.count >= self.settings.delivery_count_limit:
                    it.target = ARCHIVED
        if change.runs:
            self.changes.append(change)

    def doubtful(self, offset):
        """Its lock is over, and an acknowledgement of it may have been begun and undone."""
        run = next((run for run in self.core.runs if run.first <= offset <= run.last), None)
        if run is None or run.state != ACQUIRED:
            self.free(offset)

    @precondition(lambda self: self.changes)
    @rule(data=st.data(), is_stored=st.booleans())
    def stored(self, data, is_stored):
        change = self.changes.pop(data.draw(st.integers(0, len(self.changes) - 1)))
        begun = {each: it for each, it in self.offsets.items() if it.change is change}
        batches = stored_form(changing(change))
        covered = [o for first, last, *_ in batches for o in range(first, last + 1)]
        assert covered == sorted(begun)
        if is_stored:
            self.core.commit(change)
        else:
            self.core.fail(change, self.now_ms, self.settings)
        for each, it in begun.items():
            if is_stored:
                self.offsets[each] = Offset(it.target, it.count, target=it.target)
                if it.target == ACKNOWLEDGED:
                    self.acknowledged.add(each)
            elif it.deadline_ms <= self.now_ms:
                self.free(each)
            else:
                it.change, it.target = None, ACQUIRED
        self.advance()

    @rule(ms=st.integers(1, 120))
    def expire(self, ms):
        self.now_ms += ms
        batches, is_all = self.core.expire(self.now_ms, self.settings)
        assert is_all
        due = [
            each for each, it in self.offsets.items()
            if it.state == ACQUIRED and it.change is None and it.deadline_ms <= self.now_ms
        ]  # fmt: skip
        assert [o for first, last, *_ in batches for o in range(first, last + 1)] == sorted(due)
        for each in due:
            self.free(each)
        self.advance()

    @rule(member=st.sampled_from(MEMBERS))
    def leave(self, member):
        self.core.release(member, self.settings)
        for each, it in list(self.offsets.items()):
            if it.member == member and it.change is None:
                it.count -= 1
                self.free(each)
            elif it.member == member:
                it.deadline_ms = 0
        self.advance()

    @rule(step=st.integers(1, 10))
    def delete_records(self, step):
        offset = min(self.core.start + step, self.log_end)
        self.core.log_start_moved(offset)
        for each in [each for each in self.offsets if each < offset]:
            del self.offsets[each]
        self.start = max(self.start, offset)
        self.log = [batch for batch in self.log if batch.last >= offset]
        self.advance()

    # -- what always holds -----------------------------------------------------------------------

    @invariant()
    def the_same_is_known(self):
        if not hasattr(self, "core"):
            return
        known = {
            each: (run.state, run.count, run.member, run.deadline_ms, run.target, run.change)
            for run in self.core.runs
            for each in range(run.first, run.last + 1)
        }
        assert self.core.start == self.start
        assert known == {
            each: (it.state, it.count, it.member, it.deadline_ms, it.target, it.change)
            for each, it in self.offsets.items()
        }
        assert sorted(known) == list(range(self.core.start, self.core.end))
        acquired = [each for each, it in self.offsets.items() if it.state == ACQUIRED]
        loaded = max((batch.last for batch in self.log[:1]), default=0) + 1
        assert len(acquired) <= max(self.settings.partition_max_record_locks, loaded)
        assert not self.acknowledged & set(acquired)
        deadlines = [
            it.deadline_ms
            for it in self.offsets.values()
            if it.state == ACQUIRED and it.change is None
        ]
        assert self.core.next_deadline_ms() == min(deadlines, default=None)
        complete = sum(it.target in OVER for it in self.offsets.values())
        assert self.core.complete_count() == complete


TestModel = Model.TestCase
TestModel.settings = hypothesis_settings(max_examples=100, stateful_step_count=40, deadline=None)
