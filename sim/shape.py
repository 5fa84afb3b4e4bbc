"""Shape: how large a world is, who is in it, and how tight its limits are; drawn from the seed.

A world that a test makes by hand has the defaults, and nothing of what they leave out.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

#: Ensemble, write quorum, ack quorum. The first is what Kafka's usual settings give; of those with
#: an ensemble larger than the write quorum no bookie has all entries.
QUORUMS = (
    (3, 3, 2),
    (4, 3, 2),
    (5, 3, 2),
    (3, 2, 2),
    (4, 2, 2),
    (3, 3, 3),
    (5, 5, 3),
    (2, 2, 1),
    (3, 2, 1),
)


@dataclass(frozen=True, slots=True)
class Shape:
    """Counts; and 0 or 1 for what is there or not."""

    bookies: int = 4
    brokers: int = 1
    #: For rivals of those: see the fault of that name.
    spare_brokers: int = 1
    #: A broker alone is as `quire standalone`'s, which owns everything; or a cluster of one, as
    #: `quire broker` makes.
    cluster: int = 0
    #: Nodes with an auditor and a replication worker.
    recoverers: int = 0
    partitions: int = 2
    idempotent_producers: int = 2
    plain_producers: int = 1
    #: Idempotent ones with several requests in flight.
    pipeliners: int = 0
    consumers: int = 1
    admins: int = 1
    #: Of one consumer group of the classic protocol, and of another of KIP-848's.
    members: int = 0
    consumer_members: int = 0
    #: Of a share group.
    share_members: int = 0
    #: Of a streams group.
    streams_members: int = 0
    #: Of a group that goes from the classic protocol to KIP-848's and back.
    migrating_members: int = 0
    #: Asks for offsets by time.
    lookers: int = 0
    #: A topic of one partition more, of which old records go by time or by size.
    retention: int = 0
    #: A topic that is compacted, with writers of a few keys and a reader of all of it.
    keyed: int = 0
    #: Transactional ids that are written with, in turn by clients of version 2 and of version 1.
    transactional: int = 0
    #: A second producer of the first one of them.
    twins: int = 0
    #: Administrators of rights, in a cluster.
    acl_admins: int = 0
    #: Tellers of a bank, whose topic has optimistic locks.
    tellers: int = 0
    #: The limits that are at their extreme: see sim/preset.py.
    short_queues: int = 0
    short_ledgers: int = 0
    small_caches: int = 0
    #: Which of QUORUMS a partition's ledgers have.
    quorums: int = 0
    #: Whether somebody looks whom nothing escapes (sim/witness.py).
    witness: int = 1

    @property
    def copies(self) -> tuple[int, int, int]:
        """E, Qw, Qa."""
        return QUORUMS[self.quorums % len(QUORUMS)]

    @property
    def is_cluster(self) -> bool:
        return self.brokers > 1 or self.cluster > 0


def draw_shape(seed: int) -> Shape:
    """One to three brokers, the usual quorums in half of the worlds, transactions in all of them;
    everything else is there in half of them, or more. Of the usual quorums one world in three has
    no bookie more than an ensemble needs; of the others all have one."""
    rng = random.Random(f"{seed}/shape")
    quorums = random.Random(f"{seed}/quorums").randrange(2 * len(QUORUMS))
    quorums = quorums if quorums < len(QUORUMS) else 0
    migrating = random.Random(f"{seed}/migrating_members")
    transactional = random.Random(f"{seed}/transactional")
    return Shape(
        quorums=quorums,
        brokers=(1, 1, 2, 2, 3)[rng.randrange(5)],
        cluster=rng.randrange(2),
        recoverers=rng.randrange(2),
        members=(0, 1, 2, 3)[rng.randrange(4)],
        consumer_members=(0, 2, 3)[random.Random(f"{seed}/consumer_members").randrange(3)],
        share_members=(0, 0, 2)[random.Random(f"{seed}/share_members").randrange(3)],
        streams_members=(0, 0, 2)[random.Random(f"{seed}/streams_members").randrange(3)],
        migrating_members=(0, 0, 0, 0, 0, 0, 2, 3)[migrating.randrange(8)],
        lookers=rng.randrange(2),
        pipeliners=random.Random(f"{seed}/pipeliners").randrange(2),
        retention=rng.randrange(2),
        keyed=1,
        transactional=(1, 2, 2)[transactional.randrange(3)],
        twins=int(transactional.random() < 0.3),
        acl_admins=(0, 0, 2)[random.Random(f"{seed}/acl_admins").randrange(3)],
        tellers=(0, 0, 3)[random.Random(f"{seed}/tellers").randrange(3)],
        short_queues=int(rng.random() < 0.3),
        short_ledgers=int(rng.random() < 0.3),
        small_caches=int(rng.random() < 0.3),
        # Without a spare one there is no other in the place of one that fails.
        bookies=max(4, QUORUMS[quorums][0] + 1) if quorums else (3, 4, 4)[rng.randrange(3)],
    )
