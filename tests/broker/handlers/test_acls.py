"""ACLs described, created and deleted; without an authorizer in Kafka 4.3.1's words."""

import pytest

from broker.api import ConnectionInfo, Request
from broker.handlers.acls import AclsHandler
from broker.security.acls.index_core import AclIndex
from broker.security.acls.store import AclStore
from metadata.memory import MemoryStore, MemoryTree
from metadata.store import MetadataUnavailableError
from tests.broker.security.acls import conftest
from tests.broker.security.acls.conftest import EVERYTHING, acl_of, creation, exactly
from wire.kafka.errors import ErrorCode
from wire.kafka.messages import CreateAclsRequest, DeleteAclsRequest, DescribeAclsRequest
from wire.kafka.messages.acls import AclCreation, DeleteAclsFilter

INVALID = ErrorCode.INVALID_REQUEST
start_guarded = conftest.start_guarded


@pytest.mark.parametrize("version", [1, 2, 3])
async def test_without_an_authorizer_there_are_no_acls(client, version):
    disabled = int(ErrorCode.SECURITY_DISABLED)
    answer = await client.call(DescribeAclsRequest(1, None, 1, None, None, 1, 1), version)
    assert (answer.error_code, answer.resources) == (disabled, [])
    assert answer.error_message == "No Authorizer is configured on the broker"
    acl = AclCreation(2, "t", 3, "User:a", "*", 3, 3)
    answer = await client.call(CreateAclsRequest([acl, acl]), version)
    assert [(one.error_code, one.error_message) for one in answer.results] == [
        (disabled, "No Authorizer is configured.")
    ] * 2
    wanted = DeleteAclsFilter(2, "t", 3, None, None, 1, 1)
    [answer] = (await client.call(DeleteAclsRequest([wanted]), version)).filter_results
    assert (answer.error_code, answer.matching_acls) == (disabled, [])
    assert answer.error_message == "No Authorizer is configured."


@pytest.fixture
async def behind(nursery):
    """(a broker's store, the handler of another one that has heard nothing of it)"""
    tree, stores = MemoryTree(), []
    for _ in range(2):
        metadata = MemoryStore(tree)
        await nursery.start(metadata.run)
        stores.append(AclStore(metadata, AclIndex()))
        await stores[-1].load()
    return stores[0], AclsHandler(stores[1])


async def deleted(handler, *filters):
    request = Request(31, 3, 1, "test", ConnectionInfo("1", "::1", "L"), DeleteAclsRequest(filters))
    steps, answer = handler.delete_acls(request), None
    try:
        while True:
            next(steps)
    except StopIteration as done:
        answer = await done.value
    return [(one.error_code, len(one.matching_acls)) for one in answer.filter_results]


ALL, UNKNOWN = DeleteAclsFilter(1, None, 1, None, None, 1, 1), DeleteAclsFilter(99, None)


async def test_what_another_broker_was_told_is_deleted(behind):
    """It is deleted though no watch has told of it: who takes a right away is to be sure of it."""
    one, handler = behind
    assert await one.add([acl_of("a READ TOPIC t"), acl_of("b READ TOPIC t*")]) == {}
    assert await deleted(handler, UNKNOWN, ALL) == [(INVALID, 0), (0, 2)]
    await one.refresh()
    assert len(one.index) == 0


async def test_nothing_is_said_to_match_while_metadata_is_away(behind, monkeypatch):
    _, handler = behind

    async def sync(self, path):
        raise MetadataUnavailableError(path)

    monkeypatch.setattr(MemoryStore, "sync", sync)
    timed_out = ErrorCode.REQUEST_TIMED_OUT
    assert await deleted(handler, ALL, UNKNOWN) == [(timed_out, 0), (INVALID, 0)]


@pytest.fixture
async def world(start_guarded):
    return await start_guarded()


async def listed(client, wanted=EVERYTHING, version=3):
    answer = await client.call(wanted, version)
    assert answer.error_code == 0
    return {
        (one.resource_type, one.resource_name, one.pattern_type): sorted(
            (each.principal, each.host, each.operation, each.permission_type) for each in one.acls
        )
        for one in answer.resources
    }


