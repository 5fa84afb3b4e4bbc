"""Several brokers on one metadata tree: who lives, who is elected, who leads what.

Sessions end, replies are lost, brokers die, leave and come back, under a clock that jumps.
"""

import itertools
import random
from contextlib import asynccontextmanager, suppress
from functools import partial
from uuid import UUID

import pytest
import trio

from broker.cluster import assigned as assigned_module
from broker.cluster.assigned import AssignedOwnership
from broker.cluster.assignment import ASSIGNMENTS_PATH, Assignment
from broker.cluster.balance import BrokerState
from broker.cluster.catalog import TopicCatalog
from broker.cluster.cluster_view import Brokers, BrokersView
from broker.cluster.controller import CONTROLLER_PATH, Controller
from broker.cluster.durability import Bookies
from broker.cluster.membership import BROKERS_PATH, Membership, Registration
from broker.cluster.ownership import Incarnation
from broker.cluster.placing import Placing
from broker.cluster.registry import ConfigRegistry
from broker.cluster.spreading import spread_if_others
from metadata.memory import MemoryStore, MemoryTree
from metadata.store import (
    MetadataUnavailableError,
    MetadataUnknownOutcomeError,
    NodeExistsError,
    NoNodeError,
)
from runtime.config import ConfigError
from runtime.env import Env, RealClock
from wire.kafka.errors import KafkaError


class Judge:
    """Every assignment that ever was in metadata: epochs rise, and an epoch has one leader."""

    def __init__(self, tree):
        self.table = tree.table
        self.led = {}
        self.lost_count = 0
        self.epochs = {}

    def look(self, paths):
        for path in paths:
            row = self.table.find(path)
            if row is None or not path.startswith(ASSIGNMENTS_PATH + "/"):
                continue
            if row.data == b"nonsense":
                continue
            for n, one in enumerate(Assignment.from_bytes(row.data).partitions):
                assert self.epochs.get((path, n), 0) <= one.epoch, "an epoch fell"
                self.epochs[path, n] = one.epoch
                first = self.led.setdefault((path, n, one.epoch), one.leader)
                assert first == one.leader, "an epoch has two leaders"


class LossyStore(MemoryStore):
    """Loses replies, and is away at times: whether it did what was asked, nobody knows."""

    def __init__(self, tree, judge, rng):
        super().__init__(tree)
        self._judge, self._rng = judge, rng
        self.loss = 0.0
        self.is_away = False
        self.change_count = 0

    async def _enter(self, *paths):
        await super()._enter(*paths)
        if self.is_away:
            raise MetadataUnavailableError(paths[0] if paths else "/", "away")

    async def _change(self, paths, change):
        self.change_count += 1
        if self._rng.random() < self.loss:
            self._judge.lost_count += 1
            if self._rng.random() < 0.5:
                await change
                self._judge.look(paths)
            else:
                change.close()
            raise MetadataUnknownOutcomeError(paths[0])
        result = await change
        self._judge.look(paths)
        return result

    async def put(self, path, data, version):
        return await self._change([path], super().put(path, data, version))

    async def create(self, path, data=b"", **options):
        return await self._change([path], super().create(path, data, **options))

    async def multi(self, ops):
        return await self._change([op.path for op in ops], super().multi(ops))


class Broker:
    def __init__(self, world, node_id, rack=None, listeners=None, place="", may_be_elected=True):
        self.world, self.node_id, self.rack, self.place = world, node_id, rack, place
        world.life_count += 1
        self.incarnation = Incarnation(node_id, f"{world.life_count:032x}")
        self.listeners = listeners or {"PLAINTEXT": (f"host{node_id}", 9092, "PLAINTEXT")}
        self.store = LossyStore(world.tree, world.judge, world.rng)
        env = Env(clock=RealClock(), rng=world.rng, net=None, disk=None, turn=None)
        static = {"node.id": str(node_id)}
        self.registry = ConfigRegistry(self.store, static)
        self.catalog = TopicCatalog(
            self.store, env, self.registry, initial_partition_document=lambda: b"{}"
        )
        self.membership = Membership(self.store, self.incarnation)
        self.ownership = AssignedOwnership(self.store, self.membership)
        self.placing = self.catalog.placing = Placing(self.membership, self.ownership)
        self.catalog.subscribe(self.placing.on_topic)
        self.rebalance_seconds = None
        self.controller = Controller(
            self.store,
            self.membership,
            self.ownership,
            self.catalog,
            self.placing,
            lambda: self.rebalance_seconds,
            may_be_elected=may_be_elected,
        )
        self.view = BrokersView(
            "A" * 22,
            self.registry.broker,
            Brokers(self.membership, self.ownership, lambda: self.controller.elected),
            self.catalog,
            Bookies(lambda: ["b1", "b2", "b3"]),
            lambda *_: None,
        )
        self.told = []
        self.ownership.subscribe(self.told.append)
        self.scope = trio.CancelScope()
        self.ended = trio.Event()

    async def run(self, *, register=True, task_status=trio.TASK_STATUS_IGNORED):
        try:
            with self.scope:
                async with trio.open_nursery() as nursery:
                    await nursery.start(self.store.run)
                    for part in (self.catalog, self.membership, self.ownership, self.controller):
                        await nursery.start(part.run)
                    if register:
                        await self.register()
                    task_status.started()
        finally:
            self.ended.set()

    async def register(self):
        await self.membership.register(
            Registration(self.incarnation, self.listeners, self.rack, place=self.place)
        )

    async def kill(self):
        """Its session ends with it: nothing is tidied up."""
        self.store.is_away = True
        self.scope.cancel()
        await self.ended.wait()
        self.world.brokers.pop(self.node_id, None)
        self.store.end_session()

    async def stop(self):
        """Cleanly, once it is told to."""
        self.scope.cancel()
        await self.ended.wait()
        self.world.brokers.pop(self.node_id, None)
        await self.store.aclose()

    def leads(self, topic):
        """Partition numbers."""
        count = topic.partition_count
        return [n for n in range(count) if self.ownership.assigned_epoch(topic.id, n) is not None]


