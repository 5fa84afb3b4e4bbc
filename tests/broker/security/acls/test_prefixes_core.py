"""Prefixes beside a plain look at each; how often a look-up looks."""

from hypothesis import given
from hypothesis import strategies as st

from broker.security.acls.prefixes_core import Prefixes

TEXTS = st.text(alphabet="ab-", max_size=6)


def nodes(node):
    yield node
    for below in (node.below or {}).values():
        yield from nodes(below)


@given(st.lists(st.tuples(st.booleans(), TEXTS), max_size=60), st.lists(TEXTS, max_size=10))
def test_as_a_look_at_each_says(changes, names):
    prefixes, model = Prefixes(), {}
    for number, (is_added, prefix) in enumerate(changes):
        if is_added and prefix not in model:
            model[prefix] = number
            prefixes.add(prefix, number)
        elif not is_added and prefix in model:
            del model[prefix]
            prefixes.remove(prefix)
        for name in (*names, prefix, prefix + "b", ""):
            wanted = [(one, model[one]) for one in sorted(model, key=len) if name.startswith(one)]
            assert list(prefixes.beginning(name)) == wanted
    root, *others = nodes(prefixes._root)
    assert root.segment == ""
    assert root.below != {}
    for node in others:  # nothing is left of what went
        assert node.segment
        assert node.below != {}
        assert node.value is not None or len(node.below) > 1
    assert sum(node.value is not None for node in (root, *others)) == len(model)
    assert bool(prefixes) == bool(model)


def test_a_value_may_be_false():
    prefixes = Prefixes()
    prefixes.add("a", {})
    assert list(prefixes.beginning("ab")) == [("a", {})]


class Counting(str):
    """A name that counts how often it is looked into."""

    looks = 0

    def startswith(self, *of):
        type(self).looks += 1
        return super().startswith(*of)


def test_a_look_up_does_not_grow_with_the_lengths_that_prefixes_have():
    prefixes = Prefixes()
    for length in range(1, 248):
        prefixes.add(f"tenant-{length:03}-".ljust(length + 11, "x"), length)
    name = Counting("tenant-200-" + "y" * 200)
    assert list(prefixes.beginning(name)) == []
    assert Counting.looks < 10
