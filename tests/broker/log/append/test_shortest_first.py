"""Who costs least goes first, and nobody waits for more than twice what came before him."""

import pytest

from broker.log.append.shortest_first import ShortestFirst


@pytest.fixture
def queue():
    return ShortestFirst()


def popped(queue):
    found = []
    while (item := queue.pop()) is not None:
        found.append(item)
    return found


def test_who_costs_least_is_first_and_equals_are_as_they_came(queue):
    assert queue.pop() is None
    for item, cost in (("a", 800), ("b", 3), ("c", 900), ("d", 2), ("e", 0), ("f", 0), ("g", 1)):
        queue.put(item, cost)
    assert popped(queue) == ["e", "f", "g", "b", "d", "a", "c"]
    assert queue.pop() is None


@pytest.mark.parametrize("count", [1, 10, 1000])
@pytest.mark.parametrize("served", [0, 1, 7])
def test_who_costs_little_waits_for_one_at_most_who_costs_more(queue, count, served):
    """However many there are, whatever was served before."""
    for n in range(count + served):
        queue.put(n, 1000)
    for n in range(served):
        assert queue.pop() == n
        queue.put("again", 10)
        assert queue.pop() == "again"
    for n in range(served, served + count):
        queue.put("little", 10)
        before = [queue.pop(), queue.pop()]
        assert before[0] == "little" or before == [n, "little"]
        if before[0] != "little":
            break


def test_who_costs_much_is_served_when_others_have_had_as_much(queue):
    queue.put("a", 100)
    queue.put("b", 150)
    served = []
    for n in range(60):
        queue.put(n, 10)
        served.append(queue.pop())
    assert served.index("a") == 10
    # «b» is the oldest from then on; newcomers wait no longer for it than it costs.
    assert served.index("b") == 10 + 1 + 15
    assert [item for item in served if item not in ("a", "b")] == list(range(58))


def test_what_is_served_in_its_turn_counts_for_nobody(queue):
    """Only who is overtaken has something to claim."""
    for _ in range(20):
        queue.put("first", 10)
        assert queue.pop() == "first"
    queue.put("much", 100)
    served = []
    for n in range(11):
        queue.put(n, 10)
        served.append(queue.pop())
    assert served == [*range(10), "much"]


def test_all_wait_for_twice_what_came_before_at_most(queue):
    """Many sizes at once, and a stream of small ones that never ends."""
    costs = [(n * 7919) % 997 + 64 for n in range(200)]
    for n, cost in enumerate(costs):
        queue.put(n, cost)
    work = 0
    ends = {}
    while len(ends) < len(costs):
        queue.put("small", 8)
        item = queue.pop()
        work += 8 if item == "small" else costs[item]
        if item != "small":
            ends[item] = work
    before = 0
    for n, cost in enumerate(costs):
        before += cost
        assert ends[n] <= 2 * before + max(costs)


def test_equals_have_turns(queue):
    for name in "abc":
        queue.put(name, 100)
    order = []
    for _ in range(12):
        order.append(queue.pop())
        queue.put(order[-1], 100 + len(order))
    assert "".join(order) == "abc" * 4
