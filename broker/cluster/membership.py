"""Membership: this broker's registration, and who else is registered.

    /quire/brokers/<id>   ephemeral: {"format": 1, "incarnation", "listeners":
                          {name: [host, port, protocol]}, "rack", "state", "version",
                          "place" (if it is known), "can_write": false (if it cannot),
                          "chain_format" (the newest of partitions' documents that it reads),
                          "transaction_version" (if it serves transactions),
                          "group_version" (if it serves consumer groups),
                          "share_version" (if it serves share groups),
                          "streams_version" (if it serves streams groups)}
    /quire/brokers/<id>-asked-<incarnation>   ephemeral: a rival's question (below)

What was known stays known while metadata cannot be reached. A session that was lost is followed by
a registration of the same life, if nobody else took the id; `registered` then counts one up, and
everybody reads anew. Nothing that is acknowledged depends on any of this (broker/cluster/
ownership.py): a registration says who is worth asking, not who may write.

A broker that was killed and is started again finds its own registration, as the session lives on
for a while, and is not to wait for its end. That it is its own it knows for certain if it was made
at the same *place*, by a process that listened at the very addresses at which this one listens now.
Where only the addresses that clients are told are the same, a rival may have the same id (two
machines of one configuration). Then it is asked: it answers by writing its registration once more.
Who does not answer in RIVAL_SECONDS is dead, or cut off from metadata, and is replaced.
"""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING

import trio

from broker.cluster.balance import BrokerState, Candidate
from broker.cluster.ownership import Incarnation
from metadata.store import (
    BadVersionError,
    CreateOp,
    DeleteOp,
    MetadataError,
    NodeExistsError,
    NoNodeError,
    SessionState,
)
from runtime.config import ConfigError
from runtime.logs import kv
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from metadata.store import MetadataStore, Node, Watch

logger = logging.getLogger(__name__)

BROKERS_PATH = "/quire/brokers"
FORMAT = 1
RETRY_SECONDS = 1.0
#: The newest format of partitions' documents that those read who do not say it.
CHAIN_FORMAT_UNTOLD = 2
#: How long a registration of another life under our id may stay: longer than a session lives on.
TAKEN_WAIT_SECONDS = 60.0
#: How long one that may be a rival has for its answer, and how often we look.
RIVAL_SECONDS = 5.0
RIVAL_LOOK_SECONDS = 0.1

#: In the name of a rival's question, behind the id.
_ASKED = "-asked-"


class RegistrationFormatError(ValueError):
    """A stored registration is none."""


@dataclass(slots=True, frozen=True)
class Registration:
    """What a broker tells the others about itself. `listeners`: name -> (host, port, protocol)."""

    incarnation: Incarnation
    listeners: Mapping[str, tuple[str, int, str]]
    rack: str | None = None
    state: BrokerState = BrokerState.RUNNING
    version: str = ""
    #: Where it listens: `runtime.net.Net.place`, and the addresses that are bound there. Empty if
    #: it is not known.
    place: str = ""
    #: It reaches enough bookies.
    can_write: bool = True
    #: The newest format of partitions' documents that it reads (broker/log/life/chain.py).
    chain_format: int = CHAIN_FORMAT_UNTOLD
    #: The highest `transaction.version` whose APIs it serves (broker/cluster/features.py).
    transaction_version: int = 0
    #: The same of `group.version`.
    group_version: int = 0
    #: The same of `share.version`.
    share_version: int = 0
    #: The same of `streams.version`.
    streams_version: int = 0

    @property
    def node_id(self) -> int:
        return self.incarnation.node_id

    @property
    def candidate(self) -> Candidate:
        return Candidate(self.node_id, self.rack, self.state, self.can_write)

    def to_bytes(self) -> bytes:
        document: dict[str, object] = {
            "format": FORMAT,
            "incarnation": self.incarnation.token,
            "listeners": {name: list(where) for name, where in self.listeners.items()},
            "rack": self.rack,
            "state": self.state.value,
            "version": self.version,
        }
        if self.place:
            document["place"] = self.place
        if not self.can_write:
            document["can_write"] = False
        if self.chain_format != CHAIN_FORMAT_UNTOLD:
            document["chain_format"] = self.chain_format
        if self.transaction_version:
            document["transaction_version"] = self.transaction_version
        if self.group_version:
            document["group_version"] = self.group_version
        if self.share_version:
            document["share_version"] = self.share_version
        if self.streams_version:
            document["streams_version"] = self.streams_version
        return json.dumps(document, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, node_id: int, data: bytes) -> Registration:
        """RegistrationFormatError."""
        try:
            document = json.loads(data)
            if document["format"] != FORMAT:
                raise RegistrationFormatError(f"unknown format {document['format']}")
            return cls(
                Incarnation(node_id, str(document["incarnation"])),
                {
                    str(name): (str(host), int(port), str(protocol))
                    for name, (host, port, protocol) in document["listeners"].items()
                },
                None if document["rack"] is None else str(document["rack"]),
                BrokerState(document["state"]),
                str(document["version"]),
                str(document.get("place", "")),
                document.get("can_write", True) is not False,
                int(document.get("chain_format", CHAIN_FORMAT_UNTOLD)),
                int(document.get("transaction_version", 0)),
                int(document.get("group_version", 0)),
                int(document.get("share_version", 0)),
                int(document.get("streams_version", 0)),
            )
        except RegistrationFormatError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RegistrationFormatError(f"damaged: {error!r}") from error