class World:
    def __init__(self, nursery, seed=0):
        self.nursery = nursery
        self.rng = random.Random(seed)
        self.tree = MemoryTree()
        self.judge = Judge(self.tree)
        self.brokers = {}
        self.life_count = 0

    async def start(self, node_id, **options):
        broker = Broker(self, node_id, **options)
        await self.nursery.start(broker.run)
        self.brokers[node_id] = broker
        return broker

    def owners(self, topic):
        """By partition: those that take themselves for its leader."""
        found = [[] for _ in range(topic.partition_count)]
        for broker in self.brokers.values():
            for n in broker.leads(topic):
                found[n].append(broker.node_id)
        return found


@pytest.fixture
async def world(nursery):
    return World(nursery)


async def settle(seconds=5):
    await trio.sleep(seconds)


async def test_brokers_know_each_other_and_one_is_controller(world, autojump_clock):
    brokers = [await world.start(n, rack="ab"[n % 2]) for n in (1, 2, 3)]
    await settle()
    for broker in brokers:
        assert list(broker.view.broker_ids()) == [1, 2, 3]
        assert broker.view.controller_id == 1
        (one, *_) = broker.view.brokers("PLAINTEXT")
        assert (one.node_id, one.host, one.port, one.rack) == (1, "host1", 9092, "b")
        assert broker.view.brokers("OTHER") == []
    assert [broker.controller.is_controller for broker in brokers] == [True, False, False]
    await brokers[0].kill()
    await settle()
    assert brokers[1].view.controller_id in (2, 3)
    assert sum(broker.controller.is_controller for broker in brokers[1:]) == 1


async def test_who_may_not_be_elected_knows_who_is_and_takes_nothing(world, autojump_clock):
    """The children of a standalone server are there before its own broker."""
    children = [await world.start(n, may_be_elected=False) for n in (1, 2)]
    topic = await children[0].catalog.create("t", 4, {})
    await settle()
    assert [child.controller.elected for child in children] == [None, None]
    before = children[0].ownership.get(topic.id)
    await children[1].kill()
    await settle()
    assert not await children[0].store.exists(CONTROLLER_PATH)
    assert children[0].ownership.get(topic.id) == before
    main = await world.start(0)
    await settle()
    assert children[0].controller.elected == main.controller.elected == main.incarnation
    assert [len(each) for each in world.owners(topic)] == [1] * 4


async def test_who_abdicated_gives_no_partition_to_anybody(world, autojump_clock):
    """All brokers of a standalone server stop together."""
    main, child = [await world.start(n, may_be_elected=n == 0) for n in (0, 1)]
    topic = await main.catalog.create("t", 4, {}, 2)
    await settle()
    before = child.ownership.get(topic.id)
    main.controller.abdicate()
    assert not main.controller.is_controller
    main.membership.set_state(BrokerState.DRAINING)
    await settle()
    child.membership.set_state(BrokerState.DRAINING)
    await settle()
    assert not main.controller.is_controller
    assert child.ownership.get(topic.id) == before


async def test_a_write_that_is_lost_is_not_decided_anew_after_abdication(world, autojump_clock):
    """The abdicated one drains by then, so all that it leads would go to one that stops next."""
    main, one, two = [await world.start(n, may_be_elected=n == 0) for n in range(3)]
    await settle()
    topic = await main.catalog.create("t", 6, {}, 1)
    await settle()
    before = [each.leader for each in one.ownership.get(topic.id).partitions]
    reached, go = trio.Event(), trio.Event()
    multi = main.store.multi

    async def lost(ops):
        main.store.multi = multi
        reached.set()
        await go.wait()
        raise MetadataUnknownOutcomeError("lost, and not done")

    main.store.multi = lost
    await two.kill()
    await reached.wait()
    main.controller.abdicate()
    main.membership.set_state(BrokerState.DRAINING)
    await settle()
    go.set()
    await settle()
    assert [each.leader for each in one.ownership.get(topic.id).partitions] == before


