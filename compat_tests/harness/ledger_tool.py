"""quire's ledger client behind the commands of java/LedgerTool.java, for the same tests.

    ledger_tool.py zk+hierarchical://HOSTS/ROOT

A process, so that it can be killed with its ledgers open. What only Java's tests ask (lists of
entries, unconfirmed entries) is answered as an unknown command.
"""

import json
import os
import sys
from dataclasses import fields
from functools import partial

import trio

from ledger.bookie_watcher import BookieWatcher
from ledger.client import LedgerClient
from ledger.config import LedgerClientConfig
from ledger.errors import (
    LedgerBusyError,
    LedgerClosedError,
    LedgerFencedError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
    UnauthorizedError,
)
from ledger.network.client import NetworkBookieClient
from ledger.network.config import NetworkConfig
from ledger.placement import RandomPlacement
from metadata.service_uri import parse_service_uri
from metadata.zookeeper import ZooKeeperStore
from metadata.zookeeper_session import ZooKeeperOptions
from runtime.env import real_env
from wire.bookkeeper.entry import DigestType

EVENT_EVERY = 20
MIB = 1024 * 1024
DIGESTS = {
    "CRC32": DigestType.CRC32,
    "MAC": DigestType.HMAC,
    "CRC32C": DigestType.CRC32C,
    "DUMMY": DigestType.DUMMY,
}
#: As BKException has them.
CODES = {
    LedgerFencedError: -101,
    LedgerClosedError: -11,
    NoSuchLedgerError: -7,
    NotEnoughBookiesError: -6,
    UnauthorizedError: -102,
}


