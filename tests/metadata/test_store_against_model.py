"""The stores against each other: any history of calls has the same answers on all.

Memory is the model; ZooKeeper takes part where conftest.py says so.
"""

import os
import uuid

import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metadata.memory import MemoryStore, MemoryTree
from metadata.sqlite import SqliteStore
from metadata.store import CheckOp, CreateOp, DeleteOp, MetadataError, PutOp
from metadata.zookeeper import ZooKeeperStore
from metadata.zookeeper_session import ZooKeeperOptions

paths = st.sampled_from(["/a", "/b", "/a/a", "/a/b", "/a/a/a", "/b/a"])
versions = st.sampled_from([-1, 0, 1])
ops = st.one_of(
    st.builds(CreateOp, paths, st.binary(max_size=2), st.booleans(), st.booleans()),
    st.builds(PutOp, paths, st.binary(max_size=2), versions),
    st.builds(DeleteOp, paths, versions),
)
in_multi = st.one_of(ops, st.builds(CheckOp, paths, versions))
steps = st.one_of(ops, st.lists(in_multi, min_size=1, max_size=5), st.just("restart"), paths)


async def _apply(store, step):
    """What the caller sees: the answer, or the kind of refusal and its path."""
    try:
        match step:
            case CreateOp():
                return await store.create(
                    step.path, step.data, ephemeral=step.ephemeral, make_parents=step.make_parents
                )
            case PutOp():
                return await store.put(step.path, step.data, step.version)
            case DeleteOp():
                return await store.delete(step.path, step.version)
            case str():
                return await store.create(step + "-", sequence=True)
            case _:
                return await store.multi(step)
    except MetadataError as error:
        return type(error), error.path


async def _dump(store, path="/"):
    nodes = [(path, await store.get(path))]
    for name in await store.children(path):
        nodes += await _dump(store, f"{path.rstrip('/')}/{name}")
    return nodes


async def _agree(history, open_other):
    tree = MemoryTree()
    async with trio.open_nursery() as nursery:
        memory, other = MemoryStore(tree), open_other()
        await nursery.start(other.run)
        for step in history:
            if step == "restart":
                await memory.aclose()
                await other.aclose()
                memory, other = MemoryStore(tree), open_other()
                await nursery.start(other.run)
            else:
                assert await _apply(memory, step) == await _apply(other, step)
            assert await _dump(memory) == await _dump(other)
        await other.aclose()


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(steps, max_size=20))
def test_sqlite_agrees(tmp_path_factory, history):
    file = str(tmp_path_factory.mktemp("agree") / "metadata.sqlite")

    async def inline(function, *args):
        await trio.lowlevel.checkpoint()
        return function(*args)

    trio.run(_agree, history, lambda: SqliteStore(file, inline))


if "QUIRE_TEST_ZOOKEEPER" in os.environ:

    @settings(max_examples=60, deadline=None)
    @given(st.lists(steps, max_size=20))
    def test_zookeeper_agrees(history):
        options = ZooKeeperOptions(os.environ["QUIRE_TEST_ZOOKEEPER"], f"/agree/{uuid.uuid4()}")
        trio.run(_agree, history, lambda: ZooKeeperStore(options))
