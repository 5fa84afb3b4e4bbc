"""FetchSessions without a server: contexts, news, rotation, eviction, against a naive model."""

import random
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.fetch_sessions import EPOCH_MAX, FetchSessions
from wire.kafka.errors import ErrorCode, KafkaError
from wire.kafka.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)


def request(*partitions, session=0, epoch=0, forget=()):
    """`partitions`: (topic name or id, partition, offset)."""
    body = FetchRequest(session_id=session, session_epoch=epoch)
    for topic, partition, offset in partitions:
        wanted = [FetchPartition(partition=partition, fetch_offset=offset)]
        key = {"topic": topic} if isinstance(topic, str) else {"topic_id": topic}
        body.topics.append(FetchTopic(partitions=wanted, **key))
    for topic, partition in forget:
        key = {"topic": topic} if isinstance(topic, str) else {"topic_id": topic}
        body.forgotten_topics_data.append(ForgottenTopic(partitions=[partition], **key))
    return body


def keys(context):
    return [(wanted.topic, wanted.request.partition) for wanted in context.wanted]


class Clock:
    now = 1000.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def sessions(clock):
    return FetchSessions(3, random.Random(1), clock)


def code_of(sessions, body, version=12):
    with pytest.raises(KafkaError) as caught:
        sessions.context(body, version)
    return caught.value.code


def test_versions_before_7_have_no_sessions(sessions):
    context = sessions.context(request(("t", 0, 5)), 6)
    assert context.session is None
    assert not context.incremental
    assert context.session_id == 0
    assert len(sessions) == 0


def test_who_wants_no_session_gets_none(sessions):
    assert sessions.context(request(("t", 0, 5), epoch=-1), 12).session is None
    assert len(sessions) == 0


def test_nothing_to_fetch_is_no_session(sessions):
    assert sessions.context(request(), 12).session is None
    assert len(sessions) == 0


def test_a_session_remembers_and_changes(sessions):
    first = sessions.context(request(("t", 0, 5), ("u", 1, 6)), 12)
    assert not first.incremental
    assert first.session_id > 0
    number = first.session_id
    second = sessions.context(request(("u", 1, 9), ("v", 0, 0), session=number, epoch=1), 12)
    assert second.incremental
    assert second.session_id == number
    assert keys(second) == [("t", 0), ("u", 1), ("v", 0)]
    assert [wanted.request.fetch_offset for wanted in second.wanted] == [5, 9, 0]
    third = sessions.context(request(session=number, epoch=2, forget=[("t", 0), ("x", 4)]), 12)
    assert keys(third) == [("u", 1), ("v", 0)]
    assert sessions.partitions_count == 2


def test_forgetting_all_ends_the_session(sessions):
    number = sessions.context(request(("t", 0, 5)), 12).session_id
    context = sessions.context(request(session=number, epoch=1, forget=[("t", 0)]), 12)
    assert (context.wanted, context.session_id) == ([], 0)
    assert (len(sessions), sessions.partitions_count) == (0, 0)
    again = request(("t", 0, 5), session=number, epoch=2)
    assert code_of(sessions, again) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_forgotten_and_wanted_in_one_request_is_wanted(sessions):
    number = sessions.context(request(("t", 0, 5)), 12).session_id
    context = sessions.context(request(("t", 0, 7), session=number, epoch=1, forget=[("t", 0)]), 12)
    assert [wanted.request.fetch_offset for wanted in context.wanted] == [7]


def test_a_topic_id_is_a_key_of_its_own(sessions):
    topic = uuid.UUID(int=4)
    first = sessions.context(request((topic, 0, 5)), 13)
    again = request(session=first.session_id, epoch=1)
    assert code_of(sessions, again, 12) is ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    assert keys(sessions.context(again, 13)) == [(topic, 0)]


def test_epochs_are_exact_and_wrap(sessions):
    context = sessions.context(request(("t", 0, 5)), 12)
    number = context.session_id
    for wrong in (2, 7, EPOCH_MAX):
        assert (
            code_of(sessions, request(session=number, epoch=wrong))
            is ErrorCode.INVALID_FETCH_SESSION_EPOCH
        )
    for wrong in (-2, -(2**31)):
        assert (
            code_of(sessions, request(session=number, epoch=wrong))
            is ErrorCode.INVALID_FETCH_SESSION_EPOCH
        )
    context.session.next_epoch = EPOCH_MAX
    sessions.context(request(session=number, epoch=EPOCH_MAX), 12)
    assert sessions.context(request(session=number, epoch=1), 12).incremental