@pytest.mark.parametrize("abdicates", [False, True])
async def test_who_abdicated_moves_no_leader_back(world, autojump_clock, abdicates):
    main, other = [await world.start(n) for n in (0, 1)]
    await settle()
    topic = await main.catalog.create("t", 1, {}, 2)
    preferred = main.ownership.get(topic.id).partitions[0].leader
    await main.ownership.change(
        topic.id, lambda now: now.with_partitions({0: now.partitions[0].led_by(1 - preferred)})
    )
    if abdicates:
        main.controller.abdicate()
    await main.controller.elect_preferred()
    await settle()
    leader = other.ownership.get(topic.id).partitions[0].leader
    assert (leader == preferred) is not abdicates


async def test_a_new_topic_has_leaders_at_once(world, autojump_clock):
    brokers = [await world.start(n) for n in (1, 2, 3)]
    await settle()
    topic = await brokers[2].catalog.create("t", 9, {}, 3)
    leaders = [brokers[2].view.partition("t", n).leader for n in range(9)]
    assert sorted(leaders) == [1, 1, 1, 2, 2, 2, 3, 3, 3]
    await settle()
    for broker in brokers:
        assert [broker.view.partition("t", n).leader for n in range(9)] == leaders
        assert len(broker.leads(topic)) == 3
    state = brokers[0].view.partition("t", 0)
    assert sorted(state.replicas) == sorted(state.isr) == [1, 2, 3]
    assert (state.replicas[0], state.leader_epoch, state.offline) == (state.leader, 0, ())
    assert brokers[0].view.leader("t", 0, "PLAINTEXT").node_id == state.leader


async def test_leaders_by_hand(world, autojump_clock):
    brokers = [await world.start(n) for n in (1, 2)]
    await settle()
    await brokers[0].catalog.create("t", 2, {}, 2, [[2, 1], [2, 1]])
    assert [brokers[0].view.partition("t", n).leader for n in range(2)] == [2, 2]
    await settle()
    grown = await brokers[1].catalog.add_partitions("t", 4, [[2, 1], [1, 2]])
    await settle()
    assert world.owners(grown) == [[2], [2], [2], [1]]
    await brokers[1].catalog.add_partitions("t", 6)
    await settle()
    assert world.owners(brokers[0].catalog.get("t")) == [[2], [2], [2], [1], [1], [1]]


async def test_a_dead_brokers_partitions_move_and_come_back_when_asked(world, autojump_clock):
    brokers = [await world.start(n) for n in (1, 2, 3)]
    await settle()
    topic = await brokers[0].catalog.create("t", 12, {}, 2)
    await settle()
    before = world.owners(topic)
    told = len(brokers[1].told)
    await brokers[0].kill()
    await settle()
    after = world.owners(topic)
    for (old,), (new,) in zip(before, after, strict=True):
        assert new == old if old != 1 else new != 1
    assert len(brokers[1].told) > told
    counts = [sum(owner == [n] for owner in after) for n in (2, 3)]
    assert counts == [6, 6]
    # Nothing moves back by itself but by the periodic look.
    back = await world.start(1)
    await settle()
    assert world.owners(topic) == after
    for broker in world.brokers.values():
        broker.rebalance_seconds = 60
    await settle(130)
    assert world.owners(topic) == before
    assert back.ownership.assigned_epoch(topic.id, back.leads(topic)[0]) == 2


async def test_only_who_rules_moves_leaders_back(world, autojump_clock):
    """Several at once would decide of the same partitions, each by what it knows."""
    brokers = [await world.start(n) for n in (1, 2, 3)]
    await settle()
    moving = []
    for broker in brokers:

        async def elect_preferred(broker=broker):
            moving.append(broker.node_id)

        broker.controller.elect_preferred = elect_preferred
        broker.rebalance_seconds = 60
    await settle(125)
    assert moving in ([1], [1, 1])
    await brokers[0].kill()
    await settle()
    (ruler,) = [broker.node_id for broker in brokers[1:] if broker.controller.is_controller]
    moving.clear()
    await settle(125)
    assert set(moving) == {ruler}


async def test_every_broker_hears_who_is_elected(world, autojump_clock):
    brokers = [await world.start(n) for n in (1, 2, 3)]
    await settle()
    heard = {broker.node_id: [] for broker in brokers}
    for broker in brokers:
        controller, each = broker.controller, heard[broker.node_id]
        controller.subscribe(
            lambda controller=controller, each=each: each.append(controller.elected)
        )
    await brokers[0].kill()
    await settle()
    (ruler,) = [broker for broker in brokers[1:] if broker.controller.is_controller]
    assert heard[2][-1] == heard[3][-1] == ruler.incarnation


