"""quire's ledger client as a process of its own, to be killed, stopped and fenced.

    ledger_process.py zk+hierarchical://HOSTS/ROOT write E QW QA RATE     # until killed or fenced
    ledger_process.py zk+hierarchical://HOSTS/ROOT recover LEDGER
    ledger_process.py zk+hierarchical://HOSTS/ROOT verify                 # ledger ids on stdin

Prints JSON lines. What `write` appends can be told from the ledger's and the entry's numbers alone,
so that whoever reads it knows what should be there.
"""

import json
import logging
import sys
import time

import trio

from ledger.bookie_watcher import BookieWatcher
from ledger.client import LedgerClient
from ledger.config import LedgerClientConfig
from ledger.errors import (
    LedgerClosedError,
    LedgerError,
    LedgerFencedError,
    MetadataConflictError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
)
from ledger.network.client import NetworkBookieClient
from ledger.placement import RandomPlacement
from metadata.service_uri import parse_service_uri
from metadata.zookeeper import ZooKeeperStore
from metadata.zookeeper_session import ZooKeeperOptions
from runtime.env import real_env

ENTRIES_PER_LEDGER = 3000
WINDOW = 200
TICK_S = 0.005
RETRY_S = 0.1
RECOVERY_TRIES_S = 60
EXIT_FENCED = 3
#: Somebody else has decided, or is about to, where the ledger ends.
FENCED = (LedgerFencedError, LedgerClosedError, MetadataConflictError)


