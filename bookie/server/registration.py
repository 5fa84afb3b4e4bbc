"""A bookie's place in the metadata: that it is there, where, and who it is (docs/formats.md).

`<root>/available/<bookie id>`, or `available/readonly/<bookie id>`, is ephemeral and holds the
bookie's service info. `<root>/cookies/<bookie id>` stays, and holds the cookie that each of the
bookie's directories has too: a bookie that comes back with an empty disk must not answer «no such
entry» (invariants K), so it is refused.

A session that was lost is no reason to stop serving: fencing protects. The bookie registers anew.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING

import trio

from bookie.cookie import parse_cookie
from bookie.errors import BookieStartError
from metadata.store import MetadataError, NodeExistsError, NoNodeError, SessionState
from runtime.logs import kv
from wire.bookkeeper.records import encode_service_info

if TYPE_CHECKING:
    from bookie.cookie import Cookie
    from metadata.store import MetadataStore, Node
    from wire.bookkeeper.records import BookieServiceInfo

logger = logging.getLogger(__name__)

RETRY_SECONDS = 1.0


class Registration:
    """Keeps one bookie registered while `run` runs."""

    def __init__(
        self, store: MetadataStore, root: str, bookie_id: str, info: BookieServiceInfo
    ) -> None:
        self._store = store
        self._writable_path = f"{root}/available/{bookie_id}"
        self._read_only_path = f"{root}/available/readonly/{bookie_id}"
        self._bookie_id = bookie_id
        self._data = encode_service_info(info)
        self._is_read_only = False
        self._wanted = trio.Event()
        self.is_registered = False

    def set_read_only(self, is_read_only: bool) -> None:
        """Moves the bookie to where it belongs; writers choose among the writable ones only."""
        if is_read_only != self._is_read_only:
            self._is_read_only = is_read_only
            self._wanted.set()

    async def run(
        self,
        session_timeout_ms: int,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Registers, then keeps it so until cancelled; then it is taken back. BookieStartError if
        another bookie of that id stays registered for longer than a session can outlive its end."""
        unsubscribe = self._store.subscribe(self._session_changed)
        try:
            await self._wait_for_old_session(session_timeout_ms)
            while True:
                self._wanted = trio.Event()
                try:
                    await self._place()
                except MetadataError as error:
                    logger.warning("bookie_not_registered", kv(bookie=self._bookie_id, error=error))
                    await trio.sleep(RETRY_SECONDS)
                    continue
                if not self.is_registered:
                    self.is_registered = True
                    logger.info("bookie_registered", kv(bookie=self._bookie_id))
                    task_status.started()
                    task_status = trio.TASK_STATUS_IGNORED
                await self._wanted.wait()
        finally:
            unsubscribe()
            with trio.move_on_after(RETRY_SECONDS, shield=True):
                for path in (self._writable_path, self._read_only_path):
                    with suppress(MetadataError):
                        if await self._store.owns(path):
                            await self._store.delete(path)

    def _session_changed(self, state: SessionState) -> None:
        if state is SessionState.CONNECTED:
            self._wanted.set()

    async def _wait_for_old_session(self, timeout_ms: int) -> None:
        """Our own last life's nodes vanish with its session; somebody else's would stay."""
        watches = [self._store.watch(path) for path in self._paths]
        try:
            with trio.move_on_after(timeout_ms / 1000 + RETRY_SECONDS):
                while await self._has_foreign_node():
                    with trio.move_on_after(RETRY_SECONDS):
                        await watches[0].changed()
                return
            raise BookieStartError(
                f"bookie {self._bookie_id} is registered by another process: its node under "
                f"{self._writable_path} or {self._read_only_path} stays"
            )
        finally:
            for watch in watches:
                watch.close()

    @property
    def _paths(self) -> tuple[str, str]:
        return self._writable_path, self._read_only_path

    async def _has_foreign_node(self) -> bool:
        await self._store.sync(self._writable_path)
        for path in self._paths:
            if await self._store.exists(path) and not await self._store.owns(path):
                return True
        return False

    async def _place(self) -> None:
        wanted, other = self._writable_path, self._read_only_path
        if self._is_read_only:
            wanted, other = other, wanted
        # First there, then gone from here: a bookie is never nowhere.
        with suppress(NodeExistsError):
            await self._store.create(wanted, self._data, ephemeral=True, make_parents=True)
        if not await self._store.owns(wanted):
            raise MetadataError(wanted, "is a node of another session")
        with suppress(NoNodeError):
            await self._store.delete(other)


class MetadataCookie:
    """The metadata's copy of a bookie's cookie (Cookie.java, LegacyCookieValidation.java)."""

    def __init__(self, store: MetadataStore, root: str, cookie: Cookie) -> None:
        self._store = store
        self._path = f"{root}/cookies/{cookie.bookie_id}"
        self._cookie = cookie
        self._stored: Node | None = None

    async def check(self, has_cookie: bool, is_expansion_allowed: bool) -> None:
        """Before the bookie starts; `has_cookie`: its directories have one. BookieStartError."""
        self._stored = (await self._store.get_many([self._path]))[0]
        if self._stored is None:
            return
        if not has_cookie:
            raise BookieStartError(
                f"bookie {self._cookie.bookie_id}: {self._path} exists, and the directories are "
                "empty: a disk was lost or is not mounted. If its data is lost for good, "
                "decommission the bookie first"
            )
        text = self._stored.data.decode(errors="replace")
        if text == self._cookie.encode() or (is_expansion_allowed and self._is_smaller(text)):
            return
        raise BookieStartError(
            f"bookie {self._cookie.bookie_id}: {self._path} is {text!r}, and its directories' "
            f"cookie is {self._cookie.encode()!r}"
        )

    def _is_smaller(self, text: str) -> bool:
        try:
            stored = parse_cookie(text)
        except ValueError:
            return False
        return set(stored.ledger_directories) <= set(self._cookie.ledger_directories)

    async def keep(self, has_ledgers: bool) -> None:
        """Once the bookie has started, before it is registered: stores the cookie. BookieStartError
        if the bookie has ledgers, and the metadata had no cookie."""
        data = self._cookie.encode().encode()
        if self._stored is not None:
            if self._stored.data != data:
                await self._store.put(self._path, data, self._stored.version)
            return
        if has_ledgers:
            raise BookieStartError(
                f"bookie {self._cookie.bookie_id} has ledgers, and {self._path} does not exist: "
                "they are another cluster's, or the bookie was decommissioned"
            )
        # Also for a bookie that ended between its first start and this line.
        await self._store.create(self._path, data, make_parents=True)
