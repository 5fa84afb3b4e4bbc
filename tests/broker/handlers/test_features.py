"""UpdateFeatures: the answers that Kafka 4.3.1 gave to the same, and what is finalized then."""

import pytest

from wire.kafka.errors import ErrorCode
from wire.kafka.messages import (
    ApiVersionsRequest,
    ConsumerGroupHeartbeatRequest,
    FindCoordinatorRequest,
    UpdateFeaturesRequest,
)
from wire.kafka.messages.cluster import FeatureUpdateKey

NAME = "transaction.version"
#: Of the features that these tests leave as they are.
OTHERS = {"group.version": 1, "share.version": 1, "streams.version": 1}
UPGRADE, SAFE, UNSAFE = 1, 2, 3
BEGIN = "The update failed for all features since the following feature had an error: "


@pytest.fixture
async def world(server):
    return World(await server.connect())


class World:
    def __init__(self, client):
        self.client = client

    async def update(self, *updates, version=2, validate_only=False):
        body = UpdateFeaturesRequest(
            feature_updates=[
                FeatureUpdateKey(name, level, version == 0 and kind != UPGRADE, kind)
                for name, level, kind in updates
            ],
            validate_only=validate_only,
        )
        answer = await self.client.call(body, version)
        return answer, ErrorCode(answer.error_code).name

    async def finalized(self):
        answer = await self.client.call(ApiVersionsRequest("c", "1"), 4)
        return {one.name: one.max_version_level for one in answer.finalized_features}

    async def consumer_heartbeat(self):
        await self.client.call(FindCoordinatorRequest(coordinator_keys=["g"]), 4)
        body = ConsumerGroupHeartbeatRequest(
            group_id="g",
            member_id="m",
            rebalance_timeout_ms=1000,
            subscribed_topic_names=["t"],
            topic_partitions=[],
        )
        return ErrorCode((await self.client.call(body, 1)).error_code).name


async def test_an_operator_lowers_and_raises(world):
    assert await world.finalized() == {NAME: 2} | OTHERS
    assert (await world.update((NAME, 1, SAFE)))[1] == "NONE"
    assert await world.finalized() == {NAME: 1} | OTHERS
    assert (await world.update((NAME, 0, UNSAFE)))[1] == "NONE"
    assert await world.finalized() == OTHERS
    assert (await world.update((NAME, 2, UPGRADE)))[1] == "NONE"
    assert await world.finalized() == {NAME: 2} | OTHERS


async def test_consumer_groups_are_switched_off_and_on(world):
    assert (await world.update(("group.version", 0, SAFE)))[1] == "NONE"
    assert await world.finalized() == {NAME: 2, "share.version": 1, "streams.version": 1}
    assert await world.consumer_heartbeat() == "UNSUPPORTED_VERSION"
    assert (await world.update(("group.version", 1, UPGRADE)))[1] == "NONE"
    assert await world.finalized() == {NAME: 2} | OTHERS
    assert await world.consumer_heartbeat() == "NONE"


async def test_it_stays_so_after_a_restart(start_server):
    server = await start_server()
    await World(await server.connect()).update((NAME, 1, SAFE))
    await server.stop()
    server = await start_server()
    assert await World(await server.connect()).finalized() == {NAME: 1} | OTHERS


@pytest.mark.parametrize(
    ("updates", "reason"),
    [
        ([(NAME, 3, UPGRADE)], f"3 for feature {NAME}. Local controller 0 only supports versions"),
        ([(NAME, -1, UPGRADE)], f"-1 for feature {NAME}. A feature version cannot be less than 0."),
        ([(NAME, 1, UPGRADE)], f"1 for feature {NAME}. Can't downgrade the version of this"),
        (
            [(NAME, 2, 9)],
            f"2 for feature {NAME}. The controller does not support the given upgrade",
        ),
        ([("nope", 1, UPGRADE)], "1 for feature nope. Local controller 0 does not support this"),
        ([("nope", 0, SAFE)], "0 for feature nope. Feature nope not found."),
        ([(NAME, 1, SAFE), ("nope", 1, UPGRADE)], "1 for feature nope."),
        ([(NAME, 2, UPGRADE), (NAME, 1, UPGRADE)], f"1 for feature {NAME}. Can't downgrade"),
    ],
)
@pytest.mark.parametrize("validate_only", [False, True])
async def test_what_is_wrong_is_told_and_nothing_is_done(world, updates, reason, validate_only):
    answer, error = await world.update(*updates, validate_only=validate_only)
    assert error == "INVALID_UPDATE_VERSION"
    assert answer.error_message.startswith(f"{BEGIN}Invalid update version {reason}")
    assert await world.finalized() == {NAME: 2} | OTHERS


async def test_a_downgrade_does_not_raise(world):
    await world.update((NAME, 1, SAFE))
    answer, error = await world.update((NAME, 2, SAFE))
    assert error == "INVALID_UPDATE_VERSION"
    assert answer.error_message.endswith("Can't downgrade to a newer version.")


async def test_what_is_only_validated_is_not_done(world):
    assert (await world.update((NAME, 1, SAFE), validate_only=True))[1] == "NONE"
    assert await world.finalized() == {NAME: 2} | OTHERS


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_results_by_feature_are_told_to_older_clients(world, version):
    answer, _ = await world.update((NAME, 2, UPGRADE), version=version)
    told = [(one.feature, one.error_code, one.error_message) for one in answer.results]
    assert told == ([(NAME, 0, "NONE")] if version < 2 else [])


async def test_version_0_cannot_lower(world):
    assert (await world.update((NAME, 1, SAFE), version=0))[1] == "INVALID_UPDATE_VERSION"


async def test_there_are_not_too_many_updates(world):
    updates = [(f"f{n}", 1, UPGRADE) for n in range(101)]
    assert (await world.update(*updates))[1] == "INVALID_REQUEST"
