"""Our client's AUTH with a bookie of ours, and with bookies that do it wrong: both versions."""

import re
import struct

import pytest
import trio
from crc32c import crc32c

from bookie.server.auth import SaslDigest
from ledger.network.auth import SaslLogin, sasl_login
from ledger.network.client import NetworkBookieClient
from ledger.network.config import NetworkConfig
from runtime.config import ConfigError
from wire.bookkeeper import v2, v3
from wire.bookkeeper.frames import Protocol, detect_protocol
from wire.bookkeeper.responses import AuthResponse
from wire.bookkeeper.sasl_digest import DigestServer
from wire.bookkeeper.status import Status

MIB = 1 << 20
KEY = b"k" * 20
LOGIN = SaslLogin("writer", "secret")


@pytest.fixture
def bookie(serve):
    """bookie(users) -> its address; None: nobody is asked."""

    async def bookie(users):
        auth = None if users is None else SaslDigest(users, re.compile(".*"))
        _, port = await serve(auth=auth)
        return "127.0.0.1", port

    return bookie


@pytest.fixture
async def client(network_env, nursery):
    """client(address, login) -> a NetworkBookieClient that reaches the bookie `b` there."""

    async def client(address, login=LOGIN, connect_timeout_ms=5000):
        config = NetworkConfig(
            sasl=login,
            add_timeout_ms=8000,
            read_timeout_ms=8000,
            connect_timeout_ms=connect_timeout_ms,
        )
        made = NetworkBookieClient(network_env, lambda _: address, config)
        await nursery.start(made.run)
        return made

    yield client
    nursery.cancel_scope.cancel()


def entry(ledger_id, entry_id, payload):
    header = struct.pack(">qqqq", ledger_id, entry_id, entry_id - 1, len(payload))
    return [header + struct.pack(">I", crc32c(payload, crc32c(header))), payload]


async def outcomes(client, count=3):
    """Of so many v2 adds at once, and of a question of v3."""
    told, done = [], trio.Event()

    def answered(status):
        told.append(status)
        if len(told) == count:
            done.set()

    for entry_id in range(count):
        client.add_entry("b", 1, entry_id, KEY, entry(1, entry_id, b"x" * 200), 0, answered)
    with trio.fail_after(20):
        await done.wait()
    return [*told, (await client.bookie_info("b")).status]


FINE = [Status.EOK] * 4
FAILED = [Status.EIO] * 4


def errors(caplog):
    return [
        (each.msg, str(each.args["error"]))
        for each in caplog.records
        if each.msg in ("not_authenticated", "bookie_unreachable")
    ]


async def test_both_versions_are_authenticated(bookie, client):
    address = await bookie({"writer": "secret"})
    assert await outcomes(await client(address)) == FINE


async def test_a_bookie_that_asks_for_nothing(bookie, client, caplog):
    caplog.set_level("INFO")
    assert await outcomes(await client(await bookie(None))) == FINE
    assert "bookie_without_auth" in caplog.text


async def test_without_a_login_everything_is_refused(bookie, client):
    address = await bookie({"writer": "secret"})
    assert await outcomes(await client(address, None)) == [Status.EUA] * 4


async def test_a_wrong_password(bookie, client, caplog):
    caplog.set_level("INFO")
    address = await bookie({"writer": "other"})
    assert await outcomes(await client(address)) == FAILED
    words = "AUTH with the password (is it right?)"
    assert ("not_authenticated", f"{words}: the answer is EUA") in errors(caplog)
    closed = f"the bookie closed the connection at {words}"
    # Version 2 has no word for it.
    assert ("not_authenticated", closed) in errors(caplog)


class Impostor:
    """`script(number, payload)`: (plugin, payload), or a frame as it is, or None: no answer."""

    def __init__(self, script):
        self.script = script

    async def serve(self, stream):
        data, number, codec = bytearray(), 0, None
        async with stream:
            while chunk := await stream.receive_some():
                data += chunk
                while len(data) >= 4 and len(data) >= 4 + int.from_bytes(data[:4], "big"):
                    end = 4 + int.from_bytes(data[:4], "big")
                    frame = bytes(data[4:end])
                    del data[:end]
                    if codec is None:
                        codec = v2 if detect_protocol(frame) is Protocol.V2 else v3
                    request = codec.decode_request(frame)
                    told = self.script(number, bytes(request.payload))
                    number += 1
                    if isinstance(told, tuple):
                        plugin, payload = told
                        answer = AuthResponse(Status.EOK, plugin, payload, request.transaction_id)
                        told = b"".join(codec.encode_response(answer))
                    if told is not None:
                        await stream.send_all(told)


