"""UpdateFeatures (key 57), versions 0-2: raises or lowers what is finalized (KIP-584, KIP-778).

All updates of a request are made, or none, and then the first that is wrong is told. A lowered
level holds until it is raised again, whatever brokers come (broker/cluster/features.py). As in
Kafka 4.3.1, whose answers these are, version 0 cannot lower, a feature that a request names twice
gets the last level, and both kinds of downgrade do the same; results by feature are told to
versions 0 and 1, if all went well.

Whichever broker is asked does it, so that «Local controller» in a refusal is that broker.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from broker.api import Api, Request
from broker.cluster.features import FEATURES
from broker.handlers.topics import metadata_failure
from metadata.store import MetadataError
from wire.kafka.api_keys import ApiKey
from wire.kafka.errors import ErrorCode, KafkaError
from wire.kafka.messages.cluster import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from broker.cluster.features import FinalizedFeatures, Levels
    from broker.cluster.view import ClusterView

RESULTS_VERSION_MAX = 1
UPGRADE_TYPE_VERSION_MIN = 1
#: More than there are features: each is compared with every broker.
UPDATES_MAX = 100


class UpgradeType(enum.IntEnum):
    """Kafka's `FeatureUpdate.UpgradeType`."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


class FeaturesHandler:
    def __init__(self, features: FinalizedFeatures, cluster: ClusterView) -> None:
        self._features = features
        self._cluster = cluster

    def apis(self) -> list[Api]:
        return [Api(ApiKey.UPDATE_FEATURES, 0, 2, self.update_features)]

    async def update_features(self, request: Request) -> UpdateFeaturesResponse:
        body: UpdateFeaturesRequest = request.body
        if len(body.feature_updates) > UPDATES_MAX:
            return UpdateFeaturesResponse(
                error_code=int(ErrorCode.INVALID_REQUEST),
                error_message=f"a request may update {UPDATES_MAX} features at most",
            )
        updates = {update.feature: update for update in body.feature_updates}

        def changed(levels: Levels) -> dict[str, int]:
            for update in updates.values():
                self._check(update, levels, request.version)
            return {name: update.max_version_level for name, update in updates.items()}

        try:
            if body.validate_only:
                changed(self._features.levels)
            else:
                await self._features.update(changed)
        except KafkaError as error:
            return UpdateFeaturesResponse(
                error_code=int(error.code), error_message=error.message, results=[]
            )
        except MetadataError as error:
            failure = metadata_failure(error)
            return UpdateFeaturesResponse(
                error_code=int(failure.code), error_message=failure.message, results=[]
            )
        response = UpdateFeaturesResponse(error_message=None)
        if request.version <= RESULTS_VERSION_MAX:
            response.results = [UpdatableFeatureResult(name, 0, "NONE") for name in updates]
        return response

    def _check(self, update: FeatureUpdateKey, levels: Levels, version: int) -> None:
        """KafkaError INVALID_UPDATE_VERSION."""
        kind = update.upgrade_type if version >= UPGRADE_TYPE_VERSION_MIN else UpgradeType.UPGRADE
        level, name = update.max_version_level, update.feature
        reason = None
        if kind not in tuple(UpgradeType):
            reason = "The controller does not support the given upgrade type."
        elif level < 0:
            reason = "A feature version cannot be less than 0."
        elif name not in FEATURES:
            reason = f"Local controller {self._cluster.node_id} does not support this feature."
            if level == 0:
                reason = f"Feature {name} not found."
        elif (unsupported := self._unsupported(name, level)) is not None:
            reason = unsupported
        elif level < levels[name] and kind == UpgradeType.UPGRADE:
            reason = (
                "Can't downgrade the version of this feature without setting the upgrade type to"
                " either safe or unsafe downgrade."
            )
        elif level > levels[name] and kind != UpgradeType.UPGRADE:
            reason = "Can't downgrade to a newer version."
        if reason is not None:
            raise KafkaError(
                ErrorCode.INVALID_UPDATE_VERSION,
                "The update failed for all features since the following feature had an error:"
                f" Invalid update version {level} for feature {name}. {reason}",
            )

    def _unsupported(self, name: str, level: int) -> str | None:
        """Who cannot do it."""
        supported: Mapping[str, int] = {
            f"Local controller {self._cluster.node_id}": FEATURES[name].most,
            **{
                f"Broker {broker}": levels.get(name, 0)
                for broker, levels in self._features.supported().items()
            },
        }
        return next(
            (
                f"{who} only supports versions 0-{most}"
                for who, most in supported.items()
                if level > max(most, FEATURES[name].undecided)
            ),
            None,
        )