async def test_very_many_topics_are_told_of_a_broker_in_slices(world, autojump_clock, monkeypatch):
    """Each costs some microseconds, and a broker may lead 10,000 topics."""
    monkeypatch.setattr(assigned_module, "TOPICS_PER_TURN", 2)
    one, two = [await world.start(n) for n in (1, 2)]
    topics = [await one.catalog.create(f"t{n}", 2, {}, 2) for n in range(7)]
    await settle()
    led = {topic.id for topic in topics if one.leads(topic)}  # of some the other has all
    assert len(led) > 3
    slices = []
    follow = AssignedOwnership._follow_some

    def follow_some(ownership):
        before = len(one.told)
        follow(ownership)
        if ownership is one.ownership:
            slices.append(one.told[before:])

    monkeypatch.setattr(AssignedOwnership, "_follow_some", follow_some)
    two.store.expire_session()
    await settle()
    assert max(map(len, slices)) == 2
    assert {topic_id for some in slices for topic_id in some} >= led


@pytest.mark.parametrize("leads_them", [False, True])
async def test_a_new_session_looks_at_very_many_topics_again(
    world, autojump_clock, monkeypatch, leads_them
):
    """All that are known, some in each turn, whoever leads them."""
    monkeypatch.setattr(assigned_module, "TOPICS_PER_TURN", 2)
    one = await world.start(1)
    topics = [await one.catalog.create(f"t{n}", 2, {}, 1) for n in range(7)]
    broker = one if leads_them else await world.start(2)
    await settle()
    assert any(map(broker.leads, topics)) is leads_them
    marked, turns = [], []
    folder, follow = broker.ownership._folder, AssignedOwnership._follow_some

    def follow_some(ownership):
        """What is marked here: the folder's own watches mark some, too."""
        before, folder._dirty = dict(folder._dirty), {}
        follow(ownership)
        marked.extend(folder._dirty)
        turns.append(len(folder._dirty))
        folder._dirty = before | folder._dirty

    monkeypatch.setattr(AssignedOwnership, "_follow_some", follow_some)
    broker.store.expire_session()
    await settle()
    assert set(marked) == {str(topic.id) for topic in topics}
    assert max(turns) == 2


async def test_who_came_while_a_change_was_waited_for_keeps_what_it_was_given(
    world, autojump_clock, monkeypatch
):
    """The controller gives what a dead broker led to who lives; meanwhile another one starts, and
    partitions are spread over both. To who lived before it its partitions would seem lost."""
    one, gone = [await world.start(n) for n in (1, 3)]
    await settle()
    topic = await one.catalog.create("t", 4, {}, 1, [[3]] * 4)
    await settle()
    assert world.owners(topic) == [[3]] * 4
    change_many = one.ownership.change_many
    waited = []

    async def late(changes):
        if not waited:
            waited.append(len(changes))
            two = await world.start(2)
            await settle()
            parts = (two.store, two.catalog, two.membership, two.ownership)
            assert await spread_if_others(*parts, [1, 2])
            await settle()
        await change_many(changes)

    monkeypatch.setattr(one.ownership, "change_many", late)
    await gone.kill()
    await settle(60)
    assert waited == [1]
    owners = world.owners(topic)
    assert [owners.count([n]) for n in (1, 2)] == [2, 2]


async def test_a_leaving_broker_is_given_nothing_and_loses_all(world, autojump_clock):
    brokers = [await world.start(n) for n in (1, 2)]
    await settle()
    topic = await brokers[0].catalog.create("t", 4, {}, 2)
    await settle()
    brokers[0].membership.set_state(BrokerState.DRAINING)
    await settle()
    assert world.owners(topic) == [[2]] * 4
    assert brokers[0].ownership.led_count == 0
    other = await brokers[0].catalog.create("u", 4, {}, 2)
    await settle()
    assert world.owners(other) == [[2]] * 4
    await brokers[0].stop()
    with pytest.raises(NoNodeError):
        await brokers[1].store.get(f"{BROKERS_PATH}/1")
    await settle()
    assert brokers[1].controller.is_controller
    # The last one keeps what it has, as nobody else would.
    brokers[1].membership.set_state(BrokerState.DRAINING)
    await settle()
    assert world.owners(topic) == [[2]] * 4


async def test_a_cordoned_broker_keeps_what_it_has(world, autojump_clock):
    brokers = [await world.start(n) for n in (1, 2)]
    await settle()
    topic = await brokers[0].catalog.create("t", 4, {}, 2)
    brokers[0].membership.set_state(BrokerState.CORDONED)
    await settle()
    before = world.owners(topic)
    assert sorted(before) == [[1], [1], [2], [2]]
    other = await brokers[0].catalog.create("u", 4, {}, 2)
    await settle()
    assert world.owners(other) == [[2]] * 4
    assert world.owners(topic) == before
    # Rather a cordoned one than none.
    await brokers[1].kill()
    await settle()
    assert world.owners(topic) == world.owners(other) == [[1]] * 4


async def test_a_lost_session_is_followed_by_a_registration_of_the_same_life(world, autojump_clock):
    brokers = [await world.start(n) for n in (1, 2)]
    await settle()
    topic = await brokers[0].catalog.create("t", 4, {}, 2)
    await settle()
    brokers[0].store.expire_session()
    assert brokers[0].leads(topic), "what it leads it goes on to lead while it does not know better"
    await settle()
    node = await brokers[1].store.get(f"{BROKERS_PATH}/1")
    assert Registration.from_bytes(1, node.data).incarnation == brokers[0].incarnation
    assert await brokers[0].membership.is_registered_now()
    owners = world.owners(topic)
    assert all(len(one) == 1 for one in owners)
    assert sum(broker.controller.is_controller for broker in brokers) == 1


