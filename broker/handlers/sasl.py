"""SaslHandshake and SaslAuthenticate where they are out of place.

| key | versions | what |
|--|--|--|
| 17 SaslHandshake | 0-1 | ILLEGAL_SASL_STATE, and so is |
| 36 SaslAuthenticate | 0-2 | this |

Who may log in does it before requests come here (broker/security/sasl/front.py). These are on a
listener without SASL, or come too soon after the last login. As in Kafka both are advertised by
every listener, and the connection stays.
"""

from __future__ import annotations

from broker.api import Api, Request
from wire.kafka.api_keys import ApiKey
from wire.kafka.errors import ErrorCode
from wire.kafka.messages.security import SaslAuthenticateResponse, SaslHandshakeResponse


class SaslHandler:
    def apis(self) -> list[Api]:
        return [
            Api(ApiKey.SASL_HANDSHAKE, 0, 1, self.handshake),
            Api(ApiKey.SASL_AUTHENTICATE, 0, 2, self.authenticate),
        ]

    def handshake(self, _: Request) -> SaslHandshakeResponse:
        return SaslHandshakeResponse(error_code=int(ErrorCode.ILLEGAL_SASL_STATE))

    def authenticate(self, _: Request) -> SaslAuthenticateResponse:
        return SaslAuthenticateResponse(
            error_code=int(ErrorCode.ILLEGAL_SASL_STATE),
            error_message="SaslAuthenticate request received after successful authentication",
        )
