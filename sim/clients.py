"""Who uses a world: the clients that its shape asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim.bank import Teller
from sim.group_members.classic import ClassicMember
from sim.group_members.consumer import ConsumerMember
from sim.group_members.migrating import MigratingMember
from sim.group_members.share import ShareMember
from sim.group_members.streams import StreamsMember
from sim.keyed import KeyedReader, KeyedWriter
from sim.looker import Looker
from sim.pipeliner import Pipeliner
from sim.rights import AclAdmin
from sim.transactions.producer import TxnProducer
from sim.transactions.reader import TxnReader
from sim.workload import Admin, Consumer, Producer

if TYPE_CHECKING:
    from sim.world import World

    Client = (
        Producer
        | Pipeliner
        | Consumer
        | ClassicMember
        | ConsumerMember
        | ShareMember
        | StreamsMember
        | MigratingMember
        | Looker
        | Admin
        | AclAdmin
        | KeyedReader
        | TxnProducer
        | TxnReader
        | Teller
    )


def clients_of(world: World) -> list[Client]:
    """In the order in which they begin."""
    shape = world.shape
    clients: list[Client] = []
    for n in range(shape.idempotent_producers):
        clients.append(Producer(world, f"idem-{n + 1}", is_idempotent=True))
    for n in range(shape.plain_producers):
        clients.append(Producer(world, f"plain-{n + 1}", is_idempotent=False))
    clients += [Pipeliner(world, f"pipe-{n + 1}") for n in range(shape.pipeliners)]
    clients += [Consumer(world, f"reader-{n + 1}") for n in range(shape.consumers)]
    clients += [ClassicMember(world, f"member-{n + 1}") for n in range(shape.members)]
    clients += [ConsumerMember(world, f"member-848-{n + 1}") for n in range(shape.consumer_members)]
    clients += [ShareMember(world, f"member-share-{n + 1}") for n in range(shape.share_members)]
    clients += [
        StreamsMember(world, f"member-streams-{n + 1}") for n in range(shape.streams_members)
    ]
    count = shape.migrating_members
    clients += [MigratingMember(world, n, count) for n in range(count)]
    clients += [Looker(world, f"looker-{n + 1}") for n in range(shape.lookers)]
    clients += [Admin(world, f"admin-{n + 1}") for n in range(shape.admins)]
    if shape.is_cluster:
        clients += [AclAdmin(world, f"acl-admin-{n + 1}") for n in range(shape.acl_admins)]
    clients += [Teller(world, f"teller-{n + 1}") for n in range(shape.tellers)]
    if shape.keyed:
        clients += [KeyedWriter(world, "keyed-1"), KeyedWriter(world, "keyed-2")]
        clients.append(KeyedReader(world, "keyed-reader"))
    return clients + _transactional_clients(world)


def _transactional_clients(world: World) -> list[Client]:
    """Of each second one the client knows transactions of version 1 only."""
    shape = world.shape
    if not shape.transactional:
        return []
    clients: list[Client] = [
        TxnProducer(world, f"txn-{n + 1}", f"id-{n + 1}", version=2 - n % 2, is_twin=False)
        for n in range(shape.transactional)
    ]
    if shape.twins:
        clients.append(TxnProducer(world, "txn-twin", "id-1", version=2, is_twin=True))
    clients.append(TxnReader(world, "txn-reader", is_committed=True))
    clients.append(TxnReader(world, "txn-reader-all", is_committed=False))
    return clients