def challenge(number, _):
    """Right so far; then what is not the proof."""
    made = DigestServer({}, b"nonce", lambda _: True)
    return ("sasl", made.challenge() if number == 0 else b"rspauth=" + b"0" * 32)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (challenge, "the bookie does not know the password"),
        (lambda number, _: ("sasl", b"nonsense"), "AUTH: no directive"),
        (lambda number, _: ("sasl", b"n" * 4096), "a token of 4096 bytes"),
        (lambda number, _: ("other", b""), "it has the plugin 'other'"),
        (
            lambda number, payload: ("AuthDisabledPlugin", b"") if number else challenge(0, b""),
            "asks for none after the first step",
        ),
        (lambda number, _: b"\0\0\0\x05\xff\xff\xff\xff\xff", "AUTH: "),
        (lambda number, _: b"\0\x10\0\0", "frame of 1048576 bytes"),
        (lambda number, _: None, "no answer in time to AUTH"),
        (lambda number, _: challenge(0, b"") if number == 0 else None, "to AUTH with the password"),
    ],
    ids=["no proof", "garbled", "long", "plugin", "disabled late", "garbage", "large", "silent",
         "silent later"],
)  # fmt: skip
async def test_bookies_that_are_not_believed(nursery, client, caplog, script, words):
    caplog.set_level("INFO")
    serve = Impostor(script).serve
    listeners = await nursery.start(trio.serve_tcp, serve, 0)
    port = listeners[0].socket.getsockname()[1]
    made = await client(("127.0.0.1", port), connect_timeout_ms=700)
    assert await outcomes(made) == FAILED
    told = [text for _, text in errors(caplog)]
    assert len(told) >= 2
    assert all(words in text for text in told), told


async def test_more_than_was_asked_for(nursery, client, caplog):
    caplog.set_level("INFO")
    state = {}

    def script(number, payload):
        if number == 0:
            state["server"] = DigestServer({"writer": "secret"}, b"nonce", lambda _: True)
            return ("sasl", state["server"].challenge())
        answer = AuthResponse(Status.EOK, "sasl", state["server"].verify(payload)[1], 2)
        return b"".join(v3.encode_response(answer)) * 2

    listeners = await nursery.start(trio.serve_tcp, Impostor(script).serve, 0)
    port = listeners[0].socket.getsockname()[1]
    made = await client(("127.0.0.1", port))
    assert (await made.bookie_info("b")).status is Status.EIO
    assert "there is more than the answer to AUTH" in errors(caplog)[0][1]


@pytest.fixture
def jaas(tmp_path):
    path = tmp_path / "jaas.conf"
    module = "org.apache.zookeeper.server.auth.DigestLoginModule"
    path.write_text(
        f'BookKeeper {{ {module} required username="a" password="b"; }};\n'
        f'Auditor {{ {module} required username="c" password="d"; }};\n'
        f'Half {{ {module} required username="c"; }};\n'
    )
    return str(path)


def test_the_settings(jaas):
    values = {
        "clientAuthProviderFactoryClass": "org.apache.bookkeeper.sasl.SASLClientProviderFactory",
        "java.security.auth.login.config": jaas,
    }
    assert sasl_login({}) is None
    assert sasl_login(values) == SaslLogin("a", "b")
    assert sasl_login(values, is_auditor=True) == SaslLogin("c", "d")
    assert sasl_login({**values, "saslJaasClientSectionName": "Auditor"}) == SaslLogin("c", "d")
    assert "password" not in repr(SaslLogin("c", "d"))
    with pytest.raises(ConfigError, match="section Half: no password"):
        sasl_login({**values, "saslJaasClientSectionName": "Half"})
    with pytest.raises(ConfigError, match="no section Nobody"):
        sasl_login({**values, "saslJaasAuditorSectionName": "Nobody"}, is_auditor=True)
    with pytest.raises(ConfigError, match="X is not known here, SASLClientProviderFactory is"):
        sasl_login({**values, "clientAuthProviderFactoryClass": "X"})