class Membership:
    """Reads are plain memory. `run` follows the others from its start, and keeps this broker's
    registration from the call of `register` on."""

    def __init__(self, store: MetadataStore, incarnation: Incarnation) -> None:
        self._store = store
        self.incarnation = incarnation
        #: Of this broker's registration.
        self.path = f"{BROKERS_PATH}/{incarnation.node_id}"
        self.live: dict[int, Registration] = {}
        self._own: Registration | None = None
        self._stored: Registration | None = None
        self.registered_count = 0
        self._told_count = 0
        self._taken_since: float | None = None
        #: Another life under our id is known to be a live rival's.
        self._has_rival = False
        #: Rivals' questions that were answered.
        self._answered: set[str] = set()
        self._changed = trio.Event()
        self._registered = trio.Event()
        self._listeners: list[Callable[[frozenset[Incarnation]], None]] = []
        self._watches: dict[int, trio.CancelScope] = {}

    # -- reads ----------------------------------------------------------------------------------

    @property
    def is_registered(self) -> bool:
        """Whether it ever was: a session that is lost does not change it."""
        return self.registered_count > 0

    @property
    def knows_itself(self) -> bool:
        """Whether it is registered in this session, and has seen itself among the living since:
        what it knew before is of another session."""
        has_looked = self._told_count == self.registered_count
        return self._stored is not None and has_looked and self.is_alive(self.incarnation)

    @property
    def is_told(self) -> bool:
        """Whether metadata has what this broker says of itself."""
        return self._stored is self._own

    def is_alive(self, incarnation: Incarnation) -> bool:
        found = self.live.get(incarnation.node_id)
        return found is not None and found.incarnation == incarnation

    def candidates(self) -> list[Candidate]:
        """The live brokers by id."""
        return [self.live[node_id].candidate for node_id in sorted(self.live)]

    @property
    def chain_format(self) -> int:
        """The newest format of partitions' documents that every live broker reads, as far as is
        known: one that starts later may read less, and cannot hold what has a newer one."""
        formats = [each.chain_format for each in self.live.values()]
        return min(formats, default=CHAIN_FORMAT_UNTOLD)

    def subscribe(self, listener: Callable[[frozenset[Incarnation]], None]) -> None:
        """`listener(lives that ended)` after each change, also of a state, and after this broker
        registered."""
        self._listeners.append(listener)

    async def is_registered_now(self) -> bool:
        """Asks metadata itself. MetadataError."""
        await self._store.sync(self.path)
        return self.is_ours((await self._store.get_many([self.path]))[0])

    # -- this broker's --------------------------------------------------------------------------

    async def register(self, own: Registration) -> None:
        """Returns once it is registered. `run` ends with ConfigError if another broker keeps the
        id for TAKEN_WAIT_SECONDS."""
        self._own = own
        self._changed.set()
        await self._registered.wait()

    def set_state(self, state: BrokerState) -> None:
        """Tells the others, as soon as it can."""
        if self._own is not None and self._own.state is not state:
            self._own = replace(self._own, state=state)
            self._changed.set()

    def set_can_write(self, can_write: bool) -> None:
        """As `set_state`."""
        if self._own is not None and self._own.can_write is not can_write:
            self._own = replace(self._own, can_write=can_write)
            self._changed.set()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """`started` once the others are known. Deletes the registration at the end. ConfigError."""
        children = self._store.watch_children(BROKERS_PATH)
        end_listening = self._store.subscribe(self._on_session)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._wake_when_changed, children)
                while True:
                    self._changed = trio.Event()
                    try:
                        await self._keep_registered()
                        await self._look(nursery)
                        if self.knows_itself:
                            self._registered.set()
                    except MetadataError as error:
                        logger.warning("brokers_not_read", kv(error=error))
                        await trio.sleep(RETRY_SECONDS)
                        continue
                    task_status.started()
                    task_status = trio.TASK_STATUS_IGNORED
                    wait_seconds = inf if self._taken_since is None else RETRY_SECONDS / 4
                    with trio.move_on_after(wait_seconds):
                        await self._changed.wait()
        finally:
            end_listening()
            children.close()
            with trio.move_on_after(RETRY_SECONDS, shield=True):
                await self._unregister()

    def _on_session(self, state: SessionState) -> None:
        if state is SessionState.LOST:
            self._stored = None
        self._changed.set()

    async def _wake_when_changed(self, watch: Watch) -> None:
        while True:
            await watch.changed()
            self._changed.set()

    async def _keep_registered(self) -> None:
        """One attempt, if one is due. ConfigError if another broker has the id for too long."""
        own = self._own
        if own is None or self._stored is own:
            return
        if await self._try_register(own):
            self._stored = own
            self._taken_since = None
            self.registered_count += 1
            logger.info("registered", kv(node_id=own.node_id, state=own.state.value))
        elif self._taken_since is None:
            self._taken_since = trio.current_time()
            logger.warning("waiting_for_node_id", kv(node_id=own.node_id))
        elif trio.current_time() > self._taken_since + TAKEN_WAIT_SECONDS:
            raise ConfigError("node.id", f"node.id={own.node_id} is another live broker's")

    async def _try_register(self, own: Registration) -> bool:
        """False: somebody else has the id. MetadataError; after MetadataUnknownOutcomeError it is
        to be called again: that the node is ours does not tell whether it has the new state."""
        data = own.to_bytes()
        # Versions do not tell our former life's node from one that another made since.
        await self._store.sync(self.path)
        try:
            node = await self._store.get(self.path)
        except NoNodeError:
            node = None
        try:
            if node is None:
                await self._store.create(self.path, data, ephemeral=True, make_parents=True)
            elif self.is_ours(node) and await self._store.owns(self.path):
                await self._store.put(self.path, data, node.version)
            elif self.registered_count == 0 and await self._is_former_life(node, own):
                await self._store.multi(
                    [DeleteOp(self.path, node.version), CreateOp(self.path, data, ephemeral=True)]
                )
            else:
                return False
        except (NodeExistsError, NoNodeError, BadVersionError):
            return False
        return True

    def is_ours(self, node: Node | None) -> bool:
        """Whether a registration under our id is of this life."""
        if node is None:
            return False
        try:
            found = Registration.from_bytes(self.incarnation.node_id, node.data)
        except RegistrationFormatError:
            return False
        return found.incarnation == self.incarnation

    async def _is_former_life(self, node: Node, own: Registration) -> bool:
        """MetadataError."""
        try:
            found = Registration.from_bytes(own.node_id, node.data)
        except RegistrationFormatError:
            return False
        if own.place and found.place == own.place:
            return True
        if self._has_rival or dict(found.listeners) != dict(own.listeners):
            return False
        self._has_rival = await self._is_answered(node)
        return not self._has_rival

    async def _is_answered(self, node: Node) -> bool:
        """Whether who registered `node` writes it again when it is asked to. MetadataError."""
        question = f"{self.path}{_ASKED}{self.incarnation.token}"
        with suppress(NodeExistsError):
            await self._store.create(question, ephemeral=True)
        try:
            with trio.move_on_after(RIVAL_SECONDS):
                while True:
                    await trio.sleep(RIVAL_LOOK_SECONDS)
                    if (await self._store.get(self.path)).version != node.version:
                        return True
            # The answer may be there, and this session's server behind it.
            await self._store.sync(self.path)
            return (await self._store.get(self.path)).version != node.version
        except NoNodeError:
            return False
        finally:
            with suppress(MetadataError):
                await self._store.delete(question)

    async def _answer(self, names: Sequence[str]) -> None:
        """Tells rivals that ask whether this broker lives. MetadataError."""
        prefix = f"{self.incarnation.node_id}{_ASKED}"
        asked = {name for name in names if name.startswith(prefix)}
        new = asked - self._answered
        self._answered &= asked
        if not new or self._stored is None:
            return
        node = await self._store.get(self.path)
        if self.is_ours(node) and await self._store.owns(self.path):
            with suppress(BadVersionError):
                await self._store.put(self.path, node.data, node.version)
            self._answered |= new
            logger.warning("rival_asked", kv(node_id=self.incarnation.node_id))

    async def _unregister(self) -> None:
        try:
            if self._stored is not None and await self.is_registered_now():
                await self._store.delete(self.path)
        except MetadataError as error:
            logger.warning("not_unregistered", kv(error=error))

    # -- the others -----------------------------------------------------------------------------

    async def _look(self, nursery: trio.Nursery) -> None:
        try:
            names = await self._store.children(BROKERS_PATH)
        except NoNodeError:
            names = []
        with suppress(NoNodeError):
            await self._answer(names)
        ids = [int(name) for name in names if name.isdecimal()]
        # Watched before they are read, so that no change of a state is missed.
        for node_id in ids:
            if node_id not in self._watches:
                self._watches[node_id] = trio.CancelScope()
                nursery.start_soon(self._watch_broker, node_id, self._watches[node_id])
        for node_id in set(self._watches) - set(ids):
            self._watches.pop(node_id).cancel()
        nodes = await self._store.get_many([f"{BROKERS_PATH}/{node_id}" for node_id in ids])
        live = {}
        for node_id, node in zip(ids, nodes, strict=True):
            if node is None:
                continue
            try:
                live[node_id] = Registration.from_bytes(node_id, node.data)
            except RegistrationFormatError as error:
                logger.warning("bad_registration", kv(node_id=node_id, error=error))
        self._take(live)

    async def _watch_broker(self, node_id: int, scope: trio.CancelScope) -> None:
        watch = self._store.watch(f"{BROKERS_PATH}/{node_id}")
        # What changed between the list and this watch is to be seen, too.
        self._changed.set()
        try:
            with scope:
                await self._wake_when_changed(watch)
        finally:
            watch.close()

    def _take(self, live: dict[int, Registration]) -> None:
        before, count = self.live, self.registered_count
        own = live.get(self.incarnation.node_id)
        if self._stored is not None and (own is None or own.incarnation != self.incarnation):
            # Deleted by hand, or somebody else's: registered anew, or waited for.
            self._stored = None
            self._changed.set()
        if live == before and count == self._told_count:
            return
        self._told_count = count
        ended = frozenset(
            old.incarnation
            for node_id, old in before.items()
            if node_id not in live or live[node_id].incarnation != old.incarnation
        )
        self.live = live
        states = " ".join(f"{node_id}:{live[node_id].state.value}" for node_id in sorted(live))
        logger.info("brokers", kv(live=len(live), ended=len(ended), states=states))
        for listener in self._listeners:
            listener(ended)
