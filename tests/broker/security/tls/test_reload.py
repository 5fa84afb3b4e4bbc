"""Certificates that change while the server runs: by their files, and by its settings."""

import logging
import os

import pytest
import trio

from bookie.config_definitions import BOOKIE_CONFIGS
from broker.cluster.config_file import load as load_file
from broker.cluster.config_listener import ListenerSettings
from broker.security.tls.composition import tls_server
from broker.security.tls.reload import TlsReloads, Watched
from runtime.config import ConfigError
from runtime.env import RealClock
from runtime.timers import Timers
from runtime.turn import Turn
from wire.kafka.errors import ErrorCode
from wire.kafka.messages import ApiVersionsRequest, DescribeConfigsRequest
from wire.kafka.messages.configs import DescribeConfigsResource

HELLO = ApiVersionsRequest("tests", "1")
CHECK_MS = 10_000
LOCATION = "listener.name.ssl.ssl.keystore.location"
DAY_MS = 24 * 3_600_000


@pytest.fixture
def told(caplog):
    """told(event): what was logged of it."""
    caplog.set_level(logging.INFO)

    def told(event):
        return [one.args for one in caplog.records if one.getMessage() == event]

    return told


class Reloading:
    """Reloads of one listener, of which the clock is the test's."""

    def __init__(self, settings, nursery):
        static = {"ssl.keystore.type": "PEM", **settings}
        node = load_file("", {**static, "listeners": "SSL://127.0.0.1:0"}, BOOKIE_CONFIGS)
        self.dynamic = {}
        self.looks = 0
        self.time_ms = RealClock().time_ms

        def listener(dynamic):
            return ListenerSettings("SSL", {**static, **dynamic})

        self.server = tls_server(listener({}), node.broker, Turn(), Timers(), has_sasl=False)
        self.watched = Watched(self.server, listener, has_sasl=False)
        self.reloads = TlsReloads(
            [self.watched], lambda: self.dynamic, self._worker, self, CHECK_MS
        )
        nursery.start_soon(self.reloads.run)

    async def _worker(self, function, *arguments):
        self.looks += 1
        await trio.lowlevel.checkpoint()
        return function(*arguments)

    @property
    def serial(self):
        return self.server.loaded.certificate.serial_number

    async def pass_by(self, seconds=CHECK_MS / 1000 + 1):
        await trio.sleep(seconds)

    def set(self, **texts):
        self.dynamic = {name.replace("_", "."): text for name, text in texts.items()}
        self.reloads.settings_changed()


@pytest.fixture
def reloading(nursery):
    return lambda **settings: Reloading(
        {name.replace("_", "."): text for name, text in settings.items()}, nursery
    )


async def test_a_file_that_was_replaced_is_taken(reloading, autojump_clock, authority, write, told):
    first, second = (authority.made("CN=server") for _ in range(2))
    world = reloading(ssl_keystore_location=write("server.pem", first.pem))
    await world.pass_by()
    assert world.serial == first.certificate.serial_number
    write("server.pem", second.pem)
    await world.pass_by()
    assert world.serial == second.certificate.serial_number
    assert len(told("tls_loaded")) == 2
    await world.pass_by(100)
    assert world.reloads.reloads_count == 1


async def test_so_is_a_trust_store(reloading, autojump_clock, authority, write):
    world = reloading(
        ssl_keystore_location=write("server.pem", authority.made("CN=server").pem),
        ssl_truststore_type="PEM",
        ssl_truststore_location=write("trust.pem", authority.pem),
    )
    write("trust.pem", authority.made("CN=other").chain_pem)
    await world.pass_by()
    assert len(world.server.loaded.context.get_ca_certs(binary_form=True)) == 1
    assert world.reloads.reloads_count == 1


