"""SCRAM's two mechanisms (Kafka's `org.apache.kafka.common.security.scram.internals.ScramMechanism`
and `org.apache.kafka.clients.admin.ScramMechanism`, whose numbers are on the wire)."""

from __future__ import annotations

import hashlib
import hmac

from wire.dataclass import dataclass

#: Fewer are not accepted, when credentials are set and when they are used.
ITERATIONS_MIN = 4096
#: More are not accepted when credentials are set (`ScramControlManager.MAX_ITERATIONS`).
ITERATIONS_MAX = 16384


@dataclass(slots=True, frozen=True)
class ScramHash:
    """`number`: in AlterUserScramCredentials and DescribeUserScramCredentials."""

    name: str
    number: int
    #: As hashlib has it.
    digest: str
    size: int

    def h(self, data: bytes) -> bytes:
        return hashlib.new(self.digest, data).digest()

    def hmac(self, key: bytes, data: bytes) -> bytes:
        return hmac.digest(key, data, self.digest)

    def salted(self, password: bytes, salt: bytes, iterations: int) -> bytes:
        """RFC 5802's Hi. Some 0.5 us an iteration: never while somebody logs in."""
        return hashlib.pbkdf2_hmac(self.digest, password, salt, iterations)


SCRAM_SHA_256 = ScramHash("SCRAM-SHA-256", 1, "sha256", 32)
SCRAM_SHA_512 = ScramHash("SCRAM-SHA-512", 2, "sha512", 64)
BY_NAME = {one.name: one for one in (SCRAM_SHA_256, SCRAM_SHA_512)}
BY_NUMBER = {one.number: one for one in BY_NAME.values()}