async def test_who_lost_its_registration_does_not_stand_before_it_has_it_again(
    world, autojump_clock, monkeypatch
):
    """It would rule without itself, and give away what it leads."""
    brokers = [await world.start(n) for n in (1, 2)]
    await settle()
    topic = await brokers[0].catalog.create("t", 4, {}, 2)
    await settle()
    before, may_register = world.owners(topic), trio.Event()
    try_register = Membership._try_register

    async def late(membership, own):
        await may_register.wait()
        return await try_register(membership, own)

    monkeypatch.setattr(Membership, "_try_register", late)
    for broker in brokers:
        broker.store.expire_session()
    await settle()
    with pytest.raises(NoNodeError):
        await brokers[0].store.get(CONTROLLER_PATH)
    assert world.owners(topic) == before
    may_register.set()
    await settle()
    assert sum(broker.controller.is_controller for broker in brokers) == 1


@pytest.mark.parametrize("lost", ["registration", "session"])
async def test_a_controller_that_is_not_registered_gives_nothing_away(
    world, autojump_clock, monkeypatch, lost
):
    """Its registration was deleted by hand; or its request to be elected waited for a new session,
    which has come before it has registered again."""
    one, two = [await world.start(n) for n in (1, 2)]
    await settle()
    topic = await one.catalog.create("t", 4, {}, 2)
    await settle()
    before, may_register = world.owners(topic), trio.Event()
    try_register = Membership._try_register

    async def late(membership, own):
        if membership is one.membership:
            await may_register.wait()
        return await try_register(membership, own)

    monkeypatch.setattr(Membership, "_try_register", late)
    monkeypatch.setattr(two.controller, "_may_be_elected", False)
    if lost == "session":
        one.store.expire_session()
        await one.store.create(CONTROLLER_PATH, one.controller._document(), ephemeral=True)
    else:
        await two.store.delete(f"{BROKERS_PATH}/1")
    await settle()
    assert one.controller.is_controller
    assert not one.membership.knows_itself
    assert [leaders(broker, topic) for broker in (one, two)] == [[n for (n,) in before]] * 2
    may_register.set()
    await settle()
    assert one.controller.is_controller
    assert world.owners(topic) == before


def leaders(broker, topic):
    """By partition, as it knows them."""
    return [one.leader for one in broker.ownership.get(topic.id).partitions]


async def test_who_has_a_new_session_does_not_decide_by_what_it_knew_before(
    world, autojump_clock, monkeypatch
):
    """Broker 3 came while it was cut off: it would take what that one leads."""
    one, two = [await world.start(n) for n in (1, 2)]
    await settle()
    look, may_look = Membership._look, trio.Event()

    async def late(membership, among):
        if membership is one.membership:
            if membership.registered_count == 1:
                raise MetadataUnavailableError(BROKERS_PATH, "away")
            await may_look.wait()
        await look(membership, among)

    monkeypatch.setattr(Membership, "_look", late)
    one.store.is_away = True
    one.store.end_session()
    await settle()
    assert two.controller.is_controller
    three = await world.start(3)
    topic = await three.catalog.create("t", 6, {}, 2)
    await settle()
    assert set(leaders(two, topic)) == {2, 3}
    for other in (two, three):
        monkeypatch.setattr(other.controller, "_may_be_elected", False)
    one.store.is_away = False
    one.store.tell_expired()
    await settle()
    assert one.membership.registered_count == 2
    assert sorted(one.membership.live) == [1, 2], "what it knew before"
    await two.store.delete(CONTROLLER_PATH)
    one.controller._wake_all()
    await settle()
    assert not one.controller.is_controller
    may_look.set()
    await settle()
    assert one.controller.is_controller
    assert set(leaders(two, topic)) == {2, 3}


async def test_whose_registration_is_replaced_does_not_know_itself(world, autojump_clock):
    one = await world.start(1)
    await settle()
    assert one.membership.knows_itself
    node = await one.store.get(f"{BROKERS_PATH}/1")
    another = Registration(Incarnation(1, "f" * 32), one.listeners).to_bytes()
    await one.store.put(f"{BROKERS_PATH}/1", another, node.version)
    await settle()
    assert not one.membership.knows_itself
    await one.store.delete(f"{BROKERS_PATH}/1")
    await settle()
    assert one.membership.knows_itself


async def test_who_does_not_see_itself_yet_does_not_stand(
    world, nursery, autojump_clock, monkeypatch
):
    look, may_look = Membership._look, trio.Event()

    async def look_late(membership, among):
        if membership.is_registered:
            await may_look.wait()
        await look(membership, among)

    monkeypatch.setattr(Membership, "_look", look_late)
    broker = Broker(world, 1)
    nursery.start_soon(broker.run)
    await settle()
    assert broker.membership.is_registered
    broker.controller._wake_all()
    await settle()
    with pytest.raises(NoNodeError):
        await broker.store.get(CONTROLLER_PATH)
    may_look.set()
    await settle()
    assert broker.controller.is_controller
    broker.scope.cancel()