@pytest.mark.parametrize(
    ("data", "mode", "reason"),
    [
        (lambda first, second: second.pem[:100], 0o600, "no private key"),
        (lambda first, second: second.pem[:300], 0o600, "no certificates in PEM"),
        (lambda first, second: second.pem[:-100], 0o600, "one that is cut off"),
        (lambda first, second: second.key_pem + first.chain_pem, 0o600, "do not belong together"),
        (lambda first, second: second.pem, 0o644, "everybody may read it"),
    ],
)
async def test_what_does_not_load_changes_nothing_and_is_told_once(
    reloading, autojump_clock, authority, write, told, data, mode, reason
):
    first, second = (authority.made("CN=server") for _ in range(2))
    world = reloading(ssl_keystore_location=write("server.pem", first.pem))
    write("server.pem", data(first, second), mode)
    await world.pass_by(100)
    (said,) = told("tls_not_reloaded")
    assert reason in said["reason"]
    assert world.serial == first.certificate.serial_number
    write("server.pem", second.pem)
    await world.pass_by()
    assert world.serial == second.certificate.serial_number


async def test_a_file_that_is_gone_is_told_and_may_come_back(
    reloading, autojump_clock, authority, write, told, tmp_path
):
    first, second = (authority.made("CN=server") for _ in range(2))
    world = reloading(ssl_keystore_location=write("server.pem", first.pem))
    (tmp_path / "server.pem").unlink()
    await world.pass_by(50)
    assert len(told("tls_not_reloaded")) == 1
    write("server.pem", second.pem)
    await world.pass_by()
    assert world.serial == second.certificate.serial_number


async def test_a_key_that_others_may_read_no_more_is_taken(
    reloading, autojump_clock, authority, write
):
    """The file is the same, of the same time: chmod is all that was wanted."""
    first, second = (authority.made("CN=server") for _ in range(2))
    world = reloading(ssl_keystore_location=write("server.pem", first.pem))
    path = write("server.pem", second.pem, 0o644)
    await world.pass_by()
    assert world.serial == first.certificate.serial_number
    os.chmod(path, 0o600)
    await world.pass_by()
    assert world.serial == second.certificate.serial_number


async def test_another_subject_is_refused_unless_it_is_let(
    reloading, autojump_clock, authority, write, told
):
    path = write("server.pem", authority.made("CN=server").pem)
    worlds = [
        reloading(ssl_keystore_location=path, ssl_allow_dn_changes=allowed)
        for allowed in ("false", "true")
    ]
    other = authority.made("CN=another")
    write("server.pem", other.pem)
    await worlds[0].pass_by()
    assert [one.serial == other.certificate.serial_number for one in worlds] == [False, True]
    (said,) = told("tls_not_reloaded")
    assert "'CN=another' instead of 'CN=server'; ssl.allow.dn.changes" in said["reason"]


async def test_fewer_hosts_are_refused_unless_they_are_let_and_more_are_taken(
    reloading, autojump_clock, authority, write, told
):
    path = write("server.pem", authority.made("CN=server").pem)
    worlds = [
        reloading(ssl_keystore_location=path, ssl_allow_san_changes=allowed)
        for allowed in ("false", "true")
    ]
    fewer = authority.made("CN=server", hosts=("localhost",))
    write("server.pem", fewer.pem)
    await worlds[0].pass_by()
    assert [one.serial == fewer.certificate.serial_number for one in worlds] == [False, True]
    assert "no longer for 127.0.0.1; ssl.allow.san" in told("tls_not_reloaded")[0]["reason"]
    more = authority.made("CN=server", hosts=("localhost", "127.0.0.1", "logs.example.org"))
    write("server.pem", more.pem)
    await worlds[0].pass_by()
    assert [one.serial == more.certificate.serial_number for one in worlds] == [True, True]


async def test_settings_that_change_are_looked_at_at_once(
    reloading, autojump_clock, authority, write
):
    first, second = (authority.made("CN=server") for _ in range(2))
    world = reloading(ssl_keystore_location=write("server.pem", first.pem))
    await world.pass_by()
    path = write("second.pem", second.pem)
    world.set(**{LOCATION: path})
    await world.pass_by(0.1)
    assert world.serial == second.certificate.serial_number
    world.set()
    await world.pass_by(0.1)
    assert world.serial == first.certificate.serial_number


async def test_a_certificate_that_ends_soon_is_told_once_a_day(
    reloading, autojump_clock, authority, write, told
):
    made = authority.made("CN=server", days=(-1, 40))
    world = reloading(ssl_keystore_location=write("server.pem", made.pem))
    began = RealClock().time_ms()
    for days, count in ((0, 0), (9, 0), (11, 1), (11.5, 1), (12.1, 2), (50, 3)):
        world.time_ms = lambda days=days: began + int(days * DAY_MS)
        await world.pass_by(3 * CHECK_MS / 1000)
        assert len(told("tls_certificate_expires")) == count