def test_a_refused_request_changes_nothing(sessions):
    number = sessions.context(request(("t", 0, 5)), 12).session_id
    bad = request(("t", 0, 99), session=number, epoch=5, forget=[("t", 0)])
    assert code_of(sessions, bad) is ErrorCode.INVALID_FETCH_SESSION_EPOCH
    context = sessions.context(request(session=number, epoch=1), 12)
    assert [wanted.request.fetch_offset for wanted in context.wanted] == [5]


@pytest.mark.parametrize("number", [0, 77])
def test_unknown_sessions(sessions, number):
    assert (
        code_of(sessions, request(session=number, epoch=1)) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    )


@pytest.mark.parametrize("epoch", [-1, 0])
def test_a_full_fetch_ends_the_session_it_names(sessions, epoch):
    number = sessions.context(request(("t", 0, 5)), 12).session_id
    sessions.context(request(("t", 0, 5), session=number, epoch=epoch), 12)
    assert (
        code_of(sessions, request(session=number, epoch=1)) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    )


def test_more_consumers_than_slots_do_not_evict_each_other(clock):
    """Three consumers and two slots: two have sessions, the third none, and no fetch fails."""
    sessions = FetchSessions(2, random.Random(1), clock)
    state = [(0, 0)] * 3
    for _ in range(400):
        for consumer, (number, epoch) in enumerate(state):
            wanted = [] if epoch else [(f"t{consumer}", 0, 0)]
            context = sessions.context(request(*wanted, session=number, epoch=epoch), 12)
            number = context.session_id
            state[consumer] = (number, epoch + 1 if number else 0)
        clock.now += 1
    assert sessions.evictions_count == 0
    assert [epoch > 0 for _, epoch in state] == [True, True, False]


def parts(count, topic="t"):
    return [(topic, number, 0) for number in range(count)]


@pytest.mark.parametrize(
    ("age", "unused", "size", "goes"),
    [
        (119, 119, 9, None),  # all are young
        (121, 121, 1, 1),  # the second was unused longest, for more than two minutes
        (121, 119, 2, None),  # none is smaller
        (121, 119, 3, 0),  # the first has two partitions
        (121, 119, 9, 0),
    ],
)
def test_who_gives_place_to_a_new_session(sessions, clock, age, unused, size, goes):
    """Three sessions, of 2, 3 and 4 partitions, as old as `age` seconds and unused for `unused`
    (the second; the others were used now): which of them goes for one of `size` partitions."""
    numbers = [sessions.context(request(*parts(n)), 12).session_id for n in (2, 3, 4)]
    clock.now += age - unused
    sessions.context(request(session=numbers[1], epoch=1), 12)
    clock.now += unused
    for number in (numbers[0], numbers[2]):
        sessions.context(request(session=number, epoch=1), 12)
    made = sessions.context(request(*parts(size)), 12)
    assert bool(made.session_id) == (goes is not None)
    assert sessions.evictions_count == (goes is not None)
    assert [number in sessions._sessions for number in numbers] == [
        number != goes for number in range(3)
    ]
    expected = [2, 3, 4] if goes is None else [*(n for n in (2, 3, 4) if n - 2 != goes), size]
    assert sessions.partitions_count == sum(expected)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4), st.integers(0, 90)), max_size=60))
def test_any_history_of_many_sessions(steps):
    """Counts and the order of eviction are what they are by looking at all sessions anew."""
    clock = Clock()
    sessions = FetchSessions(3, random.Random(1), clock)
    known = {}
    for consumer, size, seconds in steps:
        clock.now += seconds
        number, epoch, had = known.pop(consumer, (0, 0, 0))
        if number not in sessions._sessions:
            number = epoch = had = 0
        forget = [(f"t{consumer}", n) for n in range(size, had)] if epoch else ()
        body = request(*parts(size, f"t{consumer}"), session=number, epoch=epoch, forget=forget)
        context = sessions.context(body, 12)
        if context.session_id:
            known[consumer] = (context.session_id, epoch + 1, size)
        found = sessions._sessions.values()
        assert len(found) <= 3
        assert sessions.partitions_count == sum(len(one.partitions) for one in found)
        assert sessions._evictable == sorted(
            (one.size, one.session_id) for one in found if one.is_evictable
        )
        assert [one.used_seconds for one in found] == sorted(one.used_seconds for one in found)


def news(context, **changes):
    """Partitions that an answer with this data must carry."""
    carried = []
    for wanted in context.wanted:
        data = PartitionData(
            partition_index=wanted.request.partition, high_watermark=5, log_start_offset=0,
            records=b"",
        )  # fmt: skip
        for name, value in changes.get(wanted.topic, {}).items():
            setattr(data, name, value)
        if context.has_news(wanted, data):
            carried.append(wanted.topic)
    return carried


