"""Delegation tokens in metadata: one document for a token, in the memory of every broker.

    /quire/tokens/<hex of the id>    whose it is, until when, and its SCRAM credentials
                                     (token_core.py)

The hmac is made of the secret and the id wherever it is asked for. All brokers have to have the
same secret. Which one a token was made with, its document tells by a hash that takes as long to
guess from as a password's; with another secret it is as if it were not there, until it is swept.
What has ended is swept by every broker, in intervals.
"""

from __future__ import annotations

import base64
import hashlib
import logging
from collections import Counter
from typing import TYPE_CHECKING

import trio

from broker.cluster.watched_documents import WatchedDocuments
from broker.security.principal import Principal
from broker.security.sasl.mechanism import Login
from broker.security.sasl.scram.credentials import SALT_BITS, Credential, salt_text
from broker.security.sasl.scram.hashes import BY_NAME, ITERATIONS_MAX
from broker.security.tokens.token_core import (
    Token,
    check_principals,
    credentials_of,
    expired,
    from_bytes,
    hmac_of,
    renewed,
    times_of_new,
    to_bytes,
)
from metadata.store import MetadataError
from runtime.logs import kv
from wire.kafka.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from broker.security.tokens.token_core import Lifetimes
    from metadata.store import MetadataStore
    from runtime.env import Env

logger = logging.getLogger(__name__)

TOKENS_PATH = "/quire/tokens"
_KEY_ID_BYTES = 16
#: Tokens that one principal has asked for and that have not ended. Kafka has no bound, and whoever
#: has logged in would fill every broker's memory.
TOKENS_OF_ONE_MAX = 1000