async def test_metadata_that_is_away_changes_nothing(world, autojump_clock):
    brokers = [await world.start(n) for n in (1, 2)]
    await settle()
    topic = await brokers[0].catalog.create("t", 4, {}, 2)
    await settle()
    before = world.owners(topic)
    for broker in brokers:
        broker.store.is_away = True
    await brokers[0].ownership.publish(topic.id, before.index([1]), 7)
    await settle(60)
    assert world.owners(topic) == before
    with pytest.raises(MetadataUnavailableError):
        await brokers[0].ownership.confirm(topic.id, 0)
    for broker in brokers:
        broker.store.is_away = False
    await settle()
    assert brokers[1].view.partition("t", before.index([1])).leader_epoch == 7


async def test_epochs_of_one_topic_are_published_in_few_writes(world, autojump_clock):
    broker = await world.start(1)
    await settle()
    topic = await broker.catalog.create("t", 100, {}, 1)
    await settle()
    before = broker.store.change_count
    for n in range(100):
        await broker.ownership.publish(topic.id, n, 5)
    await settle()
    assert broker.store.change_count - before <= 3
    assert [broker.view.partition("t", n).leader_epoch for n in range(100)] == [5] * 100
    await broker.ownership.publish(topic.id, 3, 4)
    await settle()
    assert broker.view.partition("t", 3).leader_epoch == 5


async def test_moves_of_many_topics_are_few_writes(world, autojump_clock):
    brokers = [await world.start(n) for n in (1, 2)]
    await settle()
    for n in range(150):
        await brokers[0].catalog.create(f"t{n}", 2, {}, 2)
    await settle()
    before = brokers[1].store.change_count
    await brokers[0].kill()
    await settle()
    assert brokers[1].ownership.led_count == 300
    # Election, the batches of the moves, and nothing per partition.
    assert brokers[1].store.change_count - before <= 6


async def die(broker):
    """Its process ends; the session lives on for a while."""
    broker.store.is_away = True
    broker.scope.cancel()
    await broker.ended.wait()


def registered(world):
    return Registration.from_bytes(1, world.tree.table.find(f"{BROKERS_PATH}/1").data)


async def test_a_former_life_is_replaced_and_a_stranger_is_not(world, autojump_clock):
    first = await world.start(1, place="machine 127.0.0.1:9092")
    await settle()
    await die(first)
    stranger = Broker(world, 1, listeners={"PLAINTEXT": ("elsewhere", 9092, "PLAINTEXT")})
    with pytest.raises(ExceptionGroup) as raised:
        await stranger.run()
    assert raised.group_contains(ConfigError, match="another live broker")
    assert registered(world).incarnation == first.incarnation
    again = Broker(world, 1, place="machine 127.0.0.1:9092")
    with trio.fail_after(1):
        await world.nursery.start(again.run)
    assert again.membership.is_alive(again.incarnation)
    assert not again.membership.is_alive(first.incarnation)


@pytest.mark.parametrize("place", ["", "another machine 127.0.0.1:9092"])
async def test_who_does_not_answer_is_replaced(world, autojump_clock, place):
    """The same configuration on another machine, or an older version's registration."""
    first = await world.start(1, place="" if not place else "machine 127.0.0.1:9092")
    await settle()
    await die(first)
    again = Broker(world, 1, place=place)
    with trio.fail_after(10):
        await world.nursery.start(again.run)
    assert again.membership.is_alive(again.incarnation)
    assert await again.store.children(BROKERS_PATH) == ["1"]


@pytest.mark.parametrize("place", ["", "another machine 127.0.0.1:9092"])
async def test_a_rival_does_not_drive_a_healthy_broker_out(world, autojump_clock, place):
    """The same id and the same addresses, as where a configuration was copied."""
    first = await world.start(1, place="" if not place else "machine 127.0.0.1:9092")
    other = await world.start(2)
    await settle()
    topic = await first.catalog.create("t", 4, {}, 2)
    await settle()
    before = world.owners(topic)
    rival = Broker(world, 1, place=place)
    with pytest.raises(ExceptionGroup) as raised:
        await rival.run()
    assert raised.group_contains(ConfigError, match="another live broker")
    await settle()
    assert registered(world).incarnation == first.incarnation
    assert other.membership.is_alive(first.incarnation)
    assert world.owners(topic) == before
    assert await first.store.children(BROKERS_PATH) == ["1", "2"]


async def test_a_rival_follows_a_broker_that_dies_while_it_waits(world, autojump_clock):
    first = await world.start(1)
    await settle()
    rival = Broker(world, 1)
    world.nursery.start_soon(rival.run)
    await settle(20)
    assert registered(world).incarnation == first.incarnation
    await first.kill()
    await settle()
    assert registered(world).incarnation == rival.incarnation


