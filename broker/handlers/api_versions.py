"""ApiVersions (key 18), versions 0-4.

Answers exactly what the handlers declare. The response header is always v0; a request of a version
that is too high is answered in version 0's layout with UNSUPPORTED_VERSION and all entries (KIP-511
asks for that of ApiVersions itself). The client's software name and version are checked as Kafka
does (KIP-511) and kept for logs and metrics.

Produce is advertised from version 0 though 0-2 are refused: librdkafka otherwise switches off
compression codecs (KAFKA-18659).

Features are supported from 0 on (to version 3 from 1: older clients do not understand 0), and
finalized as the cluster has them (KIP-584, broker/cluster/features.py).

Known deviation: no other feature is advertised before it is implemented (share.version, for one).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from broker.api import Api
from broker.cluster.features import FEATURES
from wire.kafka.api_keys import ApiKey
from wire.kafka.errors import ErrorCode
from wire.kafka.messages.metadata import (
    ApiVersion,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from broker.api import Request
    from broker.cluster.features import FinalizedFeatures

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


class ApiVersionsHandler:
    def __init__(self, features: FinalizedFeatures) -> None:
        """`features`: those of the cluster."""
        self._entries: list[ApiVersion] = []
        self._features = features

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
        response = ApiVersionsResponse(api_keys=self._entries)
        _tell_features(response, self._features, request.version)
        return response


def _tell_features(
    response: ApiVersionsResponse, features: FinalizedFeatures, version: int
) -> None:
    """KAFKA-17011: clients of version 3 fail over a feature that is supported from 0 on. As in
    Kafka, what is finalized at 0 is not told."""
    least = 0 if version >= 4 else 1
    response.supported_features = [
        SupportedFeatureKey(name, least, FEATURES[name].most) for name in sorted(FEATURES)
    ]
    if features.epoch >= 0:
        response.finalized_features_epoch = features.epoch
        response.finalized_features = [
            FinalizedFeatureKey(name, level, level)
            for name, level in sorted(features.levels.items())
            if level
        ]


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
