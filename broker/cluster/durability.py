"""How many copies a topic's entries get, and what clients are told of them.

Kafka's settings have BookKeeper's meaning here. A topic's *replication factor* is the write quorum
of its ledgers: each entry goes to so many bookies. An entry is acknowledged, with whatever acks,
when the ack quorum has it on disk; that is the majority of the copies, or `min.insync.replicas` if
that is more. `quire.ledger.*` settings of a topic win over both, and those of the broker are the
least that a topic gets.

What a client sees as replicas: as many node ids as there are copies. The leader's own id is always
the first, as tools expect; it stands for the first live bookie of the ensemble that is written to
(or was last written to). The others are ids of bookies: 2^30 and more, made of their names, so that
no broker has such an id. A bookie that takes no writes is not in the ISR, and shown by its own id.
So the sizes are true, as is who is missing: `kafka-topics --under-replicated-partitions`,
`--under-min-isr-partitions` and `--at-min-isr-partitions` say what they should.

In a cluster of several brokers the first ids are the brokers of the partition's assignment, the
preferred leader first, as far as there are copies for them: so tools that work on broker ids
(kafka-reassign-partitions, kafka-leader-election) see what they may change. Bookies' ids follow if
there are more copies than brokers. The ISR still counts copies: if two of three can be written it
has two ids, the leader's among them if that is in the list, brokers that are not there or not. A
broker that is not there is an *offline replica*, which takes nothing from the copies.
"""

from __future__ import annotations

import functools
import zlib
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from broker.cluster.config import BrokerConfig, TopicConfig
    from broker.cluster.topic import Topic

#: Node ids of bookies; brokers' are far below.
BOOKIE_NODE_ID_MIN = 1 << 30


class Copies(NamedTuple):
    """E >= Qw >= Qa of a ledger."""

    ensemble_size: int
    write_quorum: int
    ack_quorum: int

    def narrowed(self, bookie_count: int) -> Copies:
        """What is left of it with so few bookies: never less than the ack quorum."""
        ensemble_size = max(min(self.ensemble_size, bookie_count), self.ack_quorum)
        return Copies(ensemble_size, min(self.write_quorum, ensemble_size), self.ack_quorum)


def copies_of(topic: Topic, config: TopicConfig) -> Copies:
    """What the topic's next ledger is to have; `config` is the topic's in force."""
    own = topic.configs
    factor = topic.replication_factor or 0
    write_quorum = max(factor, config.quire_ledger_write_quorum)
    if "quire.ledger.write.quorum" in own:
        write_quorum = config.quire_ledger_write_quorum
    ensemble_size = max(write_quorum, config.quire_ledger_ensemble_size)
    if "quire.ledger.ack.quorum" in own:
        ack_quorum = config.quire_ledger_ack_quorum
    else:
        ack_quorum = max(config.quire_ledger_ack_quorum, config.min_insync_replicas)
        if write_quorum > config.quire_ledger_write_quorum:
            ack_quorum = max(ack_quorum, write_quorum // 2 + 1)
    return Copies(ensemble_size, write_quorum, min(ack_quorum, write_quorum))


def default_factor(name: str, broker: BrokerConfig) -> int | None:
    """The replication factor of a topic for which none was asked; None if the broker's settings
    say no more than that there is one copy at least."""
    factor = {
        "__consumer_offsets": broker.offsets_topic_replication_factor,
        "__transaction_state": broker.transaction_state_log_replication_factor,
        "__share_group_state": broker.share_coordinator_state_topic_replication_factor,
    }.get(name, broker.default_replication_factor)
    return factor if factor > 1 else None


@functools.lru_cache(1024)
def bookie_node_id(bookie: str) -> int:
    """The same everywhere and always; two bookies share one with a chance of one in 2^30."""
    return BOOKIE_NODE_ID_MIN | zlib.crc32(bookie.encode()) & (BOOKIE_NODE_ID_MIN - 1)


class Bookies:
    """Those that take writes now, as far as this broker knows. Plain reads of memory."""

    __slots__ = ("_writable",)

    def __init__(self, writable: Callable[[], Collection[str]]) -> None:
        self._writable = writable

    @property
    def writable(self) -> Collection[str]:
        return self._writable()

    @property
    def count(self) -> int:
        return len(self._writable())

    def node_ids(self) -> list[int]:
        return [bookie_node_id(bookie) for bookie in self._writable()]

    def is_short(self, copies: Copies, config: TopicConfig) -> bool:
        """Whether there are too few to acknowledge with acks=all (NOT_ENOUGH_REPLICAS)."""
        wanted, quorum = config.min_insync_replicas, copies.ack_quorum
        count = len(self._writable())
        return count < wanted or count < quorum or wanted > copies.write_quorum

    def replicas(
        self, leader: int, copies: Copies, ensemble: Sequence[str]
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Node ids: of all replicas, and of those in sync. `ensemble`: the bookies that are
        written to; empty if there is no ledger yet: then any that could be."""
        writable = self._writable()
        members = list(ensemble or sorted(writable))
        live = [bookie for bookie in members if bookie in writable]
        if len(members) > copies.write_quorum:
            # A stripe has some of them only: the worst is what counts.
            dead = [bookie for bookie in members if bookie not in writable]
            members = [*live[:1], *dead, *live[1:]][: copies.write_quorum]
            live = [bookie for bookie in members if bookie in writable]
        if not ensemble and len(members) < copies.write_quorum:
            members += [f"?{n}" for n in range(copies.write_quorum - len(members))]
        first = live[0] if live else members[0]
        ids = {bookie: bookie_node_id(bookie) for bookie in members if bookie != first}
        in_sync = tuple(ids[bookie] for bookie in live if bookie != first)
        return (leader, *ids.values()), (leader, *in_sync)

    def replicas_of_brokers(
        self,
        leader: int,
        brokers: Sequence[int],
        copies: Copies,
        ensemble: Sequence[str],
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """As `replicas`, with the ids of `brokers` (an assignment's list) in front."""
        all_ids, in_sync_ids = self.replicas(leader, copies, ensemble)
        first = tuple(brokers[: len(all_ids)])
        others = all_ids[len(first) :]
        missing_others = [node_id for node_id in others if node_id not in in_sync_ids]
        missing_count = len(all_ids) - len(in_sync_ids) - len(missing_others)
        # Which brokers stand for copies that are missing means nothing; the leader never does.
        stand_ins = [node_id for node_id in reversed(first) if node_id != leader][:missing_count]
        missing = {*missing_others, *stand_ins}
        replicas = first + others
        return replicas, tuple(node_id for node_id in replicas if node_id not in missing)
