"""ACLs in metadata: bounded documents, followed by every broker."""

from itertools import count, islice

import pytest
import trio

from broker.api import STEP_UNITS, all_steps
from broker.security.acls import documents_core
from broker.security.acls import store as store_module
from broker.security.acls.bindings import AclFilter, Permission
from broker.security.acls.documents_core import (
    ACL_UNITS,
    ACLS_PATH,
    decoding,
    document_of,
    encoding,
)
from broker.security.acls.index_core import AclIndex
from broker.security.acls.store import AclStore
from metadata.memory import MemoryStore, MemoryTree
from runtime.config import ConfigError
from tests.broker.security.acls.conftest import acl_of
from wire.kafka.errors import ErrorCode


@pytest.fixture
def start(nursery):
    """start() -> an AclStore of a broker of one cluster, which follows the others."""
    tree = MemoryTree()

    async def start(*, follows=True):
        metadata = MemoryStore(tree)
        await nursery.start(metadata.run)
        store = AclStore(metadata, AclIndex())
        store.metadata = metadata
        await store.load()
        if follows:
            await nursery.start(store.run)
        return store

    return start


ACLS = [acl_of(f"-u{number} READ TOPIC t{number % 7}") for number in range(1000)]


async def until(condition):
    with trio.fail_after(5):
        while not condition():
            await trio.sleep(0.001)


async def test_acls_of_a_document_are_in_an_order_that_is_no_sets(start):
    """Which is another one in each process: a run of the simulation would not be the next one's."""
    store = await start()
    many = [acl_of(f"-u{number} READ TOPIC t{number % 7}") for number in range(6000)]
    some = [acl for acl in many if document_of(acl) == document_of(many[0])]
    assert len(some) > 12, "too few to be in order by chance"
    await store.add(reversed(some))
    listed = list(store.index.candidates(AclFilter()))
    assert listed == sorted(some, key=lambda acl: (acl.name, acl.principal))


async def test_what_one_broker_changes_the_others_have_soon(start):
    one, other = await start(), await start()
    assert await one.add(ACLS[:10]) == {}
    assert len(one.index) == 10, "when it is answered it is in force here"
    await until(lambda: len(other.index) == 10)
    await other.remove(ACLS[:3])
    await other.add(ACLS[9:12])
    await until(lambda: len(one.index) == 9)
    assert all(acl in one.index for acl in ACLS[3:12])
    late = await start()
    assert len(late.index) == 9


class Ordered(AclIndex):
    """Notes the permissions of what is changed."""

    def __init__(self):
        super().__init__()
        self.changed = []

    def add(self, acl):
        self.changed.append(acl.permission)
        return super().add(acl)

    def remove(self, acl):
        self.changed.append(acl.permission)
        return super().remove(acl)


async def test_what_denies_comes_first_and_goes_last(start, monkeypatch):
    """Others have the loop in between."""
    monkeypatch.setattr(store_module, "document_of", lambda acl: "00")
    store = await start(follows=False)
    store.index = index = Ordered()
    texts = ("a READ TOPIC *", "-a READ TOPIC t", "b READ TOPIC *", "-b READ TOPIC t")
    some = [acl_of(text) for text in texts]
    denying, allowing = [Permission.DENY] * 2, [Permission.ALLOW] * 2
    assert await store.add(some) == {}
    assert index.changed == denying + allowing
    assert await store.remove(some) == {}
    assert index.changed[4:] == allowing + denying


async def test_two_brokers_change_one_document(start):
    one, other = await start(), await start()
    by_document = {}
    for acl in ACLS:
        by_document.setdefault(document_of(acl), []).append(acl)
    same = max(by_document.values(), key=len)
    assert len(same) > 4
    async with trio.open_nursery() as both:
        for number, acl in enumerate(same):
            both.start_soon((one, other)[number % 2].add, [acl])
    await until(lambda: len(one.index) == len(other.index) == len(same))
    async with trio.open_nursery() as both:
        for number, acl in enumerate(same):
            both.start_soon((one, other)[number % 2].remove, [acl])
    await until(lambda: len(one.index) == len(other.index) == 0)


async def test_a_change_rewrites_one_of_many_documents(start):
    one = await start(follows=False)
    await one.add(ACLS)
    names = await one.metadata.children(ACLS_PATH)
    assert len(names) > 200
    before = await one.metadata.get_many([f"{ACLS_PATH}/{name}" for name in names])
    await one.remove([ACLS[0]])
    after = await one.metadata.get_many([f"{ACLS_PATH}/{name}" for name in names])
    assert sum(one.version != other.version for one, other in zip(before, after, strict=True)) == 1
    assert max(len(node.data) for node in after) < 2_000


async def test_a_document_does_not_grow_without_end(start, monkeypatch):
    monkeypatch.setattr("broker.security.acls.store.DOCUMENT_BYTES_MAX", 300)
    one = await start()
    failed = await one.add(ACLS)
    assert failed
    assert {error.code for error in failed.values()} == {ErrorCode.INVALID_REQUEST}
    assert all(acl not in one.index for acl in failed)
    nodes = await one.metadata.get_many(
        [f"{ACLS_PATH}/{name}" for name in await one.metadata.children(ACLS_PATH)]
    )
    assert max(len(node.data) for node in nodes) <= 300
    assert await one.remove(ACLS) == {}
    assert len(one.index) == 0


async def test_others_have_the_loop_while_a_full_document_is_read_and_written(start):
    """Who makes ACLs can choose them so that they come together: 4,000 of them took 25 ms to be
    read and as many to be written, at each change."""
    names = (acl_of(f"b READ TOPIC t{number}") for number in count())
    together = list(islice((acl for acl in names if document_of(acl) == "00"), 1001))
    store = await start(follows=False)
    assert await store.add(together[:1000]) == {}
    turns, done = 0, trio.Event()

    async def others():
        nonlocal turns
        while not done.is_set():
            turns += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(others)
        assert await store.add(together[1000:]) == {}
        done.set()
    slices = 1000 * ACL_UNITS // STEP_UNITS
    assert turns > 3 * slices, "read, written, and read for the index"


async def test_what_is_not_understood_ends_the_start_and_changes_nothing_later(start, caplog):
    one = await start()
    name = document_of(ACLS[0])
    await one.add(ACLS[:1])
    await one.metadata.put(f"{ACLS_PATH}/{name}", b'[[99,"t",3,"User:a","*",3,3]]', 0)
    await until(lambda: "acls_not_understood" in caplog.text)
    assert ACLS[0] in one.index
    failed = await one.remove(ACLS[:1])
    assert failed[ACLS[0]].code == ErrorCode.UNKNOWN_SERVER_ERROR
    with pytest.raises(ConfigError, match="has no ACLs"):
        await start()


def test_a_document_is_read_as_it_was_written():
    odd = [acl_of("- CREATE TOPIC *"), acl_of('a"b@::1 ALL GROUP \\x*')]
    data = all_steps(encoding([*ACLS[:5], *odd]))
    assert all_steps(decoding(data)) == {*ACLS[:5], *odd}
    assert all_steps(decoding(b"")) == frozenset()
    assert documents_core.DOCUMENT_BYTES_MAX < 1 << 20
