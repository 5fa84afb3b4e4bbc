"""Who holds the memory of requests, who waits for it, and whose frames are given up."""

from collections import deque
from itertools import count

import pytest

from runtime.request_memory import (
    LOOKS_MAX,
    PROGRESS_BYTES_MIN,
    SHORT_LOOKS_MAX,
    SMALL_FRAME_BYTES,
    WAITING_LOOKS,
    RequestMemory,
)

MIB = 1 << 20
PLACES = count(1)


class Client:
    """Sends frames of `size_bytes`, which get memory as a receiver asks for it: `first_bytes`, and
    twice as much whenever that is full. Who waits goes on in the order in which it was woken."""

    def __init__(self, memory, size_bytes=2 * MIB, stops_at_bytes=1 << 40, first_bytes=MIB):
        self.memory = memory
        self.size_bytes = size_bytes
        self.stops_at_bytes = stops_at_bytes
        self.first_bytes = first_bytes
        self.frame_bytes_received = self.granted_bytes = 0
        self.finished_count = self.woken_count = 0
        self.is_closed = False
        #: Its place among all that were woken; 0 if it was not.
        self.woken_as = 0

    def memory_free(self):
        self.woken_count += 1
        self.woken_as = self.woken_as or next(PLACES)

    def place(self):
        return self.woken_as

    def send(self, count=1 << 40):
        """As much as there is room for."""
        goal_bytes = min(self.size_bytes, self.stops_at_bytes, self.frame_bytes_received + count)
        while not self.is_closed:
            if self.frame_bytes_received == self.granted_bytes:
                wanted_bytes = min(self.size_bytes, 2 * self.granted_bytes or self.first_bytes)
                if not self.memory.take_unfinished(self, wanted_bytes):
                    return
                self.granted_bytes = wanted_bytes
            self.frame_bytes_received = min(goal_bytes, self.granted_bytes)
            if self.frame_bytes_received == self.size_bytes:
                self.finish()
                return
            if self.frame_bytes_received == goal_bytes:
                return

    def finish(self):
        self.memory.give_unfinished(self)
        self.frame_bytes_received = self.granted_bytes = 0
        self.finished_count += 1

    def close(self):
        self.is_closed = True
        self.memory.forget(self)


def look(memory, clients):
    """A second: who is overdue is closed, and who was woken goes on, at the end of the turn."""
    overdue = memory.overdue()
    for client in overdue:
        client.close()
    go_on(clients)
    return overdue


def go_on(clients):
    while woken := sorted((each for each in clients if each.woken_as), key=Client.place):
        for client in woken:
            client.woken_as = 0
        for client in woken:
            client.send()


@pytest.mark.parametrize("leaves_every", [0, 1, 3, 6])
@pytest.mark.parametrize("closes", [False, True])
def test_who_never_finishes_does_not_hold_up_others_for_long(leaves_every, closes):
    """100 connections that each leave a frame of 2 MiB at 1.15; one of theirs leaves or finishes
    now and then, and another one comes."""
    memory = RequestMemory(128 * MIB)
    stops_at = 115 * MIB // 100
    attackers = deque(Client(memory, stops_at_bytes=stops_at) for _ in range(100))
    for attacker in attackers:
        attacker.send()
    control = Client(memory)
    control.send()
    assert not control.finished_count
    for second in range(1, 100):
        look(memory, [*attackers, control])
        if control.finished_count:
            break
        if leaves_every and second % leaves_every == 0:
            leaving = next(each for each in attackers if each.granted_bytes)
            attackers.remove(leaving)
            leaving.close() if closes else leaving.finish()
            attackers.append(Client(memory, stops_at_bytes=stops_at))
            attackers[-1].send()
    assert second <= LOOKS_MAX + WAITING_LOOKS + SHORT_LOOKS_MAX
    assert memory.unfinished_bytes == sum(
        each.granted_bytes for each in attackers if not each.is_closed
    )