@pytest.mark.parametrize(
    "change",
    [
        {"records": b"x"}, {"error_code": 3}, {"high_watermark": 6}, {"log_start_offset": 1},
        {"high_watermark": 4},
    ],
)  # fmt: skip
def test_what_news_is(sessions, change):
    first = sessions.context(request(("t", 0, 5), ("u", 0, 5)), 12)
    assert news(first) == ["t", "u"]
    number = first.session_id
    assert news(sessions.context(request(session=number, epoch=1), 12)) == []
    assert news(sessions.context(request(session=number, epoch=2), 12), t=change) == ["t"]


def test_rotation_moves_who_was_served_and_survives_who_was_forgotten(sessions):
    context = sessions.context(request(("a", 0, 0), ("b", 0, 0), ("c", 0, 0)), 12)
    waiting = sessions.context(request(session=context.session_id, epoch=1), 12)
    sessions.context(request(session=context.session_id, epoch=2, forget=[("b", 0)]), 12)
    waiting.rotate(waiting.wanted[:2])
    after = sessions.context(request(session=context.session_id, epoch=3), 12)
    assert keys(after) == [("c", 0), ("a", 0)]


@given(
    st.lists(
        st.tuples(
            st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 2), st.integers(0, 9))),
            st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 2))),
        ),
        max_size=8,
    )
)
def test_any_history_of_one_session(history):
    """A dict is the model: forget, then set."""
    sessions = FetchSessions(1, random.Random(1), Clock())
    number = sessions.context(request(("a", 0, 0)), 12).session_id
    model = {("a", 0): 0}
    for epoch, (wanted, forget) in enumerate(history, 1):
        for key in forget:
            model.pop(key, None)
        for topic, partition, offset in wanted:
            model[topic, partition] = offset
        context = sessions.context(request(*wanted, session=number, epoch=epoch, forget=forget), 12)
        if not model:
            assert context.session_id == 0
            return
        got = {
            (one.topic, one.request.partition): one.request.fetch_offset for one in context.wanted
        }
        assert got == model
        context.rotate(context.wanted[: epoch % 3])


# -- very many partitions ------------------------------------------------------------------------


def in_steps(sessions, body, version=12):
    """The context, and the most that one step cost."""
    steps, most = sessions.steps(body, version), 0
    while True:
        try:
            most = max(most, next(steps))
        except StopIteration as end:
            return end.value, most


@pytest.mark.parametrize("epoch", [-1, 0])
def test_many_partitions_are_named_in_small_steps(sessions, epoch):
    topics = [FetchTopic(topic="t", partitions=[FetchPartition(partition=n) for n in range(5000)])]
    context, most = in_steps(sessions, FetchRequest(session_epoch=epoch, topics=topics))
    assert keys(context) == [("t", number) for number in range(5000)]
    assert most <= 500


def test_many_changes_come_in_small_steps_to_what_they_come_to_at_once(clock):
    contexts, sizes = [], []
    for run in (in_steps, lambda sessions, body: (sessions.context(body, 12), 0)):
        sessions = FetchSessions(3, random.Random(1), clock)
        number = sessions.context(request(*parts(3000)), 12).session_id
        news = [(topic, at, 7) for topic, at, _ in parts(3000, "u") + parts(2000)]
        body = request(*news, session=number, epoch=1, forget=[("t", at) for at in range(1000)])
        context, most = run(sessions, body)
        assert most <= 500
        sizes.append(sessions.partitions_count)
        contexts.append(
            [
                (*key, each.request.fetch_offset)
                for key, each in zip(keys(context), context.wanted, strict=True)
            ]
        )
    assert contexts[0] == contexts[1]
    assert sizes == [6000, 6000]


def test_a_session_that_is_closed_between_two_steps_is_not_found(sessions):
    number = sessions.context(request(*parts(3000)), 12).session_id
    steps = sessions.steps(request(*parts(500), session=number, epoch=1), 12)
    next(steps)
    again = request(session=number, epoch=1)
    assert code_of(sessions, again) is ErrorCode.INVALID_FETCH_SESSION_EPOCH, "it is under way"
    sessions.context(request(session=number, epoch=-1), 12)
    with pytest.raises(KafkaError) as caught:
        list(steps)
    assert caught.value.code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert (len(sessions), sessions.partitions_count) == (0, 0)


def test_what_a_large_session_remembered_is_freed_some_at_a_time(sessions):
    context = sessions.context(request(*parts(3000)), 12)
    sessions.context(request(session=context.session_id, epoch=-1), 12)
    left = [3000]
    while sessions.closed:
        sessions.free_some()
        left.append(sum(map(len, sessions.closed)))
        assert left[-2] - left[-1] <= 500
    assert left[-1] == 0
    context.rotate(context.wanted)  # of a fetch that waited
