"""Quotas described and altered: the answers that Kafka 4.3.1 gave to the same."""

import pytest

from wire.kafka.errors import ErrorCode
from wire.kafka.messages import AlterClientQuotasRequest, DescribeClientQuotasRequest
from wire.kafka.messages.configs import (
    AlterClientQuotasRequestEntryData,
    ComponentData,
    EntityData,
    OpData,
)

KEY = "producer_byte_rate"
EXACT, DEFAULT, ANY = 0, 1, 2


@pytest.fixture
async def world(server):
    return World(await server.connect())


class World:
    def __init__(self, client):
        self.client = client

    async def alter(self, *entries, version=1, validate_only=False):
        """[(error's name, message)]; an entry is (entity's pairs, (key, value or None), …)."""
        body = AlterClientQuotasRequest(
            [
                AlterClientQuotasRequestEntryData(
                    [EntityData(*pair) for pair in pairs],
                    [OpData(key, value or 0.0, value is None) for key, value in ops],
                )
                for pairs, *ops in entries
            ],
            validate_only,
        )
        answer = await self.client.call(body, version)
        return [(ErrorCode(one.error_code).name, one.error_message) for one in answer.entries]

    async def describe(self, *components, strict=False):
        body = DescribeClientQuotasRequest([ComponentData(*one) for one in components], strict)
        answer = await self.client.call(body)
        if answer.error_code:
            assert answer.entries is None
            return ErrorCode(answer.error_code).name, answer.error_message
        return {
            tuple((part.entity_type, part.entity_name) for part in one.entity): {
                each.key: each.value for each in one.values
            }
            for one in answer.entries
        }


async def test_limits_are_set_changed_and_removed(world):
    user = [("user", "u")]
    assert await world.alter((user, (KEY, 10.0), ("request_percentage", 1.5))) == [("NONE", None)]
    assert await world.alter((user, (KEY, 20.0), ("request_percentage", None))) == [("NONE", None)]
    assert await world.describe() == {(("user", "u"),): {KEY: 20.0}}
    assert await world.alter((user, (KEY, None), ("no_such", None))) == [("NONE", None)]
    assert await world.describe() == {}


async def test_each_entity_for_itself(world):
    done = await world.alter(
        ([("user", "u")], (KEY, 7.5)),
        ([("user", "v")], (KEY, 8.0)),
        ([], (KEY, 1.0)),
        ([("ip", "1.2.3.4")], (KEY, 1.0)),
    )
    assert done == [
        ("INVALID_REQUEST", "producer_byte_rate cannot be a fractional value."),
        ("NONE", None),
        ("INVALID_REQUEST", "Invalid empty client quota entity"),
        ("INVALID_REQUEST", "Invalid configuration key producer_byte_rate"),
    ]
    assert await world.describe() == {(("user", "v"),): {KEY: 8.0}}


async def test_what_is_named_twice_is_not_changed(world):
    twice = "Ignoring duplicate entity ClientQuotaEntity(entries={user=u})"
    assert await world.alter(([("user", "u")], (KEY, 7.0)), ([("user", "u")], (KEY, 8.0))) == [
        ("INVALID_REQUEST", twice)
    ]
    assert await world.alter(([("user", "u")], (KEY, 7.0), (KEY, 8.0))) == [
        ("INVALID_REQUEST", twice)
    ]
    assert await world.describe() == {}


async def test_what_is_only_validated_is_not_changed(world):
    assert await world.alter(([("user", "u")], (KEY, 7.0)), validate_only=True) == [("NONE", None)]
    assert await world.alter(([("user", "u")], ("bad", 7.0)), validate_only=True) == [
        ("INVALID_REQUEST", "Invalid configuration key bad")
    ]
    assert await world.describe() == {}


async def test_quotas_outlive_the_server(start_server):
    server = await start_server()
    await World(await server.connect()).alter(([("user", None)], (KEY, 1e9)))
    await server.stop()
    server = await start_server()
    assert await World(await server.connect()).describe() == {(("user", None),): {KEY: 1e9}}
    assert server.parts["Dispatcher"].accounting is not None


USER, OTHER, BOTH = (("user", "u"),), (("user", "v"),), (("client-id", None), ("user", "u"))
ALL, ADDRESS = (("client-id", None), ("user", None)), (("ip", "1.2.3.4"),)


@pytest.mark.parametrize(
    ("components", "strict", "found"),
    [
        ([], False, {USER, OTHER, BOTH, ALL, ADDRESS}),
        ([], True, set()),
        ([("user", EXACT, "u")], False, {USER, BOTH}),
        ([("user", EXACT, "u")], True, {USER}),
        ([("user", DEFAULT, None)], False, {ALL}),
        ([("user", ANY, None)], False, {USER, OTHER, BOTH, ALL}),
        ([("user", ANY, None), ("client-id", ANY, None)], True, {BOTH, ALL}),
        ([("user", ANY, None), ("client-id", EXACT, "c")], False, set()),
        ([("ip", ANY, None)], False, {ADDRESS}),
    ],
)
async def test_filters(world, components, strict, found):
    for entity in (USER, OTHER, BOTH, ALL):
        await world.alter((entity, (KEY, 1e9)))
    await world.alter((ADDRESS, ("connection_creation_rate", 1e6)))
    assert set(await world.describe(*components, strict=strict)) == found


@pytest.mark.parametrize(
    ("components", "message"),
    [
        ([("user", 3, None)], "Unknown match type 3"),
        ([("", EXACT, "x")], "Invalid empty entity type."),
        ([("user", EXACT, "x")] * 2, "Entity type user cannot appear more than once"),
        ([("user", EXACT, None)], "Request specified MATCH_TYPE_EXACT, but set match string"),
        ([("user", DEFAULT, "x")], "Request specified MATCH_TYPE_DEFAULT, but also specified"),
        ([("user", ANY, "x")], "Request specified MATCH_TYPE_SPECIFIED, but also specified"),
        ([("ip", EXACT, "x"), ("user", EXACT, "u")], "Invalid entity filter component combination"),
    ],
)
async def test_what_is_no_filter_is_told(world, components, message):
    error, said = await world.describe(*components)
    assert error == "INVALID_REQUEST"
    assert said.startswith(message)


async def test_an_unknown_type_is_unsupported(world):
    assert await world.describe(("house", EXACT, "x")) == (
        "UNSUPPORTED_VERSION",
        "Unsupported entity type house",
    )
