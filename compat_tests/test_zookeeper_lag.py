"""Our metadata store on a ZooKeeper server that follows its leader two seconds late.

Reads of such a server are of what was true then, and `sync` brings it up to date.
"""

import contextlib

import pytest
from harness.zookeeper import LaggingEnsemble
from harness.zookeeper_store import opened

from metadata.store import NoNodeError

in_trio = pytest.mark.trio

#: To connect by way of the server that lags takes as long as it lags, and more on a busy machine.
PATIENT = {"session_timeout_ms": 60_000, "operation_timeout_ms": 60_000}
ROUNDS = 5


@pytest.fixture(scope="module")
def ensemble(scratch):
    made = LaggingEnsemble(scratch / "lagging")
    try:
        yield made.start()
    finally:
        made.discard()


@pytest.mark.long
@in_trio
async def test_sync_brings_a_lagging_server_up_to_date(ensemble, closing_line):
    """What the store is told before `sync` is old, and after it is not. This machine may be
    busy for two seconds between a write and a read, so one old answer of five is enough."""
    async with (
        opened(ensemble.hosts, **PATIENT) as near,
        opened(ensemble.lagging_hosts, **PATIENT) as late,
    ):
        old_data = old_absence = old_presence = 0
        await near.create("/lag", b"0")
        await near.create("/lag/gone-0")
        await late.sync("/lag")
        for n in range(1, ROUNDS + 1):
            await near.put("/lag", b"%d" % n, n - 1)
            await near.create(f"/lag/made-{n}")
            await near.create(f"/lag/gone-{n}")
            await near.delete(f"/lag/gone-{n - 1}")
            with contextlib.suppress(NoNodeError):
                old_presence += (await late.get(f"/lag/gone-{n - 1}")).version == 0
            old_data += (await late.get("/lag")).data == b"%d" % (n - 1)
            old_absence += not await late.exists(f"/lag/made-{n}")
            await late.sync("/lag")
            assert (await late.get("/lag")).data == b"%d" % n
            assert await late.exists(f"/lag/made-{n}")
            assert not await late.exists(f"/lag/gone-{n - 1}")
            assert set(await late.children("/lag")) >= {f"made-{n}", f"gone-{n}"}
    # Else nothing lagged, and nothing was proven.
    assert min(old_data, old_absence, old_presence) >= 1, (old_data, old_absence, old_presence)
    closing_line(
        f"zookeeper: of {ROUNDS} reads of a server that lags by {ensemble.lag_ms:.0f} ms, "
        f"{old_data} gave old data, {old_absence} missed what was there, {old_presence} had what "
        f"was gone; none after sync"
    )


@in_trio
async def test_sync_is_for_all_that_was_written_before_it(ensemble):
    """`sync` names a path, and is of the whole tree: one is enough for a look at all of it."""
    async with (
        opened(ensemble.hosts, **PATIENT) as near,
        opened(ensemble.lagging_hosts, **PATIENT) as late,
    ):
        await near.create("/whole/a/b/c", b"here", make_parents=True)
        await late.sync("/")
        assert (await late.get("/whole/a/b/c")).data == b"here"


@in_trio
async def test_who_writes_by_way_of_a_lagging_server_reads_what_it_wrote(ensemble):
    """Of its own session's writes a server is never behind."""
    async with opened(ensemble.lagging_hosts, **PATIENT) as late:
        await late.create("/own", b"0")
        for n in range(2):
            assert await late.put("/own", b"%d" % (n + 1), n) == n + 1
            assert (await late.get("/own")).data == b"%d" % (n + 1)
