"""The keys of one listener: read at the start, and again in the background (`KeySource`).

As Kafka's `RefreshingHttpsJwks`: again after each refresh time; when that fails, again and again
with a pause that doubles. A token by a key that is not known asks for one refresh; which key it was
is remembered for a minute, 16 of them at most, and while 16 are remembered none asks. The token
itself is refused: its client comes again. Nobody who logs in waits for a fetch.

Keys that were read stay until others were: a host that is away, or answers nonsense, takes nobody's
login away. Deviation: Kafka ends the start if the host is away then. Here the start waits for the
first answer, and goes on without; until keys come nobody can log in.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import trio

from broker.api import in_slices
from broker.security.sasl.oauth.keys_core import KID_CHARACTERS_MAX, JwksError, Keys, parsing_jwks
from runtime.documents import DocumentError
from runtime.logs import kv
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from runtime.env import Clock

logger = logging.getLogger(__name__)

UNKNOWN_KIDS_MAX = 16
UNKNOWN_KID_SECONDS = 60.0


@dataclass(slots=True, frozen=True)
class KeyTimes:
    """sasl.oauthbearer.jwks.endpoint.refresh.ms, .retry.backoff.ms and .retry.backoff.max.ms."""

    refresh_ms: int
    backoff_ms: int
    backoff_max_ms: int


class KeySource:
    """`fetch`: the bytes of a JWKS; DocumentError. `name` is where they come from, for the log."""

    def __init__(
        self,
        name: str,
        fetch: Callable[[], Awaitable[bytes]],
        clock: Clock,
        times: KeyTimes,
    ) -> None:
        self.name = name
        self._fetch = fetch
        self._clock = clock
        self._times = times
        self.keys = Keys()
        #: What they were read from.
        self._data: bytes | None = None
        self._wanted = trio.Event()
        #: kid -> `Clock.monotonic` until which it is remembered, the oldest first.
        self._unknown: dict[str, float] = {}
        self._is_failing = False

    def missing(self, kid: str) -> None:
        """A token was signed by this one, which is not among the keys."""
        if len(kid) > KID_CHARACTERS_MAX:
            return
        now = self._clock.monotonic()
        while self._unknown and next(iter(self._unknown.values())) <= now:
            del self._unknown[next(iter(self._unknown))]
        if kid in self._unknown or len(self._unknown) >= UNKNOWN_KIDS_MAX:
            return
        self._unknown[kid] = now + UNKNOWN_KID_SECONDS
        self._wanted.set()

    async def load(self) -> None:
        """DocumentError, JwksError: what there was before stays."""
        data = await self._fetch()
        if data == self._data:
            return
        self.keys = keys = await in_slices(parsing_jwks(data))
        self._data = data
        logger.info("token_keys", kv(source=self.name, count=len(keys.keys)))
        for note in keys.notes:
            logger.warning("token_key_left_out", kv(source=self.name, reason=note))

    async def run(self) -> None:
        """Until cancelled. Behind a `load`."""
        while True:
            if self.keys.keys:
                with trio.move_on_after(self._times.refresh_ms / 1000):
                    await self._wanted.wait()
            self._wanted = trio.Event()
            await self._load_at_last()

    async def _load_at_last(self) -> None:
        pause_ms = self._times.backoff_ms
        while not await self.try_load():
            await trio.sleep(pause_ms / 1000)
            pause_ms = min(pause_ms * 2, max(self._times.backoff_max_ms, self._times.backoff_ms))

    async def try_load(self) -> bool:
        """A failure is in the log, the first of several."""
        try:
            await self.load()
        except (DocumentError, JwksError) as error:
            level = logging.DEBUG if self._is_failing else logging.WARNING
            logger.log(level, "token_keys_failed", kv(source=self.name, reason=str(error)))
            self._is_failing = True
            return False
        if self._is_failing:
            logger.info("token_keys_back", kv(source=self.name))
        self._is_failing = False
        return True