def payload(ledger_id: int, entry_id: int) -> bytes:
    """20 to 3,000 bytes that no other entry has."""
    size = 20 + (ledger_id * 7919 + entry_id * 104_729) % 2981
    words = b"%d/%d;" % (ledger_id, entry_id)
    return (words * (size // len(words) + 1))[:size]


def say(**answer: object) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


class Written:
    """One ledger being written: what was acked since it was last told."""

    def __init__(self, writer) -> None:
        self.writer = writer
        self.sent_at: list[float] = []
        self.acked_count = self.told_count = 0
        self.first_at = self.last_at = 0.0
        self.error: LedgerError | None = None

    def append(self) -> None:
        entry_id = self.writer.last_add_pushed + 1
        self.sent_at.append(time.monotonic())
        self.writer.append_nowait([payload(self.writer.ledger_id, entry_id)], self.done)

    def done(self, entry_id: int, error: LedgerError | None) -> None:
        if error is not None:
            self.error = self.error or error
            return
        assert entry_id == self.acked_count, "acks are in order"
        self.last_at = time.monotonic()
        if self.acked_count == self.told_count:
            self.first_at = self.last_at
        self.acked_count += 1

    def tell(self) -> None:
        if self.acked_count > self.told_count:
            last = self.acked_count - 1
            say(
                acked=[self.told_count, last],
                ledger=self.writer.ledger_id,
                at=[self.first_at, self.last_at],
                sent_at=self.sent_at[last],
            )
            self.told_count = self.acked_count


async def write(client: LedgerClient, sizes: list[int], rate: int) -> int:
    """Ledger after ledger; the exit code once one was fenced."""
    while True:
        writer = await create(client, sizes)
        if writer is None:
            await trio.sleep(RETRY_S)
            continue
        say(created=writer.ledger_id)
        written = Written(writer)
        await fill(written, rate)
        if isinstance(written.error, FENCED):
            say(fenced=writer.ledger_id, at=time.monotonic())
            return EXIT_FENCED
        if written.error is not None:
            say(failed=type(written.error).__name__, words=str(written.error))
        try:
            with trio.fail_after(RECOVERY_TRIES_S):
                closed = await writer.close()
            written.tell()
            say(closed=writer.ledger_id, last=closed.last_entry_id)
        except FENCED:
            written.tell()
            say(fenced=writer.ledger_id, at=time.monotonic())
            return EXIT_FENCED
        except (LedgerError, trio.TooSlowError) as error:
            say(failed=type(error).__name__, words=str(error))


async def create(client: LedgerClient, sizes: list[int]):
    """A new ledger, with as many copies as there are bookies for, but the ack quorum, as a
    partition's; None if that is too much now."""
    ack_quorum_size = sizes[2]
    for ensemble_size in range(sizes[0], ack_quorum_size - 1, -1):
        try:
            return await client.create_ledger(
                ensemble_size=ensemble_size,
                write_quorum_size=min(sizes[1], ensemble_size),
                ack_quorum_size=ack_quorum_size,
            )
        except LedgerError as error:
            if ensemble_size == ack_quorum_size or not isinstance(error, NotEnoughBookiesError):
                say(failed=type(error).__name__, words=str(error))
                return None
    return None


async def fill(written: Written, rate: int) -> None:
    writer, due = written.writer, 0.0
    while written.error is None and writer.last_add_pushed < ENTRIES_PER_LEDGER:
        due = min(due + rate * TICK_S, WINDOW)
        while due >= 1 and writer.pending_count < WINDOW and written.error is None:
            due -= 1
            written.append()
        await trio.sleep(TICK_S)
        written.tell()


async def recover(client: LedgerClient, ledger_id: int) -> None:
    """Says when nothing more can be acked, and where the ledger ends."""
    deadline = time.monotonic() + RECOVERY_TRIES_S
    started = time.monotonic()
    while True:
        try:
            reader = await client.open_ledger(ledger_id, recover=True)
        except LedgerError as error:
            if time.monotonic() > deadline:
                raise
            say(failed=type(error).__name__, words=str(error))
            await trio.sleep(RETRY_S)
        else:
            now = time.monotonic()
            say(
                recovered=ledger_id,
                last=reader.last_add_confirmed,
                at=now,
                seconds=now - started,
            )
            return


async def verify(client: LedgerClient) -> None:
    """Of each ledger: how far it goes, how many entries are as they were written."""
    for line in sys.stdin:
        ledger_id = int(line)
        try:
            reader = await client.open_ledger(ledger_id, recover=True)
        except NoSuchLedgerError:
            say(verified=ledger_id, last=-1, good=0, wrong=["the ledger is gone"])
            continue
        entry_id, good, wrong = 0, 0, []
        while entry_id <= reader.last_add_confirmed:
            for found in await reader.read(entry_id, count_max=500, size_max=1 << 20):
                if bytes(found) == payload(ledger_id, entry_id):
                    good += 1
                else:
                    wrong.append(f"entry {entry_id}: {bytes(found)[:40]!r}")
                entry_id += 1
        say(
            verified=ledger_id,
            last=reader.last_add_confirmed,
            length=reader.metadata.length,
            good=good,
            wrong=wrong[:5],
        )


async def main(uri_text: str, command: str, arguments: list[str]) -> int:
    uri = parse_service_uri(uri_text)
    env = real_env()
    code = 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(env.turn.serve)
        await nursery.start(env.poller.run)
        await nursery.start(env.net.run)
        store = ZooKeeperStore(ZooKeeperOptions(hosts=uri.hosts))
        await nursery.start(store.run)
        watcher = BookieWatcher(store, uri.ledgers_root)
        await nursery.start(watcher.run)
        bookies = NetworkBookieClient.following(env, watcher)
        await nursery.start(bookies.run)
        client = LedgerClient(
            store,
            bookies,
            env,
            LedgerClientConfig(ledgers_root=uri.ledgers_root),
            placement=RandomPlacement(lambda: sorted(watcher.writable), env.rng),
        )
        watcher.on_arrival(client.health.came)
        await nursery.start(client.run)
        if command == "write":
            *sizes, rate = map(int, arguments)
            code = await write(client, sizes, rate)
        elif command == "recover":
            await recover(client, int(arguments[0]))
        else:
            await verify(client)
        nursery.cancel_scope.cancel()
    return code


if __name__ == "__main__":
    logging.basicConfig(format="%(asctime)s %(name)s %(message)s", level=logging.INFO)
    sys.exit(trio.run(main, sys.argv[1], sys.argv[2], sys.argv[3:]))