async def test_settings_are_tried_on_before_they_are_stored(
    reloading, autojump_clock, authority, write
):
    first = authority.made("CN=server")
    world = reloading(ssl_keystore_location=write("server.pem", first.pem))
    await world.reloads.check({LOCATION: write("second.pem", authority.made("CN=server").pem)})
    assert world.serial == first.certificate.serial_number
    for path, match in (
        ("/none.pem", "No such file"),
        (write("other.pem", authority.made("CN=other").pem), "ssl.allow.dn.changes"),
    ):
        with pytest.raises(ConfigError, match=match) as raised:
            await world.reloads.check({LOCATION: path})
        assert raised.value.name == LOCATION


@pytest.mark.parametrize("is_for_brokers", [True, False])
async def test_brokers_that_meet_there_go_on_believing_somebody(
    reloading, autojump_clock, authority, write, told, is_for_brokers
):
    """Without a trust store this broker could connect to no other one."""
    world = reloading(
        ssl_keystore_location=write("server.pem", authority.made("CN=server").pem),
        ssl_truststore_type="PEM",
        ssl_truststore_location=write("trust.pem", authority.pem),
    )
    world.watched.is_for_brokers = is_for_brokers
    without = {"listener.name.ssl.ssl.truststore.location": ""}
    if is_for_brokers:
        with pytest.raises(ConfigError, match="brokers meet here, and believe nobody"):
            await world.reloads.check(without)
    else:
        await world.reloads.check(without)
    world.dynamic = without
    world.reloads.settings_changed()
    await world.pass_by()
    assert (world.server.loaded.client is not None) == is_for_brokers
    assert len(told("tls_not_reloaded")) == is_for_brokers


async def test_rules_for_names_are_those_of_the_start(start_tls):
    """A change would be in no effect, and rules that cannot be applied would end the next start."""
    client = await (await start_tls()).connect()
    for rules in ("DEFAULT", "RULE:(/x/"):
        with pytest.raises(AssertionError, match="Cannot update these configs dynamically"):
            await client.set_config(
                "0", 4, **{"listener.name.ssl.ssl.principal.mapping.rules": rules}
            )


async def test_over_the_wire(start_tls, authority, write, wait_until):
    """kafka-configs --alter of a listener's key store; those that are connected stay."""
    first, second = (authority.made("CN=server") for _ in range(2))
    world = await start_tls(first, {"quire.ssl.reload.check.ms": "0"})
    old = await world.connect()
    with pytest.raises(AssertionError, match="No such file"):
        await old.set_config("0", 4, **{LOCATION: "/none.pem"})
    path = write("second.pem", second.pem)
    await old.set_config("0", 4, **{LOCATION: path})
    await wait_until(lambda: world.tls.loaded.certificate == second.certificate)
    new = await world.connect()
    shown = [int(one.stream.getpeercert()["serialNumber"], 16) for one in (old, new)]
    assert shown == [one.certificate.serial_number for one in (first, second)]
    for client in (old, new):
        assert (await client.call(HELLO, 3)).error_code == 0
    body = DescribeConfigsRequest(resources=[DescribeConfigsResource(4, "0", [LOCATION])])
    (answer,) = (await new.call(body)).results
    assert answer.error_code == ErrorCode.NONE
    assert [(one.name, one.value) for one in answer.configs] == [(LOCATION, path)]


async def test_what_was_set_while_it_ran_is_used_from_the_start(
    start_tls, authority, write, tmp_path
):
    """Also if the file of before is gone."""
    first, second = (authority.made("CN=server") for _ in range(2))
    world = await start_tls(first)
    client = await world.connect()
    await client.set_config("0", 4, **{LOCATION: write("second.pem", second.pem)})
    await world.server.stop()
    gone = {"ssl.keystore.location": str(tmp_path / "gone.pem")}
    world = await start_tls(first, gone)
    assert world.tls.loaded.certificate == second.certificate
