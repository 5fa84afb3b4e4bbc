"""What each request makes of a share partition's state."""

import random
import uuid

import pytest

from broker.share.ports import ShareKey, StateBatch
from broker.share.state import share_state_core as core
from broker.share.state.pruning_core import Redundancy
from broker.share.state.records import encoded, parse_record
from broker.share.state.share_state_core import KeyState, Tombstone, Update, Write
from tests.broker.share.state.test_batches_core import by_offset
from wire.kafka.errors import ErrorCode as E

LIMIT = 500
NOW = 1_700_000_000_000


def begun(state_epoch=3, start_offset=-1, state=None):
    return core.initialize(state, state_epoch, start_offset, NOW).state


def led(leader_epoch=5, **fields):
    return core.read(begun(**fields), leader_epoch, LIMIT, NOW).state


def a_write(*batches, state_epoch=3, leader_epoch=5, start=-1, count=-1):
    return Write(state_epoch, leader_epoch, start, count, [StateBatch(*each) for each in batches])


def write(state, *batches, limit=LIMIT, **fields):
    return core.write(state, a_write(*batches, **fields), limit, NOW)


def test_a_beginning():
    assert begun() == KeyState(0, 3, -1, -1, -1, (), NOW, NOW)
    assert begun(start_offset=7).delivery_complete_count == 0
    again = core.initialize(begun(), 4, 9, NOW + 1)
    assert again.record == KeyState(1, 4, -1, 9, 0, (), NOW + 1, NOW + 1)
    assert core.initialize(begun(), 2, 9, NOW).error is E.FENCED_STATE_EPOCH
    assert core.initialize(None, -1, 9, NOW).error is E.INVALID_REQUEST
    assert core.initialize(None, 1, -2, NOW).error is E.INVALID_REQUEST


def test_before_the_beginning():
    assert write(None, (0, 1, 2, 1)).error is E.INVALID_REQUEST
    assert core.read(None, 1, LIMIT, NOW).error is E.INVALID_REQUEST
    assert core.delete(None) == (E.NONE, None, None)


def test_lost_initialize_reply():
    """The request comes again. Once a leader has read the state, what was acknowledged stays."""
    assert core.initialize(begun(), 3, 8, NOW).state.start_offset == 8, "nobody has seen it yet"
    state = write(led(), (0, 9, 2, 1), start=0).state
    assert core.initialize(state, 3, -1, NOW) == (E.NONE, None, None)
    assert core.initialize(state, 4, -1, NOW).state.batches == ()


def test_old_leader_writes():
    state = led(5)
    assert write(state, (0, 1, 2, 1), leader_epoch=4).error is E.FENCED_LEADER_EPOCH
    assert core.read(state, 4, LIMIT, NOW).error is E.FENCED_LEADER_EPOCH
    # -1 is nobody's; and a write of a newer one fences nobody.
    assert core.read(state, -1, LIMIT, NOW) == (E.NONE, None, None)
    assert write(state, (0, 1, 2, 1), leader_epoch=-1).error is E.NONE
    newer = write(state, (0, 1, 2, 1), leader_epoch=9).state
    assert newer.leader_epoch == 5
    assert write(newer, (2, 2, 2, 1)).error is E.NONE


def test_old_state_epoch():
    state = core.read(begun(4, state=led()), 5, LIMIT, NOW).state
    assert write(state, (0, 1, 2, 1), state_epoch=3).error is E.FENCED_STATE_EPOCH
    assert write(state, (0, 1, 2, 1), state_epoch=4).error is E.NONE
    higher = write(state, (0, 1, 2, 1), state_epoch=9).state
    assert higher.state_epoch == 4, "a write raises none"


def test_a_new_leader_is_recorded_once():
    outcome = core.read(begun(), 5, LIMIT, NOW)
    assert outcome.record == Update(0, 5, -1, -1, ())
    assert core.read(outcome.state, 5, LIMIT, NOW).record is None


def test_late_write_takes_nothing_back():
    state = write(led(), (10, 19, 2, 1), start=10, count=10).state
    state = write(state, start=20, count=0).state
    assert (state.start_offset, state.batches, state.delivery_complete_count) == (20, (), 0)
    late = write(state, (10, 19, 2, 1), (25, 25, 2, 1), start=10, count=10).state
    assert (late.start_offset, late.delivery_complete_count) == (20, 0)
    assert late.batches == ((25, 25, 2, 1),)
    assert write(late, start=20, count=1).state.delivery_complete_count == 1
    assert write(late, start=30).state.delivery_complete_count == -1, "nobody said"


def test_of_writes_with_one_start_the_highest_count_is_the_last():
    state = write(led(), (20, 24, 2, 1), start=20, count=5).state
    for start in (20, -1):
        late = write(state, (20, 22, 2, 1), start=start, count=3)
        assert late.state.delivery_complete_count == 5
        assert late.record.delivery_complete_count == -1, "nothing of it is recorded"


@pytest.mark.parametrize(
    "fields",
    [{"start": -2}, {"count": -2}, {"batches": [(3, 2, 0, 1)]}, {"batches": [(3, 3, 1, 1)]}],
)
def test_what_cannot_be(fields):
    batches = fields.pop("batches", [])
    assert write(led(), *batches, **fields).error is E.INVALID_REQUEST


