"""How many topics members may name."""

import pytest

from broker.groups.consumer.names import NAMES_MAX, check_names, names_problem
from broker.groups.consumer.types import GroupError


def test_a_group_that_has_more_already_goes_on():
    """Its log may be another server's."""
    of_group = {str(number): 1 for number in range(NAMES_MAX + 5)}
    check_names(["1", "2"], of_group)
    with pytest.raises(GroupError):
        check_names(["1", "another"], of_group)


def test_as_many_as_may_be():
    names = [str(number) for number in range(NAMES_MAX)]
    assert names_problem(names) is names_problem(None) is None
    check_names(names, {})
    check_names(names[1:], {"0": 1})
    assert names_problem([*names, "another"])
    with pytest.raises(GroupError):
        check_names(names[1:], {"another": 1, "0": 1})
