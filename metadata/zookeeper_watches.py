"""Watches on ZooKeeper's nodes: armed anew after every event and every lost connection.

A ZooKeeper watch tells of one change and is gone; those of a lost connection are gone too. So a
watch here remembers the transaction id of what it saw last, and fires when arming it shows another
one: no change is missed between an event and the next arming, nor while there was no connection,
and none is told twice. What is not known (the first arming had no connection, or its reply was
lost) counts as changed. A watch therefore fires one round trip after the event.

One watch on the server serves all that watch the same thing. A server's watch cannot be taken back:
one that nobody needs any more stays, and is used again if it is asked for, until its node changes.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from kazoo.exceptions import NoNodeError  # type: ignore[import-untyped]
from kazoo.protocol.states import EventType  # type: ignore[import-untyped]

from metadata.store import SessionState
from metadata.watches import LocalWatch
from metadata.zookeeper_session import Request

if TYPE_CHECKING:
    from collections.abc import Callable

    from metadata.rules import Change
    from metadata.zookeeper_handler import Result
    from metadata.zookeeper_session import Session

#: Transaction id of a thing that is not there, or that had no child yet.
_NOTHING = 0


class _Watched:
    """One thing that is watched; `known` is None if it is not known what the watchers saw."""

    __slots__ = ("armed", "event", "known", "path", "watches")

    def __init__(self, path: str) -> None:
        #: Always the same object: kazoo keeps a set of them for each path.
        self.event: Callable[[Any], None] | None = None
        #: With the chroot
        self.path = path
        #: An arming is on its way, or done and not fired.
        self.armed = False
        self.known: int | None = None
        self.watches: set[LocalWatch] = set()

    def fire(self) -> None:
        for watch in self.watches:
            watch.fire()


class ZooKeeperWatches:
    """Implements `metadata.watches.Registry`. `full_path` adds the chroot."""

    def __init__(self, session: Session, full_path: Callable[[str], str]) -> None:
        self._session = session
        self._full_path = full_path
        self._watched: dict[Change, _Watched] = {}

    def add(self, key: Change) -> LocalWatch:
        watched = self._watched.get(key)
        if watched is None:
            self._watched[key] = watched = _Watched(self._full_path(key[1]))
            watched.event = partial(self._event, key, watched)
        watch = LocalWatch(self, key, owner=0)
        watched.watches.add(watch)
        # Armed ahead of all that the watcher reads from now on: requests keep their order.
        if not watched.armed and self._session.state is SessionState.CONNECTED:
            self._arm(key, watched, is_first=True)
        return watch

    def remove(self, key: Change, watch: LocalWatch) -> None:
        watched = self._watched.get(key)
        if watched is not None:
            watched.watches.discard(watch)
            if not watched.watches and not watched.armed:
                del self._watched[key]

    def session_changed(self, state: SessionState) -> None:
        for key, watched in list(self._watched.items()):
            watched.armed = False
            if state is SessionState.LOST:
                watched.fire()
            if not watched.watches:
                del self._watched[key]
            elif state is SessionState.CONNECTED:
                self._arm(key, watched)

    def __len__(self) -> int:
        return sum(len(watched.watches) for watched in self._watched.values())

    def _arm(
        self, key: Change, watched: _Watched, *, is_first: bool = False, is_missing: bool = False
    ) -> None:
        """`is_missing`: wait for the node to be made, before its children can be watched."""
        watched.armed = True
        path, event = watched.path, watched.event

        def send(client: Any) -> Result:  # noqa: ANN401
            if key[0] == "node" or is_missing:
                return client.exists_async(path, watch=event)  # type: ignore[no-any-return]
            return client.get_children_async(  # type: ignore[no-any-return]
                path, watch=event, include_data=True
            )

        def told() -> None:
            self._armed(key, watched, request, is_first, is_missing)

        request = Request(told)
        self._session.send(request, send)

    def _armed(
        self, key: Change, watched: _Watched, request: Request, is_first: bool, is_missing: bool
    ) -> None:
        error, value = request.error, request.value
        is_children = key[0] == "children"
        if is_children and isinstance(error, NoNodeError):
            self._arm(key, watched, is_first=is_first, is_missing=True)
            return
        if error is not None:
            # With a lost connection the next one arms it. Else (no permission to read) there is
            # nothing to be told.
            watched.known = None
            return
        if is_missing and value is not None:
            # It was made between the two requests.
            self._arm(key, watched, is_first=is_first)
            return
        if value is None:
            seen = _NOTHING
        elif is_children:
            stat = value[1]
            seen = stat.pzxid if stat.cversion else _NOTHING
        else:
            seen = value.mzxid
        if watched.known != seen and not is_first:
            watched.fire()
        watched.known = seen

    def _event(self, key: Change, watched: _Watched, event: Any) -> None:  # noqa: ANN401
        # NONE tells of the connection: `session_changed` knows already.
        if event.type == EventType.NONE or self._watched.get(key) is not watched:
            return
        watched.armed = False
        if not watched.watches:
            del self._watched[key]
        elif self._session.state is SessionState.CONNECTED:
            self._arm(key, watched)
