"""What a broker asks of all its partitions together."""

from types import SimpleNamespace

from broker.log.manager import LOOKS_PER_TURN
from broker.node.member import largest_ack_quorum
from tests.turns import turns_of_others


async def test_the_largest_ack_quorum_is_asked_in_slices():
    """A broker may lead very many partitions, and is asked every few seconds."""
    one, two = (SimpleNamespace(copies=SimpleNamespace(ack_quorum=each)) for each in (1, 2))
    async with turns_of_others() as turns:
        assert await largest_ack_quorum(iter([])) == 1
        assert turns() == 0
        assert await largest_ack_quorum(iter([*[one] * (4 * LOOKS_PER_TURN), two, one])) == 2
        assert turns() >= 2