def test_a_small_frame_is_not_held_up_by_large_ones():
    memory = RequestMemory(128 * MIB)
    for _ in range(100):
        Client(memory, stops_at_bytes=1150 * 1024).send()
    for size_bytes, finishes in ((SMALL_FRAME_BYTES, True), (SMALL_FRAME_BYTES + 1, False)):
        small = Client(memory, size_bytes=size_bytes)
        small.first_bytes = size_bytes
        small.send()
        assert bool(small.finished_count) == finishes
        small.close()


def test_small_frames_have_no_more_than_half_together():
    memory = RequestMemory(8 * MIB)
    for _ in range(100):
        Client(memory, SMALL_FRAME_BYTES, stops_at_bytes=1, first_bytes=SMALL_FRAME_BYTES).send()
    assert memory.unfinished_bytes == 4 * MIB
    assert not memory.is_full


def test_young_frames_are_not_overdue():
    memory = RequestMemory(4 * MIB)
    old, young, waiting = (Client(memory, stops_at_bytes=1, first_bytes=MIB) for _ in range(3))
    old.first_bytes = young.first_bytes = MIB * 3 // 4
    old.send()
    for _ in range(LOOKS_MAX):
        assert memory.overdue() == []
    young.send()
    waiting.send()
    assert not waiting.granted_bytes
    assert memory.overdue() == [old]
    for _ in range(SHORT_LOOKS_MAX - 1):
        assert memory.overdue() == [old]
    assert memory.overdue() == [old, young], "once some were given up, it goes on quicker"


def test_it_is_slow_again_once_nobody_waits():
    memory = RequestMemory(4 * MIB)
    slow, waiting = (Client(memory, stops_at_bytes=1, first_bytes=MIB) for _ in range(2))
    slow.first_bytes = 2 * MIB
    slow.send()
    waiting.send()
    for _ in range(LOOKS_MAX):
        assert memory.overdue() == []
    assert memory.overdue() == [slow]
    slow.close()
    waiting.close()
    assert memory.overdue() == []
    again = Client(memory, stops_at_bytes=1, first_bytes=2 * MIB)
    again.send()
    Client(memory).send()
    for _ in range(LOOKS_MAX):
        assert memory.overdue() == []
    assert memory.overdue() == [again]


def test_the_line_is_served_from_both_ends():
    memory = RequestMemory(8 * MIB)
    holder = Client(memory, 8 * MIB, stops_at_bytes=1, first_bytes=4 * MIB)
    holder.send()
    line = [Client(memory) for _ in range(5)]
    for each in line:
        each.send()
    for _ in range(2):  # who asks in vain keeps its place
        memory.give_unfinished(holder)
        assert sorted(line, key=Client.place) == [line[n] for n in (0, 4, 1, 3, 2)]
        assert memory.take_unfinished(holder, 4 * MIB)
        for each in sorted(line, key=Client.place):
            each.woken_as = 0
            each.send()
            assert not each.granted_bytes


def test_nobody_is_overdue_as_long_as_nobody_waits():
    memory = RequestMemory(4 * MIB)
    slow = Client(memory, stops_at_bytes=1)
    slow.send()
    for _ in range(3 * LOOKS_MAX):
        assert memory.overdue() == []
    memory.take(4 * MIB)
    other = Client(memory)
    memory.wait(other)
    assert memory.overdue() == [slow]


