"""What tests of the ledger client on real parts share: how a ledger is written, and the environment
that networked parts run in."""

from contextlib import asynccontextmanager

import trio

from runtime.env import real_env


async def write(writer, count):
    """Appends so many entries; (entry id, error) of each, in the order in which they were told."""
    told = []
    finished = trio.Event()

    def done(entry_id, error):
        told.append((entry_id, error))
        if len(told) == count:
            finished.set()

    for _ in range(count):
        writer.append_nowait([b"entry ", b"%d" % (writer.last_add_pushed + 1)], done)
    with trio.fail_after(20):
        await finished.wait()
    return told


@asynccontextmanager
async def networked():
    """(env, nursery): a real one whose loop's turn, poller and network run until the end."""
    env = real_env()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(env.turn.serve)
        await nursery.start(env.poller.run)
        await nursery.start(env.net.run)
        yield env, nursery
        nursery.cancel_scope.cancel()