async def test_they_are_made_found_and_deleted_and_outlive_a_restart(world, start_guarded):
    await world.allow("a READ TOPIC t", "a WRITE TOPIC t", "-b READ TOPIC t*", "a READ TOPIC t")
    expected = {
        (2, "t", 3): [("User:a", "*", 3, 3), ("User:a", "*", 4, 3)],
        (2, "t", 4): [("User:b", "*", 3, 2)],
    }
    for version in (1, 2, 3):
        assert await listed(world.admin, version=version) == expected
    matching = DescribeAclsRequest(2, "tx", 2, None, None, 1, 1)
    assert list(await listed(world.admin, matching)) == [(2, "t", 4)]
    of_a = DescribeAclsRequest(1, None, 1, "User:a", None, 4, 1)
    assert await listed(world.admin, of_a) == {(2, "t", 3): [("User:a", "*", 4, 3)]}
    await world.server.stop()
    world = await start_guarded()
    assert await listed(world.admin) == expected
    filters = [
        DeleteAclsFilter(2, "t", 3, None, None, 1, 1),
        exactly(acl_of("nobody READ TOPIC t")),
    ]
    first, second = (await world.admin.call(DeleteAclsRequest(filters))).filter_results
    assert sorted((one.operation, one.principal) for one in first.matching_acls) == [
        (3, "User:a"),
        (4, "User:a"),
    ]
    assert (second.error_code, second.matching_acls) == (0, [])
    assert list(await listed(world.admin)) == [(2, "t", 4)]


async def test_what_is_no_acl_is_refused_by_itself(world):
    good = creation(acl_of("a READ TOPIC t"))
    bad = [
        AclCreation(1, "t", 3, "User:a", "*", 3, 3),  # any type
        AclCreation(99, "t", 3, "User:a", "*", 3, 3),
        AclCreation(2, "t", 1, "User:a", "*", 3, 3),  # any pattern
        AclCreation(2, "t", 2, "User:a", "*", 3, 3),  # match
        AclCreation(2, "t", 3, "User:a", "*", 1, 3),  # any operation
        AclCreation(2, "t", 3, "User:a", "*", 99, 3),
        AclCreation(2, "t", 3, "User:a", "*", 3, 1),  # any permission
        AclCreation(2, "", 3, "User:a", "*", 3, 3),
        AclCreation(2, "", 4, "User:a", "*", 3, 3),  # attack 34: the prefix of everything
        AclCreation(2, "x" * 3000, 3, "User:a", "*", 3, 3),
        AclCreation(4, "another", 3, "User:a", "*", 3, 3),  # no other cluster
        AclCreation(2, "t", 3, "alice", "*", 3, 3),
        AclCreation(2, "t", 3, "User:", "*", 3, 3),
        AclCreation(2, "t", 3, "User:a", "", 3, 3),
        AclCreation(2, "t", 3, "User:" + "a" * 3000, "*", 3, 3),
    ]
    answer = await world.admin.call(CreateAclsRequest([*bad, good]))
    assert [one.error_code for one in answer.results] == [INVALID] * len(bad) + [0]
    assert all(one.error_message for one in answer.results[:-1])
    assert len(await listed(world.admin)) == 1
    for wanted in (
        DescribeAclsRequest(0, None, 1, None, None, 1, 1),
        DescribeAclsRequest(1, None, 0, None, None, 1, 1),
        DescribeAclsRequest(1, None, 1, None, None, 77, 1),
        DescribeAclsRequest(1, None, 1, None, None, 1, 5),
    ):
        assert (await world.admin.call(wanted)).error_code == INVALID


async def test_ten_thousand_are_deleted_at_once_and_not_one_more(world):
    """Attack 46."""
    for start in range(0, 10_001, 2000):
        count = min(2000, 10_001 - start)
        creations = [
            creation(acl_of(f"u{number} READ TOPIC t")) for number in range(start, start + count)
        ]
        answer = await world.admin.call(CreateAclsRequest(creations))
        assert not any(one.error_code for one in answer.results)
    everything = DeleteAclsFilter(2, None, 1, None, None, 1, 1)
    [result] = (await world.admin.call(DeleteAclsRequest([everything]))).filter_results
    assert (result.error_code, result.matching_acls) == (INVALID, [])
    assert "10000" in result.error_message
    one = exactly(acl_of("u7 READ TOPIC t"))
    [first, second] = (await world.admin.call(DeleteAclsRequest([one, everything]))).filter_results
    assert (first.error_code, second.error_code) == (0, INVALID)
    [result] = (await world.admin.call(DeleteAclsRequest([everything]))).filter_results
    assert (result.error_code, len(result.matching_acls)) == (0, 10_000)
    assert await listed(world.admin) == {}
