"""A listener with TLS over real sockets: who gets in, as whom, and what a stranger may cost."""

import contextlib
import logging
import ssl

import pytest
import trio

from broker.security.tls import server as tls_module
from tests.broker.security.sasl.conftest import JAAS, Speaker
from tests.broker.security.tls.conftest import SERVER_ONLY, Authority, rsa_key
from wire.kafka.messages import AlterClientQuotasRequest, ApiVersionsRequest
from wire.kafka.messages.configs import AlterClientQuotasRequestEntryData, EntityData, OpData

HELLO = ApiVersionsRequest("tests", "1")
#: What a client of TLS 1.0 to 1.3 says first, cut off.
BEGUN = bytes.fromhex("16030100c8010000c40303")


@pytest.fixture
def refused(caplog):
    """The reasons of those that were turned away, so far."""
    caplog.set_level(logging.INFO)

    def reasons():
        return [one.args["reason"] for one in caplog.records if one.getMessage() == "tls_refused"]

    return reasons


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_who_shows_no_certificate_is_anonymous(start_tls, version):
    world = await start_tls()
    client = await world.connect(minimum_version=version, maximum_version=version)
    assert (await client.call(HELLO, 3)).error_code == 0
    await client.create_topic("t", 1)
    assert (await client.produce("t", [b"x" * 100_000])).error_code == 0
    assert len((await client.fetch("t", 0)).records) > 100_000
    assert world.principals == ["User:ANONYMOUS"]
    assert (world.tls.handshakes_count, world.tls.waiting_count) == (1, 0)


@pytest.mark.parametrize("auth", ["requested", "required"])
async def test_a_certificate_says_who_the_client_is(start_tls, authority, auth):
    world = await start_tls(settings={"ssl.client.auth": auth})
    client = await world.connect(authority.made("O=Example,OU=Ops,CN=alice"))
    assert (await client.call(HELLO, 3)).error_code == 0
    assert world.principals == ["User:CN=alice,OU=Ops,O=Example"]


async def test_its_name_is_made_by_rules_and_who_has_none_is_refused(
    start_tls, authority, refused, wait_until
):
    rules = "RULE:^CN=([a-z]+),OU=Ops.*$/$1/U"
    world = await start_tls(
        settings={"ssl.client.auth": "requested", "ssl.principal.mapping.rules": rules}
    )
    client = await world.connect(authority.made("O=Example,OU=Ops,CN=alice"))
    assert (await client.call(HELLO, 3)).error_code == 0
    assert world.principals == ["User:ALICE"]
    stranger = await world.connect(authority.made("O=Example,OU=Dev,CN=bob"))
    await _sends_in_vain(stranger)
    await wait_until(lambda: world.principals == ["User:ALICE"])
    assert refused() == ["no rule of ssl.principal.mapping.rules is for 'CN=bob,OU=Dev,O=Example'"]
    anonymous = await world.connect()  # no rule is asked
    assert (await anonymous.call(HELLO, 3)).error_code == 0


async def _sends_in_vain(client):
    try:
        await client.send(HELLO, version=3)
        assert await client.is_closed()
    except (trio.BrokenResourceError, ssl.SSLError):
        pass


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda good: None, "did not return a certificate"),
        (lambda good: good.made("CN=alice", days=(-9, -1)), "certificate has expired"),
        (lambda good: good.made("CN=alice", days=(1, 9)), "certificate is not yet valid"),
        (lambda good: good.made("CN=alice", usage=SERVER_ONLY), "unsuitable certificate purpose"),
        (
            lambda good: Authority("CN=other").made("CN=alice"),
            "self-signed certificate in certificate chain",
        ),
    ],
)
async def test_a_bad_certificate_is_refused(
    start_tls, authority, refused, make, reason, wait_until
):
    world = await start_tls(settings={"ssl.client.auth": "required"})
    with contextlib.suppress(trio.BrokenResourceError):  # already while they shake hands
        await _sends_in_vain(await world.connect(make(authority)))
    await wait_until(refused)
    assert reason in refused()[0]
    await wait_until(lambda: not world.principals)
    assert world.tls.failed_count == 1


async def test_plain_bytes_on_a_listener_with_tls(start_tls, refused):
    world = await start_tls()
    plain = await world.server.connect()
    await plain.send(HELLO, version=3)
    assert await plain.is_closed()
    assert refused() == ["plain bytes where TLS is spoken"]


async def test_tls_on_a_listener_without(start_server, caplog):
    client = await (await start_server()).connect()
    await client.stream.send_all(BEGUN)
    assert await client.is_closed()
    (said,) = [one.args for one in caplog.records if one.getMessage() == "bad_frame"]
    assert "TLS where plain bytes are spoken" in str(said["error"])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_versions_that_are_not_enabled_are_refused(start_tls, refused, wait_until):
    """Also those that no server of ours speaks."""
    world = await start_tls(settings={"ssl.enabled.protocols": "TLSv1.3"})
    old = (ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1, ssl.TLSVersion.TLSv1_2)
    for count, version in enumerate(old, 1):
        context = world.context(minimum_version=version, maximum_version=version)
        context.set_ciphers("ALL:@SECLEVEL=0")
        with pytest.raises(trio.BrokenResourceError):
            await world.stream(context=context)
        await wait_until(lambda count=count: len(refused()) == count)
    assert ["unsupported protocol" in reason for reason in refused()] == [True] * 3
    assert world.tls.handshakes_count == 0


