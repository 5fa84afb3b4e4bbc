"""MetadataStore on ZooKeeper, through kazoo; the same nodes that Java programs see.

Reads are asked again on a new connection until the operation's deadline. A change whose reply was
lost is looked at on the new connection, after a `sync`, before anything is decided
(`zookeeper_outcome`): it counts as done, or is sent again, or, if neither can be known, raises
MetadataUnknownOutcomeError. A change that was never given to ZooKeeper raises
MetadataUnavailableError.

    zookeeper_session     the connection and the session, requests, slots, deadlines
    zookeeper_handler     kazoo's thread, and the way from it to the loop
    zookeeper_watches     watches that survive lost connections
    zookeeper_multi       parents of nodes to be made in a multi; its answer
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import trio
from kazoo import exceptions as kazoo_errors  # type: ignore[import-untyped]

from metadata import zookeeper_multi as multis
from metadata import zookeeper_outcome as outcomes
from metadata.limits import check_size, multi_bytes
from metadata.rules import ROOT, check_path, split_path
from metadata.store import (
    ANY_VERSION,
    NUMBERS_MAX,
    CreateOp,
    DeleteOp,
    MetadataError,
    MetadataUnavailableError,
    MetadataUnknownOutcomeError,
    Node,
    NodeExistsError,
    NoNodeError,
    SessionState,
)
from metadata.watches import Listeners
from metadata.zookeeper_errors import translated
from metadata.zookeeper_outcome import Outcome, Seen
from metadata.zookeeper_session import ReplyLostError, Request, Session, ZooKeeperOptions
from metadata.zookeeper_watches import ZooKeeperWatches

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from metadata.store import Op
    from metadata.watches import LocalWatch
    from metadata.zookeeper_handler import Result

logger = logging.getLogger(__name__)

#: How often a change is sent, or missing parents are made, before it is given up.
_TRIES_MAX = 10
_SEQUENCE_DIGITS = 10


class ZooKeeperStore:
    """Implements `metadata.store.MetadataStore`. Watches and listeners are bounded by their users,
    requests by `options.request_count_max`."""

    def __init__(self, options: ZooKeeperOptions) -> None:
        self._options = options
        self._session = Session(options, self._session_changed)
        self._watches = ZooKeeperWatches(self._session, self._full)
        self._listeners = Listeners()
        self._finished: trio.Event | None = None
        #: (path, zxid) of changes that counted as happened after a lost reply. Two tasks that lost
        #: the same change must not both have done it.
        self._claims: set[tuple[str, int]] = set()
        self._unsettled_count = 0
        #: There may be nodes of numbers that were taken.
        self._has_leftovers = False

    # -- the session -----------------------------------------------------------------------------

    @property
    def state(self) -> SessionState:
        return self._session.state

    def subscribe(self, listener: Callable[[SessionState], None]) -> Callable[[], None]:
        return self._listeners.add(listener)

    def _session_changed(self, state: SessionState) -> None:
        # First of all that is sent on a new connection: what was read after a reply was lost must
        # know of what became of it, and the new server may be behind the old one's leader.
        if state is SessionState.CONNECTED:
            self._session.send(Request(_nothing), _syncer(ROOT))
        self._watches.session_changed(state)
        self._listeners.tell(state)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Connects, makes the chroot, serves until `aclose` or cancellation.
        MetadataUnavailableError if there is no connection within the operation timeout, or the
        login is refused; OSError for TLS files that cannot be used."""
        assert self._finished is None, "run() was called before"
        self._finished = trio.Event()
        try:
            self._session.open()
            await self._session.wait_connected(self._deadline())
            for folder in multis.parents(self._options.chroot + "/x"):
                await self._make_folder(folder, folder, self._deadline())
            # From here on there is a transaction id that all of ours are greater than.
            sends = [_syncer(ROOT), lambda client: client.exists_async(ROOT)]
            await self._session.ask_many(ROOT, self._deadline(), sends)
            task_status.started()
            await self._session.serve()
        finally:
            with trio.CancelScope(shield=True):
                await self._session.close()
            self._finished.set()

    async def aclose(self) -> None:
        """Ends the session: its ephemeral nodes are gone on return, if ZooKeeper answers."""
        await self._session.close()
        if self._finished is not None:
            await self._finished.wait()

    # -- reads -----------------------------------------------------------------------------------

    async def get(self, path: str) -> Node:
        full = self._full(path)
        data, stat = await self._read(path, lambda client: client.get_async(full))
        return Node(data or b"", stat.version)

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        if not paths:
            await trio.lowlevel.checkpoint()
            return []
        deadline = self._deadline()
        sends = {path: _getter(self._full(path)) for path in paths}
        found: dict[str, Node | None] = {}
        for _ in range(_TRIES_MAX):
            requests = await self._session.ask_many(paths[0], deadline, list(sends.values()))
            for path, request in zip(list(sends), requests, strict=True):
                if request.error is None:
                    data, stat = request.value
                    found[path] = Node(data or b"", stat.version)
                elif isinstance(request.error, kazoo_errors.NoNodeError):
                    found[path] = None
                elif isinstance(request.error, ReplyLostError):
                    continue
                else:
                    raise translated(path, request.error) from request.error
                del sends[path]
            if not sends:
                return [found[path] for path in paths]
        raise _lost_too_often(paths[0])

    async def exists(self, path: str) -> bool:
        full = self._full(path)
        return await self._read(path, lambda client: client.exists_async(full)) is not None

    async def sync(self, path: str) -> None:
        """Flushes the way from the leader to the server of this session. A connection to another
        server keeps that: ZooKeeper refuses a session that has seen more than the server has."""
        full = self._full(path)
        await self._read(path, lambda client: client.sync_async(full))

    async def owns(self, path: str) -> bool:
        full = self._full(path)
        stat = await self._read(path, lambda client: client.exists_async(full))
        return stat is not None and stat.ephemeralOwner == self._session.session_id

    async def children(self, path: str) -> list[str]:
        full = self._full(path)
        names = await self._read(path, lambda client: client.get_children_async(full))
        if full == ROOT:
            # ZooKeeper's own, which is none of ours to use.
            names = [name for name in names if name != "zookeeper"]
        return sorted(names)

    def watch(self, path: str) -> LocalWatch:
        check_path(path)
        return self._watches.add(("node", path))

    def watch_children(self, path: str) -> LocalWatch:
        check_path(path)
        return self._watches.add(("children", path))

    async def _read(self, path: str, send: Callable[[Any], Result]) -> Any:  # noqa: ANN401
        deadline = self._deadline()
        for _ in range(_TRIES_MAX):
            try:
                return await self._session.ask(path, deadline, send)
            except ReplyLostError:
                continue
            except kazoo_errors.KazooException as error:
                raise translated(path, error) from error
        raise _lost_too_often(path)

    # -- changes ---------------------------------------------------------------------------------

    async def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequence: bool = False,
        make_parents: bool = False,
    ) -> str:
        check_path(path + "0" if sequence else path)
        check_size(path, len(data))
        deadline = self._deadline()
        if path == ROOT and not sequence:
            raise NodeExistsError(path, "the root always exists")
        # A slash at the end stays: the number is a name of its own then.
        full = self._options.chroot + path
        data = bytes(data)

        def send(client: Any) -> Result:  # noqa: ANN401
            return client.create_async(  # type: ignore[no-any-return]
                full, data, ephemeral=ephemeral, sequence=sequence
            )

        async def look(lost: ReplyLostError) -> tuple[Outcome, str]:
            if sequence:
                return await self._look_for_sequence(path, data, ephemeral, lost, deadline)
            seen = (await self._look([path], deadline))[path]
            session_id = self._session.session_id if ephemeral else None
            outcome = outcomes.of_create(seen, data, session_id, lost.zxid)
            if outcome is Outcome.HAPPENED and not self._claim(path, seen):
                outcome = Outcome.NOT_HAPPENED
            if seen is None:
                self._check_session(path, ephemeral, lost)
            return outcome, full

        for _ in range(_TRIES_MAX):
            try:
                made = await self._change(path, deadline, send, look)
            except NoNodeError:
                if not make_parents:
                    raise
                await self._make_parents(path, deadline)
            else:
                return made.removeprefix(self._options.chroot)  # type: ignore[no-any-return]
        raise MetadataUnavailableError(path, "its parents are deleted as soon as they are made")

    async def _make_parents(self, path: str, deadline: float) -> None:
        """From the highest one down; those that exist are left."""
        for parent in multis.parents(path):
            # NoNode: a parent was deleted meanwhile; `create` tries once more.
            with suppress(NoNodeError):
                await self._make_folder(path, self._full(parent), deadline)

    async def _make_folder(self, path: str, full: str, deadline: float) -> None:
        """A lasting node without data; fine if there is one. Errors name `path`."""
        for _ in range(_TRIES_MAX):
            try:
                await self._session.ask(path, deadline, lambda client: client.create_async(full))
            except ReplyLostError:
                continue
            except kazoo_errors.NodeExistsError:
                return
            except kazoo_errors.KazooException as error:
                raise translated(path, error) from error
            return
        raise _lost_too_often(path)

    async def take_numbers(self, path: str, count: int) -> list[int]:
        """By ephemeral sequence nodes, as BookKeeper's clients do: all are made in one transaction,
        and deleted in another, which nobody waits for."""
        assert 0 < count <= NUMBERS_MAX
        check_path(path + "0")
        deadline = self._deadline()
        full = self._options.chroot + path
        for _ in range(_TRIES_MAX):
            try:
                made = await self._session.ask(
                    path, deadline, lambda client: multis.create_numbered(client, full, count)
                )
            except ReplyLostError as error:
                self._has_leftovers = True
                raise MetadataUnknownOutcomeError(path, "the reply was lost") from error
            except kazoo_errors.KazooException as error:
                raise translated(path, error) from error
            refused = next((each for each in made if isinstance(each, Exception)), None)
            if refused is None:
                left = await self._leftovers(path, deadline) if self._has_leftovers else []
                self._delete_soon(list(dict.fromkeys([*made, *left])))
                return [int(each[len(full) :]) for each in made]
            if not isinstance(refused, kazoo_errors.NoNodeError):
                raise translated(path, refused) from refused
            await self._make_parents(path, deadline)
        raise MetadataUnavailableError(path, "its parents are deleted as soon as they are made")

    def _delete_soon(self, paths: Sequence[str]) -> None:
        """Nothing depends on these nodes, and they end with the session."""

        def told() -> None:
            is_done = request.error is None and not any(
                isinstance(each, Exception) for each in request.value
            )
            self._has_leftovers |= not is_done

        if self._session.state is not SessionState.CONNECTED:
            self._has_leftovers = True
            return
        request = Request(told)
        self._session.send(request, lambda client: multis.delete_all(client, paths))

    async def _leftovers(self, path: str, deadline: float) -> list[str]:
        """This session's nodes of numbers, of which some were not deleted, as a connection was
        lost. Full paths. Best effort: those that are not found are looked for the next time."""
        self._has_leftovers = False
        parent, prefix = split_path(path)
        try:
            names = [name for name in await self.children(parent) if name.startswith(prefix)]
            paths = [f"{parent.rstrip('/')}/{name}" for name in names[:NUMBERS_MAX]]
            sends = [_getter(self._full(each)) for each in paths]
            found = await self._session.ask_many(path, deadline, sends)
        except MetadataError:
            self._has_leftovers = True
            return []
        return [
            self._full(each)
            for each, request in zip(paths, found, strict=True)
            if request.error is None and request.value[1].ephemeralOwner == self._session.session_id
        ]

    async def put(self, path: str, data: bytes, version: int) -> int:
        full = self._full(path)
        check_size(path, len(data))
        deadline = self._deadline()
        data = bytes(data)

        async def look(lost: ReplyLostError) -> tuple[Outcome, int]:
            seen = (await self._look([path], deadline))[path]
            outcome = outcomes.of_put(seen, data, version, lost.zxid)
            if outcome is Outcome.HAPPENED and not self._claim(path, seen):
                outcome = Outcome.NOT_HAPPENED
            return outcome, 0 if seen is None else seen.version

        def send(client: Any) -> Result:  # noqa: ANN401
            return client.set_async(full, data, version)  # type: ignore[no-any-return]

        answer = await self._change(path, deadline, send, look, version)
        return answer if isinstance(answer, int) else int(answer.version)

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        full = self._full(path)
        if path == ROOT:
            raise MetadataError(path, "the root cannot be deleted")
        deadline = self._deadline()

        async def look(lost: ReplyLostError) -> tuple[Outcome, None]:
            seen = (await self._look([path], deadline))[path]
            return outcomes.of_delete(seen, lost.zxid), None

        await self._change(
            path, deadline, lambda client: client.delete_async(full, version), look, version
        )

    async def multi(self, ops: Sequence[Op]) -> None:
        for op in ops:
            check_path(op.path)
            if op.path == ROOT and isinstance(op, DeleteOp):
                raise MetadataError(ROOT, "the root cannot be deleted")
            if op.path == ROOT and isinstance(op, CreateOp):
                raise NodeExistsError(ROOT, "the root always exists")
        if not ops:
            return
        check_size(ops[0].path, multi_bytes(ops))
        deadline = self._deadline()
        for _ in range(_TRIES_MAX):
            steps = multis.plan(ops, await self._which_exist(multis.parents_to_look_for(ops)))
            refused = multis.refusal(steps, await self._commit(ops, steps, deadline))
            if refused is None:
                return
            step, error = refused
            if not step.is_stale(error):
                origin = step.origin
                raise translated(origin.path, error, getattr(origin, "version", None)) from error
        raise MetadataUnavailableError(ops[0].path, "parents come and go all the time")

    async def _which_exist(self, paths: Sequence[str]) -> dict[str, bool]:
        nodes = await self.get_many(paths) if paths else []
        return {path: node is not None for path, node in zip(paths, nodes, strict=True)}

    async def _commit(
        self, ops: Sequence[Op], steps: Sequence[multis.Step], deadline: float
    ) -> Sequence[object]:
        """kazoo's answers, one for each step; none if it is known only that all was done."""

        async def look(lost: ReplyLostError) -> tuple[Outcome, list[object]]:
            seen = await self._look([op.path for op in ops], deadline)
            return outcomes.of_multi(ops, seen, self._session.session_id, lost.zxid), []

        return await self._change(  # type: ignore[no-any-return]
            ops[0].path, deadline, lambda client: multis.commit(client, steps, self._full), look
        )

    # -- changes whose reply was lost ------------------------------------------------------------

    async def _change(
        self,
        path: str,
        deadline: float,
        send: Callable[[Any], Result],
        look: Callable[[ReplyLostError], Awaitable[tuple[Outcome, Any]]],
        version: int | None = None,
    ) -> Any:  # noqa: ANN401
        """kazoo's answer, or `look`'s result if the change happened and its reply was lost."""
        for _ in range(_TRIES_MAX):
            try:
                return await self._session.ask(path, deadline, send)
            except ReplyLostError as error:
                lost = error
            except kazoo_errors.KazooException as error:
                raise translated(path, error, version) from error
            self._unsettled_count += 1
            try:
                outcome, result = await look(lost)
            finally:
                self._unsettled_count -= 1
                if self._unsettled_count == 0:
                    self._claims.clear()
            logger.info("zookeeper reply lost path=%s outcome=%s", path, outcome.name)
            if outcome is Outcome.HAPPENED:
                return result
            if outcome is Outcome.UNKNOWN:
                raise MetadataUnknownOutcomeError(
                    path, "the reply was lost, and what is there now does not tell what happened"
                )
        raise _lost_too_often(path)

    async def _look(self, paths: Sequence[str], deadline: float) -> dict[str, Seen | None]:
        """What is at the paths, when all that was sent before the loss is done or never will be.
        MetadataUnknownOutcomeError if it cannot be read."""
        paths = list(dict.fromkeys(paths))
        sends = [_getter(self._full(path)) for path in paths]
        requests = await self._ask_synced(paths[0], sends, deadline)
        return {path: _seen(path, request) for path, request in zip(paths, requests, strict=True)}

    async def _ask_synced(
        self, path: str, sends: Sequence[Callable[[Any], Result]], deadline: float
    ) -> list[Request]:
        """As `ask_many`, of a server that has caught up with the one that was lost."""
        sends = [_syncer(ROOT), *sends]
        for _ in range(_TRIES_MAX):
            try:
                synced, *requests = await self._session.ask_many(path, deadline, sends)
            except MetadataUnavailableError as error:
                raise _not_looked(path, error) from error
            if any(isinstance(request.error, ReplyLostError) for request in (synced, *requests)):
                continue
            # Else what was read came from another server than the one that was synced.
            if synced.connection_number == requests[-1].connection_number:
                if synced.error is not None:
                    raise _not_looked(path, synced.error)
                return requests
        raise _not_looked(path, _lost_too_often(path))

    async def _look_for_sequence(
        self, path: str, data: bytes, ephemeral: bool, lost: ReplyLostError, deadline: float
    ) -> tuple[Outcome, str]:
        """A sequence node's number went with the reply: it is looked for among its siblings. Of
        lasting ones it cannot be known whose they are."""
        parent, prefix = split_path(path) if not path.endswith("/") else (path[:-1] or ROOT, "")
        full = self._full(parent)
        (request,) = await self._ask_synced(
            path, [lambda client: client.get_children_async(full)], deadline
        )
        if isinstance(request.error, kazoo_errors.NoNodeError):
            return Outcome.NOT_HAPPENED, path
        if request.error is not None:
            raise _not_looked(path, request.error)
        numbers = [
            name
            for name in sorted(request.value)
            if name.startswith(prefix)
            and name[len(prefix) :].isdigit()
            and len(name) == len(prefix) + _SEQUENCE_DIGITS
        ]
        # Newest first: a parent's counter only rises.
        for name in reversed(numbers):
            sibling = f"{parent.rstrip('/')}/{name}"
            seen = (await self._look([sibling], deadline))[sibling]
            if seen is None:
                continue
            if seen.created_zxid <= lost.zxid:
                break
            owner = self._session.session_id if ephemeral else 0
            if seen.data == data and seen.owner == owner:
                if not ephemeral:
                    return Outcome.UNKNOWN, path
                if self._claim(sibling, seen):
                    return Outcome.HAPPENED, self._full(sibling)
        self._check_session(path, ephemeral, lost)
        return Outcome.NOT_HAPPENED, path

    def _check_session(self, path: str, ephemeral: bool, lost: ReplyLostError) -> None:
        """A node of the session that has ended is gone, and its owner is told of that: it is not
        made in the new session behind the owner's back."""
        if ephemeral and lost.session_id != self._session.session_id:
            raise MetadataUnavailableError(path, "the session has ended, and the node with it")

    def _claim(self, path: str, seen: Seen | None) -> bool:
        assert seen is not None
        claim = (path, seen.modified_zxid)
        if claim in self._claims:
            return False
        self._claims.add(claim)
        return True

    # -- paths and time --------------------------------------------------------------------------

    def _full(self, path: str) -> str:
        """With the chroot. ValueError as `check_path`."""
        check_path(path)
        return path if not self._options.chroot else self._options.chroot + path.rstrip("/")

    def _deadline(self) -> float:
        return trio.current_time() + self._options.operation_timeout_ms / 1000


def _nothing() -> None:
    """Of a request whose answer tells nothing: those behind it wait for it at the server."""


def _getter(full: str) -> Callable[[Any], Result]:
    return lambda client: client.get_async(full)


def _syncer(full: str) -> Callable[[Any], Result]:
    return lambda client: client.sync_async(full)


def _seen(path: str, request: Request) -> Seen | None:
    if isinstance(request.error, kazoo_errors.NoNodeError):
        return None
    if request.error is not None:
        raise _not_looked(path, request.error)
    data, stat = request.value
    return Seen(data or b"", stat.version, stat.czxid, stat.mzxid, stat.ephemeralOwner)


def _lost_too_often(path: str) -> MetadataUnavailableError:
    return MetadataUnavailableError(path, f"the reply was lost {_TRIES_MAX} times")


def _not_looked(path: str, error: Exception) -> MetadataUnknownOutcomeError:
    return MetadataUnknownOutcomeError(path, f"the reply was lost, and it cannot be read: {error}")
