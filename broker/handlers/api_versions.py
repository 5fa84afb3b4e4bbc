"""ApiVersions (key 18), versions 0-4.

Answers exactly what the handlers declare. The response header is always v0; a request of a version
that is too high is answered in version 0's layout with UNSUPPORTED_VERSION and all entries (KIP-511
asks for that of ApiVersions itself). The client's software name and version are checked as Kafka
does (KIP-511) and kept for logs and metrics.

Produce is advertised from version 0 though 0-2 are refused: librdkafka otherwise switches off
compression codecs (KAFKA-18659).

Known deviation: no features are advertised before they are implemented (transactions V2, KIP-848).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from broker.api import Api
from wire.kafka.api_keys import ApiKey
from wire.kafka.errors import ErrorCode
from wire.kafka.messages.metadata import ApiVersion, ApiVersionsResponse

if TYPE_CHECKING:
    from collections.abc import Iterable

    from broker.api import Request

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


class ApiVersionsHandler:
    def __init__(self) -> None:
        self._entries: list[ApiVersion] = []

    def serve(self, apis: Iterable[Api]) -> None:
        """Told once, by the composition, what all handlers together declare."""
        self._entries = entries(apis)

    def apis(self) -> list[Api]:
        return [Api(ApiKey.API_VERSIONS, 0, 4, self.api_versions)]

    def api_versions(self, request: Request) -> ApiVersionsResponse:
        body, connection = request.body, request.connection
        if request.version >= 3:
            for name in (body.client_software_name, body.client_software_version):
                if not _SOFTWARE.fullmatch(name):
                    return ApiVersionsResponse(error_code=int(ErrorCode.INVALID_REQUEST))
            connection.client_software_name = body.client_software_name
            connection.client_software_version = body.client_software_version
        return ApiVersionsResponse(api_keys=self._entries)


def entries(apis: Iterable[Api]) -> list[ApiVersion]:
    """One entry for each key, in order."""
    return [
        ApiVersion(
            api_key=int(api.key),
            min_version=(
                api.version_min
                if api.version_min_advertised is None
                else api.version_min_advertised
            ),
            max_version=api.version_max,
        )
        for api in sorted(apis, key=lambda item: item.key)
    ]


def unsupported_version_reply(apis: Iterable[Api]) -> ApiVersionsResponse:
    return ApiVersionsResponse(
        error_code=int(ErrorCode.UNSUPPORTED_VERSION), api_keys=entries(apis)
    )