async def test_the_partitions_of_a_broker_that_cannot_write_move(world, autojump_clock):
    brokers = [await world.start(n) for n in (1, 2, 3)]
    await settle()
    topic = await brokers[0].catalog.create("t", 9, {}, 2)
    await settle()
    before = world.owners(topic)
    brokers[0].membership.set_can_write(False)
    await settle()
    assert world.owners(topic) == before, "it may recover, or the others may be as bad"
    other = await brokers[0].catalog.create("u", 4, {}, 2)
    await settle(1)
    assert [1] not in world.owners(other)
    await settle(20)
    after = world.owners(topic)
    assert [1] not in after
    for (old,), (new,) in zip(before, after, strict=True):
        assert new == old if old != 1 else new != 1
    # Back again it is given what it is asked to lead.
    brokers[0].membership.set_can_write(True)
    for broker in world.brokers.values():
        broker.rebalance_seconds = 60
    await settle(130)
    assert world.owners(topic) == before


async def test_nothing_moves_if_no_broker_can_write(world, autojump_clock):
    brokers = [await world.start(n) for n in (1, 2, 3)]
    await settle()
    topic = await brokers[0].catalog.create("t", 9, {}, 2)
    await settle()
    before = world.owners(topic)
    for broker in brokers:
        broker.membership.set_can_write(False)
        await settle(2)
    await settle(60)
    assert world.owners(topic) == before
    # One of them reaches bookies again: now there is somebody.
    brokers[2].membership.set_can_write(True)
    await settle(5)
    assert world.owners(topic) == [[3]] * 9


async def test_one_that_recovers_in_time_keeps_what_it_has(world, autojump_clock):
    brokers = [await world.start(n) for n in (1, 2)]
    await settle()
    topic = await brokers[0].catalog.create("t", 4, {}, 2)
    await settle()
    before = world.owners(topic)
    for _ in range(6):
        brokers[0].membership.set_can_write(False)
        await settle(18)
        brokers[0].membership.set_can_write(True)
        await settle(1)
    assert world.owners(topic) == before


async def test_the_dead_ones_partitions_go_to_one_that_cannot_write_rather_than_to_none(
    world, autojump_clock
):
    brokers = [await world.start(n) for n in (1, 2)]
    await settle()
    topic = await brokers[0].catalog.create("t", 2, {}, 2)
    brokers[1].membership.set_can_write(False)
    await settle()
    await brokers[0].kill()
    await settle()
    assert world.owners(topic) == [[2], [2]]


async def test_a_deleted_registration_comes_back(world, autojump_clock):
    brokers = [await world.start(n) for n in (1, 2)]
    await settle()
    await brokers[1].store.delete(f"{BROKERS_PATH}/1")
    await settle()
    assert list(brokers[1].view.broker_ids()) == [1, 2]


async def test_no_client_is_told_of_no_broker(world, nursery, autojump_clock):
    """librdkafka would forget all of them, and ask nobody again."""
    one = Broker(world, 1, rack="a")
    await nursery.start(partial(one.run, register=False))
    assert list(one.view.broker_ids()) == []
    (told,) = one.view.brokers("PLAINTEXT")
    assert told == one.view.endpoints.get("PLAINTEXT")
    assert told.node_id == one.view.controller_id == 1
    assert one.view.brokers("OTHER") == []
    two = await world.start(2)
    await settle()
    assert [each.node_id for each in one.view.brokers("PLAINTEXT")] == [2]
    assert one.view.controller_id == 2
    await two.stop()
    one.scope.cancel()


async def test_nothing_is_assigned_before_it_is_registered(world, autojump_clock):
    first = await world.start(1)
    await settle()
    topic = await first.catalog.create("t", 2, {}, 1)
    await first.kill()
    again = Broker(world, 1)
    world.brokers[1] = again
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(again.run, register=False))
        await settle()
        assert world.owners(topic) == [[], []]
        await again.register()
        assert world.owners(topic) == [[1], [1]]
        assert topic.id in again.told
        nursery.cancel_scope.cancel()


async def test_assignments_of_deleted_topics_go(world, autojump_clock):
    brokers = [await world.start(n) for n in (1, 2)]
    await settle()
    await brokers[1].catalog.create("t", 2, {}, 1)
    await settle()
    await brokers[1].catalog.delete("t")
    await settle()
    assert await brokers[0].store.children(ASSIGNMENTS_PATH) == []
    assert brokers[0].ownership.all() == brokers[1].ownership.all() == {}
    assert +brokers[0].ownership.leading == {}


async def test_topics_of_an_older_version_get_leaders(world, autojump_clock):
    broker = await world.start(1)
    await settle()
    broker.catalog.placing = None
    topic = await broker.catalog.create("t", 3, {}, 1)
    await settle()
    assert world.owners(topic) == [[1], [1], [1]]


async def test_what_others_wrote_and_we_cannot_read_stops_nothing(world, autojump_clock):
    broker = await world.start(1)
    await settle()
    await broker.store.create(f"{BROKERS_PATH}/7", b"nonsense", ephemeral=True)
    await broker.store.create(f"{ASSIGNMENTS_PATH}/{UUID(int=7)}", b"nonsense", make_parents=True)
    await settle()
    topic = await broker.catalog.create("t", 1, {}, 1)
    await settle()
    assert world.owners(topic) == [[1]]
    assert list(broker.view.broker_ids()) == [1]
    await broker.store.delete(CONTROLLER_PATH)
    await broker.store.create(CONTROLLER_PATH, b"nonsense", ephemeral=True)
    await settle()
    assert broker.view.controller_id == 1


