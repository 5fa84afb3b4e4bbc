"""Our metadata store on a ZooKeeper server, for tests of the store itself."""

import contextlib

import trio

from metadata.zookeeper import ZooKeeperStore
from metadata.zookeeper_session import ZooKeeperOptions


@contextlib.asynccontextmanager
async def opened(hosts, chroot="", **options):
    """A running store; `options` are ZooKeeperOptions'. It is closed also if the test is
    cancelled."""
    store = ZooKeeperStore(ZooKeeperOptions(hosts, chroot, **options))
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        try:
            yield store
        finally:
            with trio.CancelScope(shield=True):
                await store.aclose()