def test_no_more_batches_than_a_state_may_have():
    half = [(2 * at, 2 * at, 2, 1) for at in range(core.BATCHES_MAX)]
    full = write(led(), *half).state
    assert len(full.batches) == core.BATCHES_MAX
    assert write(full, (99_999, 99_999, 2, 1)).error is E.INVALID_REQUEST
    assert write(full, (1, 1, 2, 1)).error is E.NONE, "it joins others"
    assert write(led(), *half, (99_999, 99_999, 2, 1)).error is E.INVALID_REQUEST


@pytest.mark.parametrize("limit", [0, 1, 500])
def test_snapshot_boundary(limit):
    """After so many updates comes a snapshot, and each cut of the log there comes to the same."""
    state, log = begun(), [begun()]
    kinds = []
    for at in range(limit + 2):
        outcome = write(state, (2 * at, 2 * at, 2, 1), limit=limit)
        kinds.append(type(outcome.record))
        log.append(outcome.record)
        state = outcome.state
        replayed = None
        for record in log:
            replayed = core.apply(replayed, record)
        assert replayed == state
    assert kinds[: limit + 1] == [Update] * limit + [KeyState]
    assert state.snapshot_epoch == 1 if limit else state.snapshot_epoch == 2
    assert log[limit + 1].batches == core.apply(None, log[limit + 1]).batches


def test_a_mark_changes_nothing():
    state = write(led(), (0, 3, 2, 1)).state
    assert core.apply(state, core.mark(state)) == state
    assert core.apply(None, core.mark(None)) is None
    assert core.apply(None, core.mark(state)) is None


KEYS = [ShareKey("g", uuid.UUID(int=1 + at), at) for at in range(4)]


class History:
    """Random requests; the log as bytes, and the redundancy of what is durable."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.states, self.log = {}, []
        self.redundancy = Redundancy()
        self.acknowledged = {}  # key: {offset: rank} since it was begun

    def step(self):
        rng, key = self.rng, self.rng.choice(KEYS)
        state = self.states.get(key)
        kind = rng.random()
        if state is None or kind < 0.05:
            epoch = rng.randrange(6) if state is None else state.state_epoch + rng.randrange(2)
            outcome = core.initialize(state, epoch, rng.choice((-1, 0, 5)), NOW + len(self.log))
            if outcome.record is not None:
                self.acknowledged[key] = {}
        elif kind < 0.15:
            epoch = state.leader_epoch + rng.randrange(2)
            outcome = core.read(state, epoch, 6, NOW + len(self.log))
        elif kind < 0.2:
            outcome = core.delete(state)
            self.acknowledged.pop(key)
        elif kind < 0.3:
            fresh = core.rewritten(state, NOW + len(self.log))
            outcome = core.Outcome(E.NONE, fresh, fresh)
        else:
            outcome = self._write(key, state)
        assert outcome.error is E.NONE
        self._append(key, outcome)

    def _write(self, key, state):
        rng = self.rng
        first = rng.randrange(30)
        batches = [
            StateBatch(first, first + rng.randrange(4), rng.choice((0, 2, 4)), rng.randrange(1, 4))
        ]
        start = rng.choice((-1, -1, max(state.start_offset, 0) + rng.randrange(3)))
        table = self.acknowledged[key]
        for offset, rank in by_offset(batches).items():
            table[offset] = max(table.get(offset, (-1, -1)), rank)
        request = Write(state.state_epoch, -1, start, rng.choice((-1, 3)), batches)
        return core.write(state, request, 6, NOW + len(self.log))

    def _append(self, key, outcome):
        record = outcome.record
        if record is None:
            record = core.mark(self.states.get(key))
        else:
            assert core.apply(self.states.get(key), record) == outcome.state
            self.states.pop(key, None)
            if outcome.state is not None:
                self.states[key] = outcome.state
        note(self.redundancy, key, record, len(self.log))
        self.log.append(encoded(key, record))


def note(redundancy, key, record, offset):
    if isinstance(record, KeyState):
        redundancy.snapshot(key, offset)
    elif isinstance(record, Tombstone):
        redundancy.tombstone(key, offset)
    else:
        redundancy.passed(offset)


def replayed(log, start):
    states, redundancy = {}, Redundancy()
    for offset in range(start, len(log)):
        key, record = parse_record(*log[offset])
        after = core.apply(states.pop(key, None), record)
        if after is not None:
            states[key] = after
        note(redundancy, key, record, offset)
    return states, redundancy.redundant_offset()


@pytest.mark.parametrize("seed", range(40))
def test_replay_from_any_kept_prefix_is_the_live_state(seed):
    history = History(seed)
    for _ in range(120):
        history.step()
        redundant = history.redundancy.redundant_offset()
        for start in {0, redundant, history.rng.randint(0, redundant)}:
            states, again = replayed(history.log, start)
            assert states == history.states
            assert max(again, start) == redundant
    for key, table in history.acknowledged.items():
        state = history.states[key]
        stored = by_offset(state.batches)
        for offset, rank in table.items():
            assert offset < state.start_offset or stored[offset] >= rank


def test_a_log_in_which_nothing_is_deleted_too_early_fails_if_it_is():
    """That the property can fail: one record more is deleted than may be."""
    lost = 0
    for seed in range(20):
        history = History(seed)
        for _ in range(120):
            history.step()
        start = history.redundancy.redundant_offset() + 1
        lost += replayed(history.log, start)[0] != history.states
    assert lost > 10
