"""Watches of the stores that live in this process.

A watch is a flag and an event. Changes between two looks are merged, so nothing queues up however
slow the watcher is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import trio

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from metadata.rules import Change
    from metadata.store import SessionState


class Registry(Protocol):
    def remove(self, key: Change, watch: LocalWatch) -> None: ...


class LocalWatch:
    """Implements `metadata.store.Watch`."""

    __slots__ = ("_event", "_key", "_registry", "owner")

    def __init__(self, registry: Registry, key: Change, owner: int) -> None:
        self._registry = registry
        self._key = key
        self._event = trio.Event()
        self.owner = owner

    async def changed(self) -> None:
        await self._event.wait()
        # Renewed before the return: a change during the watcher's own work is then a new one.
        self._event = trio.Event()

    def fire(self) -> None:
        self._event.set()

    def close(self) -> None:
        self._registry.remove(self._key, self)


class WatchRegistry:
    __slots__ = ("_watches",)

    def __init__(self) -> None:
        self._watches: dict[Change, set[LocalWatch]] = {}

    def add(self, key: Change, owner: int) -> LocalWatch:
        watch = LocalWatch(self, key, owner)
        self._watches.setdefault(key, set()).add(watch)
        return watch

    def remove(self, key: Change, watch: LocalWatch) -> None:
        """Fine if it is gone already."""
        watches = self._watches.get(key)
        if watches is not None:
            watches.discard(watch)
            if not watches:
                del self._watches[key]

    def notify(self, changes: Iterable[Change]) -> None:
        for change in changes:
            for watch in self._watches.get(change, ()):
                watch.fire()

    def session_ended(self, owner: int) -> None:
        """Fires all watches of a session: everything must be read again."""
        for watches in self._watches.values():
            for watch in watches:
                if watch.owner == owner:
                    watch.fire()

    def __len__(self) -> int:
        return sum(map(len, self._watches.values()))


class Listeners:
    """Those who want to know of the session's state (`MetadataStore.subscribe`)."""

    __slots__ = ("_listeners",)

    def __init__(self) -> None:
        self._listeners: dict[object, Callable[[SessionState], None]] = {}

    def add(self, listener: Callable[[SessionState], None]) -> Callable[[], None]:
        # A key of its own: the same function may listen twice.
        key = object()
        self._listeners[key] = listener

        def end() -> None:
            self._listeners.pop(key, None)

        return end

    def tell(self, state: SessionState) -> None:
        for listener in list(self._listeners.values()):
            listener(state)