class DelegationTokens:
    def __init__(
        self, store: MetadataStore, env: Env, secret: str, salt: bytes, lifetimes: Lifetimes
    ) -> None:
        """`secret`: delegation.token.secret.key; `salt`: the cluster's own. Takes milliseconds."""
        self._env = env
        self._secret = secret.encode()
        self._lifetimes = lifetimes
        key_id = hashlib.pbkdf2_hmac("sha512", self._secret, salt, ITERATIONS_MAX)
        self._key_id = key_id[:_KEY_ID_BYTES].hex()
        self._documents: WatchedDocuments[Token] = WatchedDocuments(store, TOKENS_PATH, from_bytes)
        self._documents.on_change = self._changed
        #: By a hash of the hmac, the token's id.
        self._ids: dict[bytes, str] = {}
        self._requester_of: dict[str, Principal] = {}
        self._requested: Counter[Principal] = Counter()
        #: One at a time: it takes a processor for milliseconds.
        self._making = trio.Lock()

    def __repr__(self) -> str:
        return f"DelegationTokens({len(self._documents)})"

    async def load(self) -> None:
        """MetadataError."""
        await self._documents.load()

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        await self._documents.run(task_status=task_status)

    # -- what is there ----------------------------------------------------------------------------

    def login(self, token_id: str, mechanism: str) -> tuple[Credential, Login] | None:
        """What a login under a token's id is checked by, and what comes of it; None: there is no
        such token, or it has ended."""
        token = self._documents.get(token_id)
        if token is None or token.key_id != self._key_id:
            return None
        if token.has_ended(self._env.clock.time_ms()):
            return None
        credential = token.credentials.get(mechanism)
        if credential is None:
            return None
        owner = Principal(token.owner.type, token.owner.name, is_by_token=True)
        return credential, Login(owner, min(token.expiry_ms, token.max_ms))

    def items(self) -> Iterator[tuple[str, Token]]:
        """(id, token); also those that have ended and are not swept yet, as Kafka tells of them."""
        return ((i, token) for i, token in self._documents.items() if token.key_id == self._key_id)

    def hmac(self, token_id: str) -> bytes:
        return hmac_of(self._secret, token_id)

    # -- changes ----------------------------------------------------------------------------------

    async def create(
        self,
        owner: Principal,
        requester: Principal,
        renewers: Sequence[Principal],
        max_lifetime_ms: int,
    ) -> tuple[str, Token]:
        """(id, token). KafkaError: DELEGATION_TOKEN_REQUEST_NOT_ALLOWED for one who has very many,
        as far as this broker knows; those of check_principals. MetadataError."""
        check_principals(owner, renewers)
        if self._requested[requester] >= TOKENS_OF_ONE_MAX:
            logger.warning("tokens_refused", kv(principal=requester, limit=TOKENS_OF_ONE_MAX))
            raise KafkaError(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)
        token_id = self._new_id()
        salts = [salt_text(self._env.rng.getrandbits(SALT_BITS)) for _ in BY_NAME]
        async with self._making:
            credentials = await self._env.disk.run(credentials_of, self.hmac(token_id), salts)
        now_ms = self._env.clock.time_ms()
        expiry_ms, max_ms = times_of_new(now_ms, max_lifetime_ms, self._lifetimes)
        token = Token(
            *(owner, requester, tuple(renewers)),
            *(now_ms, expiry_ms, max_ms),
            *(self._key_id, credentials),
        )
        await self._documents.change(token_id, lambda _: to_bytes(token))
        return token_id, token

    async def renew(self, token_hmac: bytes, who: Principal, period_ms: int) -> int:
        """Until when it is good now. KafkaError, MetadataError."""
        token_id = self._id_of(token_hmac)
        now_ms = self._env.clock.time_ms()
        expiry_ms = 0

        def decide(before: Token | None) -> bytes:
            nonlocal expiry_ms
            after = renewed(before, who, period_ms, now_ms, self._lifetimes)
            expiry_ms = after.expiry_ms
            return to_bytes(after)

        await self._documents.change(token_id, decide)
        return expiry_ms

    async def expire(self, token_hmac: bytes, who: Principal, period_ms: int) -> int:
        """Until when it is good now; at once it is gone. KafkaError, MetadataError."""
        token_id = self._id_of(token_hmac)
        now_ms = self._env.clock.time_ms()
        expiry_ms: int | None = None

        def decide(before: Token | None) -> bytes | None:
            nonlocal expiry_ms
            after = expired(before, who, period_ms, now_ms)
            expiry_ms = None if after is None else after.expiry_ms
            return None if after is None else to_bytes(after)

        await self._documents.change(token_id, decide)
        if expiry_ms is not None:
            return expiry_ms
        await self._documents.remove(token_id)
        return now_ms

    async def sweep(self, interval_seconds: float) -> None:
        """Removes what has ended, for ever."""
        while True:
            await trio.sleep(interval_seconds)
            try:
                await self.sweep_once()
            except MetadataError as error:
                logger.warning("tokens_not_swept", kv(error=error))

    async def sweep_once(self) -> None:
        """MetadataError."""
        now_ms = self._env.clock.time_ms()
        for token_id, token in self._documents.items():
            if token.has_ended(now_ms):
                await self._documents.remove(token_id)
                logger.info("token_ended", kv(token=token_id, owner=token.owner))

    # -- by hmac ----------------------------------------------------------------------------------

    def _changed(self, token_id: str) -> None:
        known = _digest(self.hmac(token_id))
        token = self._documents.get(token_id)
        before = self._requester_of.pop(token_id, None)
        if before is not None:
            self._requested[before] -= 1
            if not self._requested[before]:
                del self._requested[before]
        if token is None:
            self._ids.pop(known, None)
            return
        self._ids[known] = token_id
        self._requester_of[token_id] = token.requester
        self._requested[token.requester] += 1

    def _id_of(self, token_hmac: bytes) -> str:
        """KafkaError. A token that another broker has just made may not be known here yet."""
        token_id = self._ids.get(_digest(token_hmac))
        token = None if token_id is None else self._documents.get(token_id)
        if token_id is None or token is None or token.key_id != self._key_id:
            raise KafkaError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND)
        return token_id

    def _new_id(self) -> str:
        """A random UUID in the form of Kafka's `Uuid`, which does not begin with a dash: that would
        be an option to a command."""
        while True:
            text = base64.urlsafe_b64encode(self._env.new_uuid().bytes).decode().rstrip("=")
            if not text.startswith("-"):
                return text


def _digest(token_hmac: bytes) -> bytes:
    """How long a look-up takes tells nothing of the hmac."""
    return hashlib.sha256(token_hmac).digest()
