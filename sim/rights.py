"""Administrators who give and take rights while everything breaks, and who judges what brokers know
of them.

Each right denies everybody to describe a topic of its own, which is not there; the names are such
that all rights are in a few documents, in which the changes of several brokers meet. What had an
attempt without an answer is not taken again: that attempt may come late.

- *right not found*: a broker was asked to take one that was given, and knew none;
- *right lost*, *right left*: a broker that acknowledged that one was given, or taken, does not list
  it so, or does not act by it;
- *other rights*: at the end a broker knows others than those that were acknowledged.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import trio

from broker.authorization import AclOperation, ResourceType
from broker.security.acls.bindings import ANY, AclBinding, PatternType, Permission
from broker.security.acls.documents_core import document_of
from sim.client import Unanswered
from sim.fetching import RETRY_SECONDS
from sim.history import Violation
from wire.kafka.errors import ErrorCode
from wire.kafka.messages import (
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
    MetadataRequest,
    MetadataResponse,
)
from wire.kafka.messages.acls import AclCreation, DeleteAclsFilter
from wire.kafka.messages.metadata import MetadataRequestTopic

if TYPE_CHECKING:
    from sim.client import KafkaClient
    from sim.world import World

#: Of the three APIs.
VERSION = 3
TOPIC = int(ResourceType.TOPIC)
#: Documents that all rights are in.
DOCUMENTS = ("00", "01")
#: Between two changes of an administrator, in seconds.
CHANGE_SECONDS = 0.5
#: As long as nothing fails, all brokers know a change within so long.
SPREAD_SECONDS = 10.0


def _right(name: str) -> AclBinding:
    return AclBinding(
        ResourceType.TOPIC,
        name,
        PatternType.LITERAL,
        "User:ANONYMOUS",
        "*",
        AclOperation.DESCRIBE,
        Permission.DENY,
    )


class AclAdmin:
    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self.name = name
        self._rng = world.rng_for(name)
        self._client = world.client(name)
        self._count = 0
        #: What may be taken again.
        self._certain: list[str] = []

    async def run(self) -> None:
        world = self._world
        while not world.is_draining:
            if self._certain and self._rng.random() < 0.5:
                await self._take()
            else:
                await self._give()
            world.made_progress(self.name)
            await trio.sleep(CHANGE_SECONDS * self._rng.random())

    async def _give(self) -> None:
        name = self._new_name()
        request = CreateAclsRequest(creations=[_creation(name)])
        attempts = 0
        while True:
            attempts += 1
            address = self._somewhere()
            with suppress(Unanswered):
                answer = await self._client.ask_at(address, request, CreateAclsResponse, VERSION)
                if self._is_done(answer.results[0].error_code):
                    break
            await trio.sleep(RETRY_SECONDS)
        self._world.rights[name] = None
        self._world.trace.count("rights given")
        if attempts == 1:
            self._certain.append(name)
        await self._judge(address, name, is_given=True)

    async def _take(self) -> None:
        name = self._certain.pop(self._rng.randrange(len(self._certain)))
        request = DeleteAclsRequest(filters=[DeleteAclsFilter(TOPIC, name, ANY, None, None, 1, 1)])
        attempts = 0
        while True:
            attempts += 1
            address = self._somewhere()
            with suppress(Unanswered):
                answer = await self._client.ask_at(address, request, DeleteAclsResponse, VERSION)
                (result,) = answer.filter_results
                codes = [result.error_code, *(each.error_code for each in result.matching_acls)]
                if all(self._is_done(code) for code in codes):
                    break
            await trio.sleep(RETRY_SECONDS)
        if attempts == 1 and not result.matching_acls:
            raise Violation("right not found", f"{name}, by {address[0]}")
        del self._world.rights[name]
        self._world.trace.count("rights taken")
        await self._judge(address, name, is_given=False)

    async def _judge(self, address: tuple[str, int], name: str, *, is_given: bool) -> None:
        """What the broker that said so knows now; nothing if it does not answer."""
        topic = MetadataRequestTopic(name=name)
        try:
            listed = await rights_of(self._client, address, name)
            answer = await self._client.ask_at(
                address,
                MetadataRequest(topics=[topic], allow_auto_topic_creation=False),
                MetadataResponse,
            )
        except Unanswered:
            return
        is_denied = answer.topics[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        if (name in listed, is_denied) != (is_given, is_given):
            what = "right lost" if is_given else "right left"
            raise Violation(what, f"{name} at {address[0]}: {listed}, denied: {is_denied}")

    def _new_name(self) -> str:
        while True:
            self._count += 1
            name = f"{self.name}-{self._count}"
            if document_of(_right(name)) in DOCUMENTS:
                return name

    def _somewhere(self) -> tuple[str, int]:
        return self._client.seeds[self._rng.randrange(len(self._client.seeds))]

    def _is_done(self, error_code: int) -> bool:
        code = ErrorCode(error_code)
        if code is ErrorCode.REQUEST_TIMED_OUT:
            self._world.trace.count("rights not changed in time")
            return False
        if code is not ErrorCode.NONE:
            raise Violation("refused", f"{self.name}: {code.name}")
        return True


async def rights_of(client: KafkaClient, address: tuple[str, int], name: str | None) -> list[str]:
    """Names of topics that are denied, as this broker lists them: this one, or all. Unanswered."""
    request = DescribeAclsRequest(TOPIC, name, ANY, None, None, 1, 1)
    answer = await client.ask_at(address, request, DescribeAclsResponse, VERSION)
    if answer.error_code:
        raise Violation("refused", f"rights at {address[0]}: {ErrorCode(answer.error_code).name}")
    return sorted(each.resource_name for each in answer.resources)


async def judge_rights(world: World) -> None:
    """Each broker comes to know what was acknowledged, and nothing else."""
    client = world.client("judge-of-rights")
    wanted = sorted(world.rights)
    for broker, address in zip(world.brokers, client.seeds, strict=True):
        if not broker.is_serving:
            continue
        listed: list[str] | None = None
        with trio.move_on_after(SPREAD_SECONDS):
            while listed != wanted:
                with suppress(Unanswered):
                    listed = await rights_of(client, address, None)
                await trio.sleep(RETRY_SECONDS)
        if listed != wanted:
            differing = sorted(set(listed or ()) ^ set(wanted))
            raise Violation("other rights", f"{broker.name}: {differing}")
        world.trace.count("brokers whose rights were judged")


def _creation(name: str) -> AclCreation:
    right = _right(name)
    return AclCreation(
        int(right.resource_type),
        name,
        int(right.pattern_type),
        right.principal,
        right.host,
        int(right.operation),
        int(right.permission),
    )
