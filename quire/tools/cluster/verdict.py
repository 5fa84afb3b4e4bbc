"""What the facts of a partition mean, in words: why it is stuck, or that it is not. Pure.

The checks go from what everything else depends on to what depends on all: metadata, who is to lead,
whether that broker lives and answers, its take-over, its bookies, its open ledger, old ledgers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledger.distribution import Schedule
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from broker.cluster.assignment import Assigned
    from broker.cluster.membership import Registration
    from broker.log.life.chain import Chain
    from quire.tools.cluster.facts import LedgerFacts, PageFacts

#: Work that waits for longer is stuck; less is a slow moment.
STUCK_MS = 2_000
MORE_BOOKIES = "Start bookies, or make space on those that are read-only; it goes on by itself."


@dataclass(slots=True, frozen=True)
class PartitionFacts:
    name: str
    assigned: Assigned | None
    brokers: Mapping[int, Registration | str]
    controller: int | None
    chain: Chain | None
    ledgers: Sequence[LedgerFacts]
    #: None: there is no broker to ask.
    page: PageFacts | None
    writable_bookies: Sequence[str]

    @property
    def leader(self) -> int | None:
        """Who is to lead it: as assigned, else as the chain says."""
        if self.assigned is not None:
            return self.assigned.leader if self.assigned.leader >= 0 else None
        if self.chain is not None and self.chain.owner is not None:
            return self.chain.owner.node_id
        return min(self.brokers, default=None)


@dataclass(slots=True, frozen=True)
class Verdict:
    is_stuck: bool
    #: Sentences, the cause first.
    words: tuple[str, ...]


def verdict(facts: PartitionFacts) -> Verdict:
    """The first cause that explains everything behind it; unreadable old data besides."""
    cause = _no_broker(facts) or _broker_state(facts) or _writing(facts)
    unreadable = _unreadable(facts)
    if cause:
        return Verdict(is_stuck=True, words=(*cause, *unreadable))
    if unreadable:
        return Verdict(is_stuck=True, words=unreadable)
    if facts.page is not None and facts.page.values is None:
        return Verdict(
            is_stuck=False,
            words=(
                f"Nothing wrong is seen from here, but broker {facts.leader} could not be asked: "
                f"{facts.page.error}.",
            ),
        )
    return Verdict(is_stuck=False, words=("It is not stuck: its leader serves it.",))


def _no_broker(facts: PartitionFacts) -> tuple[str, ...]:
    if facts.chain is None:
        return ("There is no document of its ledgers in metadata: the partition is lost to it.",)
    if not facts.brokers:
        return ("No broker is registered: start one.",)
    leader = facts.leader
    if leader is None or leader not in facts.brokers:
        who = "No broker is assigned" if leader is None else f"Broker {leader} is not registered"
        if facts.controller is None:
            return (f"{who}, and there is no controller that could assign another.",)
        return (f"{who}; controller {facts.controller} has yet to assign another.",)
    if isinstance(facts.brokers[leader], str):
        return (f"Broker {leader}: {facts.brokers[leader]}.",)
    return ()


def _broker_state(facts: PartitionFacts) -> tuple[str, ...]:
    page, leader = facts.page, facts.leader
    assert page is not None
    if page.values is None:
        if page.is_elsewhere:
            return (f"Broker {leader} is to lead it and has not begun to: see its log.",)
        if page.url is None:
            return ()
        return (
            f"Broker {leader} is registered, but does not answer at {page.url} ({page.error}): its "
            "process is stopped, hangs, or is cut off. When its session in metadata ends, another "
            "broker takes over; to have that now, end the process.",
        )
    state = page.values["state"]
    if state == "loading":
        seconds = int(page.values["waiting_ms"]) / 1000
        return _taking_over(
            facts, f"Broker {leader} is taking it over, since {seconds:.0f} s or more"
        )
    if state == "offline":
        return _taking_over(
            facts, f"Broker {leader} cannot take it over, and tries again (its log says more)"
        )
    return ()


def _tries(facts: PartitionFacts) -> tuple[str, ...]:
    """What its leader says of take-overs that failed, if it does."""
    values = facts.page.values if facts.page is not None else None
    count = int((values or {}).get("failed_take_overs") or 0)
    if values is None or count == 0:
        return ()
    tries = "1 try" if count == 1 else f"{count} tries in a row"
    return (f"{tries} failed before this; the last one: {values['last_failure']}.",)


def _taking_over(facts: PartitionFacts, words: str) -> tuple[str, ...]:
    return (*_taking_over_from(facts, words), *_tries(facts))


def _taking_over_from(facts: PartitionFacts, words: str) -> tuple[str, ...]:
    last = facts.ledgers[-1] if facts.ledgers else None
    if last is None:
        return (f"{words}.",)
    if last.metadata is None:
        return (f"{words}: the metadata of its last ledger cannot be read: {last.error}.",)
    missing = _silent(last)
    if missing and last.metadata.state.name != "CLOSED":
        quorum = last.metadata.ack_quorum_size
        return (
            f"{words}: ledger {last.ledger_id} is to be recovered, its ack quorum is {quorum}, "
            f"and of its bookies do not answer: {', '.join(missing)}.",
            "Start them, or one that has their disks.",
        )
    if missing:
        return (f"{words}: bookies of its last ledger do not answer: {', '.join(missing)}.",)
    return (f"{words}.",)


def _writing(facts: PartitionFacts) -> tuple[str, ...]:
    assert facts.page is not None
    values = facts.page.values
    if values is None:
        return ()
    wanted, copies = int(values["ack_quorum"]), int(values["write_quorum"])
    there = len(facts.writable_bookies)
    if values["is_suspended"]:
        return (
            f"It takes no records: a ledger needs {wanted} bookies that take writes (its ack "
            f"quorum; {copies} for all copies), and there "
            f"{'is' if there == 1 else 'are'} {there}. Producers get NOT_ENOUGH_REPLICAS; what was "
            "acknowledged is safe.",
            MORE_BOOKIES,
        )
    in_sync = max(wanted, int(values["min_insync_replicas"]))
    if there < in_sync:
        # Refused before they reach the partition, which therefore may look idle.
        return (
            f"It takes no records with acks=all: that needs {in_sync} bookies that take writes "
            "(the greater of its ack quorum and min.insync.replicas), and there "
            f"{'is' if there == 1 else 'are'} {there}. Producers get NOT_ENOUGH_REPLICAS.",
            MORE_BOOKIES,
        )
    waiting_ms = int(values["waiting_ms"])
    if waiting_ms < STUCK_MS:
        return ()
    held = f"{values['entries_in_flight']} entries in flight, {values['batches_queued']} queued"
    words = f"The oldest request waits for {waiting_ms / 1000:.0f} s or more ({held})"
    last = facts.ledgers[-1] if facts.ledgers else None
    silent = _silent(last) if last is not None else []
    if values["open_ledger"] is None:
        return (
            f"{words}: there is no open ledger, and none can be made: {there} bookies take writes, "
            f"{wanted} are needed.",
        )
    if silent:
        return (
            f"{words}: the open ledger {values['open_ledger']} needs {wanted} acks for each entry, "
            f"and of its bookies do not answer: {', '.join(silent)}.",
        )
    return (f"{words}, though all bookies of ledger {values['open_ledger']} answer: see its log.",)


def _unreadable(facts: PartitionFacts) -> tuple[str, ...]:
    """Old data that no live bookie has."""
    words = []
    for ledger in facts.ledgers:
        if ledger.metadata is None:
            words.append(f"Ledger {ledger.ledger_id} has no readable metadata: {ledger.error}.")
            continue
        lost = _lost_members(ledger)
        if lost:
            words.append(
                f"Ledger {ledger.ledger_id}, from offset {ledger.base_offset} on, has entries that "
                f"nobody can read: all that have a copy do not answer: {', '.join(lost)}."
            )
    return tuple(words)


def _silent(ledger: LedgerFacts) -> list[str]:
    """Of the last ensemble, who does not answer."""
    assert ledger.metadata is not None
    members = ledger.metadata.last_segment[1]
    return [name for name in members if not ledger.bookies[name].answers]


def _lost_members(ledger: LedgerFacts) -> list[str]:
    """The bookies of the write sets of which none answers, of any ensemble that has entries."""
    metadata = ledger.metadata
    assert metadata is not None
    if metadata.is_closed and metadata.last_entry_id < 0:
        return []
    schedule = Schedule(
        metadata.ensemble_size, metadata.write_quorum_size, metadata.ack_quorum_size
    )
    lost: dict[str, None] = {}
    for _, members in metadata.segments:
        for entry_id in range(metadata.ensemble_size):
            names = [members[index] for index in schedule.write_set(entry_id)]
            if not any(ledger.bookies[name].answers for name in names):
                lost |= dict.fromkeys(names)
    return list(lost)
