"""Names that a request has very many of."""

from broker.api import all_steps, each_once


def test_names_come_once_in_their_order_and_in_steps():
    assert list(all_steps(each_once(["b", "a", "b", "c", "a"]))) == ["b", "a", "c"]
    many = [f"group-{number}" for number in range(1000)]
    assert list(each_once(many)) == [1] * 1000, "others have the loop in between"
