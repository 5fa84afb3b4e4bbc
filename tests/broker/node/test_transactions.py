"""What the coordinator of transactions hears of the cluster: registrations of real sessions."""

from types import SimpleNamespace

import pytest
import trio

from broker.cluster.membership import Membership, Registration
from broker.cluster.ownership import Incarnation
from broker.node.transactions import follow_brokers
from metadata.memory import MemoryStore, MemoryTree
from tests.broker.cluster.test_peers import Peers


class Member:
    """A life of a broker, registered until `stand_still`."""

    def __init__(self, tree, node_id, life):
        self.store = MemoryStore(tree)
        self.membership = Membership(self.store, Incarnation(node_id, f"{life:032x}"))
        self.scope = trio.CancelScope()

    async def start(self, nursery):
        async def run(*, task_status):
            with self.scope:
                await self.membership.run(task_status=task_status)

        await nursery.start(run)
        own = self.membership.incarnation
        host = "two" if own.node_id == 2 else "another"
        listeners = {"CLIENTS": ("c", 1, "PLAINTEXT"), "INTERNAL": (host, 9092, "PLAINTEXT")}
        await self.membership.register(Registration(own, listeners))

    def stand_still(self):
        """Nothing of it runs any more, and its session ends."""
        self.scope.cancel()
        self.store.end_session()


@pytest.mark.parametrize("comes_back", [False, True])
async def test_a_broker_that_stands_still_is_not_waited_for(nursery, comes_back, autojump_clock):
    """Or it was started anew: that life has not heard of the question."""
    two = Peers(nursery)
    await two.start()
    await two.speak(lambda transport, got: None)
    tree = MemoryTree()
    own, other, third = (Member(tree, node_id, node_id) for node_id in (1, 2, 3))
    await own.start(nursery)
    follow_brokers(two.peers, own.membership, "INTERNAL")
    await other.start(nursery)
    waiting = two.ask()
    await trio.sleep(5)
    await third.start(nursery)  # which is nobody's business
    await trio.sleep(1)
    assert set(own.membership.live) == {1, 2, 3}
    assert waiting == []
    other.stand_still()
    if comes_back:
        await Member(tree, 2, 4).start(nursery)
    await trio.sleep(1)
    assert waiting == [None]
    assert (2 in own.membership.live) is comes_back


def test_lives_that_end_together_end_in_one_order():
    """Two runs of a seed differed in the order in which connections were closed (632415998)."""
    told, listeners = [], []
    peers = SimpleNamespace(ended=lambda ids: told.append(list(ids)), moved=lambda address_of: None)
    membership = SimpleNamespace(subscribe=listeners.append, live={})
    follow_brokers(peers, membership, "INTERNAL")
    (changed,) = listeners
    changed(frozenset(Incarnation(node_id, f"{node_id:032x}") for node_id in range(9)))
    assert told == [list(range(9))]
