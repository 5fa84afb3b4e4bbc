"""Administrators who give and take rights while everything breaks, and who judges what brokers know
of them.

Each right denies everybody to describe a topic of its own, which is not there; the names are such
that all rights are in a few documents, in which brokers' changes meet. What had an attempt without
an answer is not taken again: that attempt may come late.

*right lost*, *right left*: a broker that acknowledged that a right was given, or taken, does not
list it so, or does not act by it; or at the end some broker knows others than those that were
acknowledged.
"""

from __future__ import annotations

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
#: Documents that all rights are in.
DOCUMENTS = ("00", "01")
#: Between two changes of an administrator, in seconds.
CHANGE_SECONDS = 0.5
#: As long as nothing fails, all brokers know a change within so long.
SPREAD_SECONDS = 10.0


def right(name: str) -> AclBinding:
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
        request = CreateAclsRequest(creations=[_creation(right(name))])
        attempts = 0
        while True:
            attempts += 1
            address = self._somewhere()
            try:
                answer = await self._client.ask_at(address, request, CreateAclsResponse, VERSION)
            except Unanswered:
                await trio.sleep(RETRY_SECONDS)
                continue
            if self._is_done(answer.results[0].error_code):
                break
            await trio.sleep(RETRY_SECONDS)
        self._world.rights.add(name)
        self._world.trace.count("rights given")
        if attempts == 1:
            self._certain.append(name)
        await self._judge(address, name, is_given=True)

    async def _take(self) -> None:
        name = self._certain.pop(self._rng.randrange(len(self._certain)))
        request = DeleteAclsRequest(filters=[_filter(name)])
        while True:
            address = self._somewhere()
            try:
                answer = await self._client.ask_at(address, request, DeleteAclsResponse, VERSION)
            except Unanswered:
                await trio.sleep(RETRY_SECONDS)
                continue
            (result,) = answer.filter_results
            codes = [result.error_code, *(each.error_code for each in result.matching_acls)]
            # None matches at a broker that has not heard of it yet.
            if all([self._is_done(code) for code in codes]) and result.matching_acls:
                break
            if await self._is_gone(address, name):
                break
            await trio.sleep(RETRY_SECONDS)
        self._world.rights.discard(name)
        self._world.trace.count("rights taken")
        await self._judge(address, name, is_given=False)

    def _new_name(self) -> str:
        while True:
            self._count += 1
            name = f"{self.name}-{self._count}"
            if document_of(right(name)) in DOCUMENTS:
                return name

    def _somewhere(self) -> tuple[str, int]:
        addresses = self._world.broker_addresses
        return addresses[self._rng.randrange(len(addresses))]

    def _is_done(self, error_code: int) -> bool:
        code = ErrorCode(error_code)
        if code is ErrorCode.REQUEST_TIMED_OUT:
            self._world.trace.count("rights not changed in time")
            return False
        if code is not ErrorCode.NONE:
            raise Violation("refused", f"{self.name}: {code.name}")
        return True