async def test_with_sasl_the_certificate_names_nobody(start_tls, authority):
    settings = {
        "listeners": "SASL_SSL://127.0.0.1:0",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": JAAS,
        "listener.name.sasl_ssl.ssl.client.auth": "required",
        "ssl.principal.mapping.rules": "RULE:nobody/x/",
    }
    world = await start_tls(settings=settings)
    client = await world.connect(authority.made("CN=somebody"))
    assert world.principals == ["User:ANONYMOUS"]
    assert (await Speaker(client).login()).error_code == 0
    assert world.principals == ["User:alice"]


async def test_a_listener_with_sasl_asks_for_certificates_only_if_it_is_said_of_it(start_tls):
    settings = {
        "listeners": "SASL_SSL://127.0.0.1:0",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": JAAS,
        "ssl.client.auth": "required",
    }
    client = await (await start_tls(settings=settings)).connect()
    assert (await Speaker(client).login()).error_code == 0


async def test_who_does_not_shake_hands_is_closed_in_time(start_tls, refused, wait_until):
    world = await start_tls(settings={"quire.ssl.handshake.timeout.ms": "200"})
    slow = await world.server.connect()

    async def one_byte_at_a_time():
        for byte in BEGUN * 100:
            await slow.stream.send_all(bytes([byte]))
            await trio.sleep(0.03)

    with trio.fail_after(5), pytest.raises(trio.BrokenResourceError):
        await one_byte_at_a_time()
    assert refused() == ["no handshake in time"]
    assert world.tls.waiting_count == 0


async def test_a_crowd_that_waits_keeps_nobody_out(start_tls, refused, wait_until):
    world = await start_tls(settings={"quire.ssl.handshakes.max": "20"})
    crowd = []
    for number in range(60):
        crowd.append(await world.server.connect())
        if number % 2:
            await crowd[-1].stream.send_all(BEGUN)
    await wait_until(lambda: world.tls.waiting_count == 20)
    client = await world.connect()
    assert (await client.call(HELLO, 3)).error_code == 0
    assert len(refused()) == 41
    assert set(refused()) == {"too many whose handshake was not done"}
    for one in crowd:
        await one.aclose()
    await wait_until(lambda: world.tls.waiting_count == 0)
    assert len(world.server.parts["Dispatcher"].connections) == 1


async def test_limits_of_connections_count_those_with_tls(start_tls, wait_until):
    world = await start_tls(settings={"max.connections.per.ip": "2"})
    clients = [await world.connect() for _ in range(2)]
    with pytest.raises((trio.BrokenResourceError, ssl.SSLError)):
        await world.connect()
    await clients[0].aclose()
    await wait_until(lambda: len(world.server.parts["Dispatcher"].connections) == 1)
    await world.connect()


async def test_who_comes_too_often_from_an_address_takes_nobodys_place(
    start_tls, refused, wait_until
):
    """Among those who shake hands."""
    world = await start_tls(settings={"quire.ssl.handshakes.max": "20"})
    rate = OpData("connection_creation_rate", 1.0, remove=False)
    entry = AlterClientQuotasRequestEntryData([EntityData("ip", "127.0.0.2")], [rate])
    answer = await (await world.connect()).call(AlterClientQuotasRequest([entry]))
    assert [one.error_code for one in answer.entries] == [0]
    crowd = [
        await trio.open_tcp_stream(*world.server.address, local_address="127.0.0.2")
        for _ in range(40)
    ]
    await wait_until(lambda: world.server.parts["KafkaServer"].throttled_count >= 25)
    assert world.tls.waiting_count <= 15
    assert refused() == []
    for one in crowd[15:]:
        with trio.fail_after(5):
            assert await one.receive_some() == b""
    for one in crowd:
        await one.aclose()


async def test_a_subject_of_any_length_is_not_matched(start_tls, authority, refused, monkeypatch):
    monkeypatch.setattr(tls_module, "SUBJECT_CHARACTERS_MAX", 10)
    world = await start_tls(settings={"ssl.client.auth": "requested"})
    await _sends_in_vain(await world.connect(authority.made("CN=" + "a" * 60)))
    assert refused() == ["a subject of 63 characters"]


async def test_a_burst_of_large_answers(start_tls):
    """Many clients at once, over keys of RSA: all are served, whoever came first."""
    world = await start_tls()
    done = []

    async def one():
        client = await world.connect()
        for _ in range(3):
            assert (await client.call(HELLO, 3)).error_code == 0
        done.append(1)

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            for _ in range(100):
                nursery.start_soon(one)
    assert len(done) == world.tls.handshakes_count == 100
    assert rsa_key().key_size == 2048