@asynccontextmanager
async def whatever_fails():
    """Requests of administrators may: metadata loses replies."""
    with suppress(KafkaError, MetadataUnknownOutcomeError, MetadataUnavailableError):
        yield


async def one_act(world, topics):
    rng, brokers = world.rng, list(world.brokers.values())
    broker = rng.choice(brokers)
    act = rng.choice(["create", "grow", "kill", "start", "expire", "drain", "away", "publish", "-"])
    if act == "create":
        async with whatever_fails():
            name = f"t{len(topics)}"
            topics.append(name)
            await broker.catalog.create(name, rng.randint(1, 5), {}, rng.randint(1, 3))
    elif act == "grow" and topics:
        async with whatever_fails():
            name = rng.choice(topics)
            count = broker.catalog.get(name).partition_count if broker.catalog.get(name) else 1
            await broker.catalog.add_partitions(name, count + 1)
    elif act == "kill" and len(brokers) > 1:
        await broker.kill()
    elif act == "start" and len(brokers) < 4:
        free = next(n for n in range(1, 5) if n not in world.brokers)
        await world.start(free)
    elif act == "expire":
        broker.store.expire_session()
    elif act == "drain":
        broker.membership.set_state(rng.choice(list(BrokerState)))
    elif act == "away":
        broker.store.is_away = not broker.store.is_away
    elif act == "publish":
        for topic in broker.catalog.all():
            for n in broker.leads(topic):
                epoch = broker.ownership.assigned_epoch(topic.id, n)
                await broker.ownership.publish(topic.id, n, epoch + rng.randint(0, 2))


@pytest.mark.parametrize("is_done", [False, True])
async def test_a_state_whose_put_was_not_answered_is_told(world, autojump_clock, is_done):
    """Else a broker that stopped draining would be given nothing, for ever."""
    one = await world.start(1)
    two = await world.start(2)
    await settle()
    put = one.store.put

    async def lose(path, data, version):
        one.store.put = put
        if is_done:
            await put(path, data, version)
        raise MetadataUnknownOutcomeError(path)

    one.store.put = lose
    one.membership.set_state(BrokerState.DRAINING)
    await settle()
    assert one.store.put is put
    assert two.membership.live[1].state is BrokerState.DRAINING


@pytest.mark.parametrize("is_done", [False, True])
async def test_an_election_whose_answer_was_lost_has_a_winner(world, autojump_clock, is_done):
    """If nothing was made, no watch tells of that, and nobody else may come by."""
    one = await world.start(1)
    two = await world.start(2)
    await settle()
    lost = []

    def losing(store):
        create = store.create

        async def lose(path, data=b"", **options):
            if path != CONTROLLER_PATH:
                return await create(path, data, **options)
            store.create = create
            lost.append(store)
            if is_done:
                with suppress(NodeExistsError):
                    await create(path, data, **options)
            raise MetadataUnknownOutcomeError(path)

        store.create = lose

    losing(one.store)
    losing(two.store)
    await one.store.delete(CONTROLLER_PATH)
    await settle()
    assert sorted(map(id, lost)) == sorted(map(id, (one.store, two.store)))
    assert one.controller.is_controller + two.controller.is_controller == 1
    assert one.view.controller_id == two.view.controller_id


@pytest.mark.parametrize("seed", range(60))
async def test_whatever_happens_it_converges(nursery, autojump_clock, seed, monkeypatch):
    world = World(nursery, seed)
    if seed % 2:
        monkeypatch.setattr(assigned_module, "TOPICS_PER_TURN", 1)
    topics = []
    for n in (1, 2, 3):
        await world.start(n)
    acts = itertools.count(1)
    while next(acts) <= 40 or not world.judge.lost_count:  # replies are to be lost
        for broker in world.brokers.values():
            broker.store.loss = 0.2
        await one_act(world, topics)
        await trio.sleep(world.rng.choice([0, 0, 0.01, 0.5, 3]))
    for broker in world.brokers.values():
        broker.store.loss = 0.0
        broker.store.is_away = False
        broker.membership.set_state(BrokerState.RUNNING)
    await settle(30)
    brokers = list(world.brokers.values())
    live = sorted(world.brokers)
    assert sum(broker.controller.is_controller for broker in brokers) == 1
    for broker in brokers:
        assert list(broker.view.broker_ids()) == live
        assert broker.ownership.all() == brokers[0].ownership.all()
        assert {t.id for t in broker.catalog.all()} == set(broker.ownership.all())
        counted = {n: broker.ownership.leading[n] for n in live}
        assert counted == {n: world.brokers[n].ownership.led_count for n in live}
    for topic in brokers[0].catalog.all():
        assert all(len(owners) == 1 for owners in world.owners(topic)), topic.name
