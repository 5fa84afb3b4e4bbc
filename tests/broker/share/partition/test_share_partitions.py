"""What the share partitions of a broker do at its end."""

import trio
import trio.testing

from broker.share.partition.share_partitions import SharePartitions


async def test_who_has_to_read_while_the_broker_stops_ends_nothing(mocker):
    """The simulation's seed 1117736006: the nursery took nobody any more, and that error ended the
    burst of the network's loop in which a waiting fetch looked on."""
    partitions = SharePartitions(*(mocker.Mock() for _ in range(5)))
    begun = []

    async def read():
        begun.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        await nursery.start(partitions.run)
        partitions.around.start(read)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    partitions.around.start(read)
    assert len(begun) == 1