def payload(entry_id: int, size: int) -> bytes:
    """Entry n: n as eight bytes, then n, n+1, n+2 ... as bytes."""
    start = entry_id % 256
    pattern = bytes(range(256)) * (size // 256 + 2)
    return (entry_id.to_bytes(8, "big") + pattern[start : start + max(size - 8, 0)])[:size]


def say(answer: dict) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


class Adds:
    """What became of adds under way."""

    def __init__(self, window: int, tell: bool = False) -> None:
        self.room = trio.Semaphore(window)
        self.acked = self.failed = self.code = self.misordered = 0
        self.last = -1
        self.pending = 0
        self.idle = trio.Event()
        self._tell = tell

    def done(self, entry_id: int, error: Exception | None) -> None:
        if error is None:
            if self.acked and entry_id != self.last + 1:
                self.misordered += 1
            self.acked += 1
            self.last = entry_id
            if self._tell and entry_id % EVENT_EVERY == 0:
                say({"event": "acked", "entry": entry_id})
        else:
            self.failed += 1
            self.code = self.code or CODES.get(type(error), -999)
        self.room.release()
        self.pending -= 1
        if not self.pending:
            self.idle.set()

    async def add(self, writer, size: int) -> None:
        await self.start()
        while True:
            try:
                entry_id = writer.last_add_pushed + 1
                writer.append_nowait([payload(entry_id, size)], self.done)
            except LedgerBusyError:
                has_room = trio.Event()
                writer.when_room(has_room.set)
                await has_room.wait()
            else:
                return

    async def start(self) -> None:
        """Once there is room for one more, which is under way from now on."""
        await self.room.acquire()
        self.pending += 1
        if self.idle.is_set():
            self.idle = trio.Event()

    async def wait_for_all(self) -> None:
        if self.pending:
            await self.idle.wait()

    def outcome(self, writer) -> dict:
        return {
            "acked": self.acked,
            "last": self.last,
            "failed": self.failed,
            "code": self.code,
            "misordered": self.misordered,
            "lac": writer.last_add_confirmed,
            "length": writer.length,
        }


class LedgerTool:
    def __init__(self, client: LedgerClient, nursery: trio.Nursery) -> None:
        self.client = client
        self.nursery = nursery
        self.handles: dict[int, object] = {}
        self.polls: dict[int, trio.MemorySendChannel[dict]] = {}
        self.results: dict[int, trio.MemoryReceiveChannel[dict]] = {}
        self.is_flooding = False
        self.flooded: trio.Event | None = None
        self.flood_adds: Adds | None = None

    def _keep(self, handle: object) -> int:
        self.handles[len(self.handles) + 1] = handle
        return len(self.handles)

    async def create(self, words: dict[str, str]) -> dict:
        kinds = {
            "deferred": self.client.create_ledger_deferred_sync,
            "adv": self.client.create_ledger_adv,
        }
        kind = next((each for each in kinds if words.get(each) == "true"), None)
        writer = await kinds.get(kind, self.client.create_ledger)(
            ensemble_size=int(words["e"]),
            write_quorum_size=int(words["qw"]),
            ack_quorum_size=int(words["qa"]),
            digest_type=DIGESTS[words.get("digest", "CRC32C")],
            password=words.get("password", "").encode(),
            custom_metadata={"custom": words["custom"].encode()} if "custom" in words else None,
        )
        return {"handle": self._keep(writer), "ledger": writer.ledger_id}

    async def append(self, words: dict[str, str]) -> dict:
        writer = self.handles[int(words["handle"])]
        adds = Adds(int(words.get("window", 1000)))
        for _ in range(int(words["count"])):
            await adds.add(writer, int(words["size"]))
        await adds.wait_for_all()
        return adds.outcome(writer)

    async def append_scattered(self, words: dict[str, str]) -> dict:
        writer, size = self.handles[int(words["handle"])], int(words["size"])
        count = int(words["count"])
        adds = Adds(count)
        for ten in range(0, count, 10):
            for entry_id in reversed(range(ten, min(ten + 10, count))):
                await adds.start()
                writer.add_nowait(entry_id, [payload(entry_id, size)], adds.done)
        await adds.wait_for_all()
        return adds.outcome(writer)

    async def force(self, words: dict[str, str]) -> dict:
        writer = self.handles[int(words["handle"])]
        before = writer.last_add_confirmed
        return {"before": before, "lac": await writer.force()}

    async def flood(self, words: dict[str, str]) -> dict:
        self.is_flooding, self.flooded = True, trio.Event()
        self.flood_adds = Adds(int(words.get("window", 50)), tell=True)
        writer, size = self.handles[int(words["handle"])], int(words["size"])

        async def flood() -> None:
            while self.is_flooding and not self.flood_adds.failed:
                await self.flood_adds.add(writer, size)
            await self.flood_adds.wait_for_all()
            self.flood_result = self.flood_adds.outcome(writer)
            self.flooded.set()

        self.nursery.start_soon(flood)
        return {"flooding": True}

    async def stop_flood(self, words: dict[str, str]) -> dict:
        self.is_flooding = False
        await self.flooded.wait()
        return self.flood_result

    async def close(self, words: dict[str, str]) -> dict:
        metadata = await self.handles[int(words["handle"])].close()
        return {"last": metadata.last_entry_id, "length": metadata.length}

    async def open(self, words: dict[str, str]) -> dict:
        start = trio.current_time()
        reader = await self.client.open_ledger(
            int(words["ledger"]),
            password=words.get("password", "").encode(),
            recover=words.get("recover", "true") == "true",
        )
        return {
            "handle": self._keep(reader),
            "ledger": reader.ledger_id,
            "last": reader.last_add_confirmed,
            "length": reader.metadata.length,
            "closed": reader.metadata.is_closed,
            "ms": (trio.current_time() - start) * 1000,
        }

    async def read(self, words: dict[str, str]) -> dict:
        reader, size = self.handles[int(words["handle"])], int(words["size"])
        reader = getattr(reader, "reader", reader)
        entry_id, last = int(words["first"]), int(words["last"])
        count_max = 1 if words.get("mode", "entries") == "entries" else 1000
        good, bad, requests = 0, [], 0
        while entry_id <= last:
            count = min(int(words.get("count_max", count_max)), last - entry_id + 1)
            requests += 1
            for entry in await reader.read(
                entry_id, count_max=count, size_max=int(words.get("size_max", MIB))
            ):
                if bytes(entry) == payload(entry_id, size):
                    good += 1
                else:
                    bad.append(entry_id)
                entry_id += 1
        return {"good": good, "bad": bad, "requests": requests}

    async def lac(self, words: dict[str, str]) -> dict:
        reader = self.handles[int(words["handle"])]
        return {"lac": await reader.read_last_add_confirmed()}

    async def tail(self, words: dict[str, str]) -> dict:
        """Follows the ledger from entry `first` until `last` was read."""
        reader, last = self.handles[int(words["handle"])], int(words["last"])
        entry_id, read = int(words["first"]), {"good": 0, "bad": []}
        with trio.fail_after(60):
            while entry_id <= last:
                known = min(await reader.wait_for(entry_id, timeout_ms=1000), last)
                if known < entry_id:
                    continue
                more = await self.read({**words, "first": entry_id, "last": known})
                read = {"good": read["good"] + more["good"], "bad": read["bad"] + more["bad"]}
                entry_id = known + 1
        return read

    async def poll(self, words: dict[str, str]) -> dict:
        """One wait for an entry, in the background; its outcome is `poll_result`'s."""
        number, entry_id = int(words["handle"]), int(words["entry"])
        reader, start = self.handles[number], trio.current_time()
        self.polls[number], receive = trio.open_memory_channel(1)
        self.results[number] = receive

        async def wait() -> None:
            known = await reader.wait_for(entry_id, timeout_ms=int(words["timeout_ms"]))
            ms = (trio.current_time() - start) * 1000
            found, good = -1, False
            if known >= entry_id:
                (entry,) = await reader.read(entry_id, count_max=1, size_max=MIB)
                found, good = entry_id, bytes(entry) == payload(entry_id, int(words.get("size", 0)))
            answer = {"code": 0, "lac": known, "entry": found, "good": good, "ms": ms}
            self.polls[number].send_nowait(answer)

        self.nursery.start_soon(wait)
        return {"polling": True}

    async def poll_result(self, words: dict[str, str]) -> dict:
        with trio.fail_after(60):
            return await self.results[int(words["handle"])].receive()

    async def metadata(self, words: dict[str, str]) -> dict:
        metadata = (await self.client.manager.read(int(words["ledger"]))).metadata
        return {
            "state": metadata.state.name,
            "last": metadata.last_entry_id,
            "length": metadata.length,
            "segments": [[first, list(bookies)] for first, bookies in metadata.segments],
            "digest": metadata.digest_type.name,
            "custom": metadata.custom_metadata.get("custom", b"").decode(),
        }

    async def delete(self, words: dict[str, str]) -> dict:
        await self.client.delete_ledger(int(words["ledger"]))
        return {"deleted": True}

    # -- what bench/bookies.py measures with -----------------------------------------------------

    async def bench_add(self, words: dict[str, str]) -> dict:
        writer = self.handles[int(words["handle"])]
        data = payload(0, int(words["size"]))
        adds = Adds(int(words["window"]))
        latencies: list[float] = []
        start = trio.current_time()
        end = start + float(words.get("seconds", 3))

        def done(begun: float, entry_id: int, error: Exception | None) -> None:
            latencies.append(trio.current_time() - begun)
            adds.done(entry_id, error)

        while not adds.failed and trio.current_time() < end:
            await adds.start()
            writer.append_nowait([data], partial(done, trio.current_time()))
        await adds.wait_for_all()
        seconds = trio.current_time() - start
        latencies.sort()
        return {
            "count": adds.acked,
            "failed": adds.failed,
            "code": adds.code,
            "seconds": seconds,
            "p50_ms": latencies[len(latencies) // 2] * 1000,
            "p99_ms": latencies[int(len(latencies) * 0.99)] * 1000,
        }

    async def bench_read(self, words: dict[str, str]) -> dict:
        reader = self.handles[int(words["handle"])]
        reader = getattr(reader, "reader", reader)
        entry_id, last, size = 0, int(words["last"]), 0
        is_batch = words.get("mode", "entries") == "batch"
        start = trio.current_time()

        async def one(entry_id: int) -> None:
            nonlocal size
            (entry,) = await reader.read(entry_id, count_max=1, size_max=1)
            size += len(entry)

        while entry_id <= last:
            count = min(int(words.get("batch", 100)), last - entry_id + 1)
            if is_batch:
                got = await reader.read(entry_id, count_max=count, size_max=5 * MIB)
                size += sum(map(len, got))
                entry_id += len(got)
                continue
            async with trio.open_nursery() as nursery:
                for each in range(entry_id, entry_id + count):
                    nursery.start_soon(one, each)
            entry_id += count
        return {"count": entry_id, "bytes": size, "seconds": trio.current_time() - start}

    async def bench_recover(self, words: dict[str, str]) -> dict:
        count, times = int(words["count"]), []
        for _ in range(int(words["ledgers"])):
            writer = await self.client.create_ledger(
                ensemble_size=3, write_quorum_size=3, ack_quorum_size=2
            )
            adds = Adds(count)
            for _ in range(count):
                await adds.add(writer, 1000)
            await adds.wait_for_all()
            start = trio.current_time()
            reader = await self.client.open_ledger(writer.ledger_id, recover=True)
            times.append((trio.current_time() - start) * 1000)
            assert reader.last_add_confirmed == count - 1
            await self.client.delete_ledger(writer.ledger_id)
        times.sort()
        return {"p50_ms": times[len(times) // 2], "max_ms": times[-1]}


async def main(uri_text: str, settings: list[str]) -> None:
    uri = parse_service_uri(uri_text)
    env = real_env()
    values = {key: int(value) for key, value in (setting.split("=") for setting in settings)}
    names = {field.name for field in fields(NetworkConfig)}
    network = NetworkConfig(**{name: values.pop(name) for name in names & values.keys()})
    async with trio.open_nursery() as nursery:
        nursery.start_soon(env.turn.serve)
        await nursery.start(env.poller.run)
        await nursery.start(env.net.run)
        store = ZooKeeperStore(ZooKeeperOptions(hosts=uri.hosts))
        await nursery.start(store.run)
        watcher = BookieWatcher(store, uri.ledgers_root)
        await nursery.start(watcher.run)
        bookies = NetworkBookieClient.following(env, watcher, network)
        await nursery.start(bookies.run)
        client = LedgerClient(
            store,
            bookies,
            env,
            LedgerClientConfig(ledgers_root=uri.ledgers_root, **values),
            placement=RandomPlacement(lambda: sorted(watcher.writable), env.rng),
        )
        watcher.on_arrival(client.health.came)
        await nursery.start(client.run)
        tool = LedgerTool(client, nursery)
        say({"ready": True})
        async for line in lines():
            name, *words = line.split()
            try:
                command = getattr(tool, name, None)
                if name.startswith("_") or command is None:
                    raise ValueError(f"no command {name}")
                answer = await command(dict(word.split("=", 1) for word in words))
            except Exception as error:  # whatever it is, the test has to see it
                code = CODES.get(type(error), 0)
                answer = {"error": type(error).__name__, "code": code, "message": str(error)}
            say(answer)
        nursery.cancel_scope.cancel()


async def lines():
    """Of standard input; the loop goes on while nothing comes."""
    rest = b""
    async with trio.lowlevel.FdStream(os.dup(0)) as stream:
        async for part in stream:
            *whole, rest = (rest + part).split(b"\n")
            for line in whole:
                yield line.decode()


if __name__ == "__main__":
    trio.run(main, sys.argv[1], sys.argv[2:])