def test_slow_frames_go_on_as_long_as_they_do():
    """What arrives in LOOKS_MAX looks tells, not whether it does in each of them."""
    memory = RequestMemory(4 * MIB)
    enough, too_slow, waiting = (Client(memory, 100 * MIB, first_bytes=MIB // 2) for _ in range(3))
    waiting.first_bytes = MIB
    for each in (enough, too_slow, waiting):
        each.send(1)
    assert not waiting.granted_bytes
    enough.granted_bytes = too_slow.granted_bytes = 100 * MIB
    found = set()
    for _ in range(5 * LOOKS_MAX):
        enough.send(PROGRESS_BYTES_MIN // LOOKS_MAX + 1)
        too_slow.send(PROGRESS_BYTES_MIN // LOOKS_MAX // 2)
        found |= set(memory.overdue())
    assert found == {too_slow}


def test_who_is_not_read_is_not_overdue():
    """Requests that are worked on have all memory: no client can help that."""
    memory = RequestMemory(4 * MIB)
    held = Client(memory, stops_at_bytes=1)
    held.send()
    memory.take(4 * MIB)
    memory.wait(held)
    for _ in range(3 * LOOKS_MAX):
        assert memory.overdue() == []
    memory.give(4 * MIB)
    assert held.woken_count == 1
    memory.take(4 * MIB)
    memory.wait(Client(memory))
    for _ in range(LOOKS_MAX):
        assert memory.overdue() == []
    assert memory.overdue() == [held]


def test_who_may_not_grow_outlasts_whom_it_waits_for():
    memory = RequestMemory(4 * MIB)
    stuck = Client(memory, stops_at_bytes=1)
    waits = Client(memory, first_bytes=MIB // 2)
    stuck.send()
    waits.send()
    assert waits.granted_bytes == waits.frame_bytes_received == MIB // 2
    seconds = 0
    while not waits.finished_count:
        look(memory, [waits])
        seconds += 1
        assert seconds <= LOOKS_MAX + 2
    assert stuck.is_closed
    assert not waits.is_closed


def one_waits_for_a_stuck_one(memory):
    """(stuck, waits): both came at once. What `stuck` sent in the first look was enough for one
    more, and nothing follows; `waits` has filled what it may have, and may not have more."""
    stuck = Client(memory, 4 * MIB, first_bytes=MIB)
    waits = Client(memory, first_bytes=MIB // 2)
    stuck.send(1)
    waits.send()
    assert waits.granted_bytes == waits.frame_bytes_received == MIB // 2
    assert memory.overdue() == []
    stuck.send(PROGRESS_BYTES_MIN)
    assert memory.overdue() == []
    return stuck, waits


def test_who_may_not_grow_is_not_given_up_before_whom_it_waits_for():
    """A frame that waits for memory cannot go on, so it looks stuck a little sooner than the frame
    whose memory it waits for. The one that could go on is given up, and not both."""
    memory = RequestMemory(4 * MIB)
    stuck, waits = one_waits_for_a_stuck_one(memory)
    for _ in range(LOOKS_MAX):
        assert memory.overdue() == []
    assert look(memory, [waits]) == [stuck]
    assert waits.finished_count == 1


def test_who_may_grow_at_last_has_time_to_do_so():
    """The looks in which a frame waited for memory do not count once it has the memory: its bytes
    need a while to come, and another frame waits already."""
    memory = RequestMemory(4 * MIB)
    stuck, waits = one_waits_for_a_stuck_one(memory)
    while not memory.overdue():
        pass
    other = Client(memory, first_bytes=MIB)
    other.send()
    assert not other.granted_bytes
    stuck.close()
    waits.send(0)
    assert waits.granted_bytes == MIB
    other.send()
    assert not other.granted_bytes
    for _ in range(SHORT_LOOKS_MAX):
        assert memory.overdue() == []
    waits.send(PROGRESS_BYTES_MIN)
    assert memory.overdue() == []


def test_what_a_frame_gives_back_wakes_who_waits_as_all_is_full():
    memory = RequestMemory(4 * MIB)
    holder, reader = Client(memory, first_bytes=2 * MIB, size_bytes=3 * MIB), Client(memory)
    holder.send(1)
    memory.take(2 * MIB)
    assert memory.is_full
    memory.wait(reader)
    assert reader.woken_count == 0
    memory.give_unfinished(holder)
    assert not memory.is_full
    assert reader.woken_count == 1
    memory.give_unfinished(holder)
    assert reader.woken_count == 1, "once"
