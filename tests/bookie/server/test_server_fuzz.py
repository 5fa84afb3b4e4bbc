"""Any order of requests, sensible or not, over any number of connections: a bookie goes on."""

import random
import re

import pytest
import trio

from bookie.server.auth import SaslDigest
from bookie.server.config import server_config
from wire.bookkeeper import v2, v3
from wire.bookkeeper.entry import Digest, DigestType
from wire.bookkeeper.errors import EncodeError
from wire.bookkeeper.requests import (
    AddRequest,
    AuthRequest,
    BatchReadRequest,
    BookieInfoRequest,
    ForceLedgerRequest,
    ListEntriesRequest,
    ReadLacRequest,
    ReadRequest,
    StartTlsRequest,
    WriteLacRequest,
)
from wire.bookkeeper.status import Status

KEYS = (b"k" * 20, b"other" * 4, bytes(20))
LEDGERS = (0, 1, 1, 1, 2, 3, 7, -1, -(2**63), 2**63 - 1)
ENTRIES = (0, 1, 2, 3, 4, 5, -1, -2, -(2**63), 2**63 - 1, 2**31)
NUMBERS = (0, 1, 2, 5, -1, 100, 2**31 - 1, -(2**31))
CONNECTIONS = 60


class Chaos:
    """Requests at random. Ids are few, so that they meet."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.number = 0

    def add(self):
        choice = self.rng.choice
        ledger_id, entry_id = choice(LEDGERS), choice(ENTRIES)
        ids = (ledger_id, entry_id) if self.rng.random() < 0.8 else (choice(LEDGERS), 3)
        body = b"".join(each.to_bytes(8, "big", signed=True) for each in (*ids, -1, 0))
        body += self.rng.randbytes(choice((0, 4, 30, 30, 2000)))
        cut = 16 if self.rng.random() < 0.1 else len(body)
        write_flags = choice((0, 0, 0, 1, 2))
        return AddRequest(
            ledger_id, entry_id, choice(KEYS), (body[:cut],), self.flags(), write_flags
        )

    def flags(self):
        return self.rng.choice((0, 0, 0, 0, 1, 2, 4, 7))

    def read(self):
        choice = self.rng.choice
        return ReadRequest(
            choice(LEDGERS),
            choice(ENTRIES),
            self.flags(),
            choice((None, *KEYS)),
            choice((None, None, *ENTRIES)),
            choice((None, 0, 1, 30, -1)),
            self.rng.random() < 0.1,
        )

    def other(self):
        choice = self.rng.choice
        ledger_id, key = choice(LEDGERS), choice(KEYS)
        packet = self.rng.randbytes(choice((0, 8, 16, 20, 40)))
        if self.rng.random() < 0.5:
            packet = Digest(DigestType.CRC32C, b"").seal_lac(max(ledger_id, 0), 3)
        return choice(
            (
                WriteLacRequest(ledger_id, choice(ENTRIES), key, packet),
                ReadLacRequest(ledger_id),
                ForceLedgerRequest(ledger_id),
                BookieInfoRequest(choice((0, 1, 2, 3, 2**31 - 1))),
                ListEntriesRequest(ledger_id),
                AuthRequest(choice(("sasl", "", "none")), self.rng.randbytes(choice((0, 5, 300)))),
                StartTlsRequest(),
                BatchReadRequest(
                    ledger_id, choice(ENTRIES), choice(NUMBERS), choice(NUMBERS), self.flags(), key
                ),
            )
        )

    def frame(self, codec):
        """Of a request that this version can say."""
        while True:
            kind = self.rng.choice((self.add, self.add, self.read, self.read, self.other))
            request = kind()
            self.number += 1
            if type(request) is not AddRequest or request.flags == 0:
                request.transaction_id = self.number
            try:
                return b"".join(codec.encode_request(request))
            except (EncodeError, AssertionError):
                continue

    async def connection(self, port):
        """One peer that sends some requests in pieces, reads for a moment, and leaves."""
        rng = self.rng
        codec = rng.choice((v2, v3, v3))
        data = b"".join(self.frame(codec) for _ in range(rng.choice((1, 3, 20, 200))))
        if rng.random() < 0.1:
            data = data[: rng.randrange(len(data))]
        try:
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                while data:
                    size = rng.choice((1, 7, 100, 5000, 1 << 20))
                    await stream.send_all(data[:size])
                    data = data[size:]
                with trio.move_on_after(rng.choice((0, 0.001, 0.05))):
                    while await stream.receive_some():
                        pass
        except (trio.BrokenResourceError, OSError):
            pass  # it may throw us out


async def serves(port, status=Status.EOK):
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(b"".join(v3.encode_request(BookieInfoRequest(3, 8))))
        data = b""
        with trio.fail_after(60):
            while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
                chunk = await stream.receive_some()
                assert chunk, "the bookie closed the connection"
                data += chunk
    assert v3.decode_response(data[4:]).status is status


async def provoke(port, seed, status=Status.EOK):
    """Four peers at a time; after each four the bookie must serve."""
    chaos = Chaos(seed)
    for _ in range(CONNECTIONS // 4):
        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(chaos.connection, port)
        await serves(port, status)


@pytest.mark.parametrize("seed", range(8))
async def test_whatever_is_asked_a_bookie_goes_on(serve, seed):
    _, port = await serve()
    await provoke(port, seed)


@pytest.mark.parametrize("seed", range(4))
async def test_whatever_a_stranger_asks_a_bookie_goes_on(serve, seed):
    _, port = await serve(auth=SaslDigest({"writer": "secret"}, re.compile("writer")))
    await provoke(port, seed, Status.EUA)


@pytest.mark.parametrize("seed", range(4))
async def test_whatever_is_asked_before_tls_a_bookie_goes_on(serve, tls_settings, seed):
    _, port = await serve(tls=server_config(tls_settings, lambda _: "127.0.0.1").tls)
    await provoke(port, seed)
