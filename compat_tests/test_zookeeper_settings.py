"""ZooKeeper's settings from bk_server.conf and server.properties: TLS, ACLs, the session's timeout.

A real ZooKeeper with TLS and digest credentials; a bookie, a broker and commands of ours on it.
"""

import re
import subprocess
from pathlib import Path

import pytest
from confluent_kafka import Producer
from harness import paths, servers, tools
from harness.bookkeeper import wait_for
from harness.servers import HOST, QuireServer, free_port
from harness.zookeeper import ZooKeeper
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

pytestmark = pytest.mark.skipif(servers.target() != "quire", reason="about our own processes")

TIMEOUT_MS = 7_000


@pytest.fixture(scope="module")
def zookeeper(scratch):
    server = ZooKeeper(scratch / "zookeeper-settings", tls=True).start()
    (scratch / "digest").write_text("quire:a secret\n")
    yield server
    server.discard()


@pytest.fixture
def kazoo(zookeeper):
    clients = []

    def connect(**options):
        clients.append(KazooClient(zookeeper.hosts, **options))
        clients[-1].start(60)
        return clients[-1]

    yield connect
    for one in clients:
        one.stop()
        one.close()


class Role(QuireServer):
    """`quire bookie` or `quire broker`, with these lines in its configuration."""

    def __init__(self, role, directory, lines):
        super().__init__(directory)
        self.role, self.lines = role, lines
        self.config = directory / "settings.conf"

    def prepare(self):
        self.directory.mkdir(parents=True, exist_ok=True)
        self.config.write_text("".join(f"{key}={value}\n" for key, value in self.lines.items()))

    def command(self):
        return [str(paths.python_script("quire")), self.role, "--config", str(self.config)]


def secure(zookeeper, scratch, **changes):
    return {
        "metadataServiceUri": f"zk+hierarchical://{zookeeper.secure_hosts}/ledgers",
        "zookeeper.client.secure": "true",
        "zookeeper.ssl.trustStore.location": zookeeper.ca_file,
        "zkEnableSecurity": "true",
        "quire.zookeeper.digest.path": scratch / "digest",
        "zkTimeout": TIMEOUT_MS,
        **changes,
    }


@pytest.fixture(scope="module")
def bookie(zookeeper, scratch):
    directory = scratch / "secured-bookie"
    lines = {
        "bookieId": "secured",
        "bookiePort": free_port(),
        "listeningInterface": "lo",
        "advertisedAddress": HOST,
        "allowLoopback": "true",
        "journalDirectory": directory / "journal",
        "ledgerDirectories": directory / "ledgers",
        **secure(zookeeper, scratch),
    }
    one = Role("bookie", directory, lines).start()
    yield one
    one.discard()


def test_nodes_are_their_creators_alone(bookie, kazoo):
    stranger = kazoo()
    for path in ("/ledgers/cookies/secured", "/ledgers/available/secured", "/ledgers/INSTANCEID"):
        with pytest.raises(NoAuthError):
            stranger.get(path)
    friend = kazoo(auth_data=[("digest", "quire:a secret")])
    data, _ = friend.get("/ledgers/cookies/secured")
    assert b'bookieHost: "secured"' in data
    acls, _ = friend.get_acls("/ledgers/available/secured")
    assert [acl.id.scheme for acl in acls] == ["digest"]
    assert acls[0].id.id.startswith("quire:")


def test_the_session_is_as_long_as_zktimeout(bookie, zookeeper, scratch):
    directory = scratch / "plain-bookie"
    lines = {
        **bookie.lines,
        "bookieId": "plain",
        "bookiePort": free_port(),
        "journalDirectory": directory / "journal",
        "ledgerDirectories": directory / "ledgers",
        "metadataServiceUri": f"zk+hierarchical://{zookeeper.hosts}/ledgers",
        "zookeeper.client.secure": "false",
    }
    # Of connections to the secure port it tells nothing.
    plain = Role("bookie", directory, lines).start()
    told = []

    def is_told():
        told.append(zookeeper.say("cons"))
        return re.search(rf"\bto={TIMEOUT_MS}\b", told[-1])

    try:
        # Its connection may just break, or ZooKeeper be slow.
        wait_for(is_told, told, 60)
    finally:
        plain.discard()


def test_a_broker_and_a_command_with_the_same_settings(bookie, zookeeper, scratch):
    port = free_port()
    lines = {
        "node.id": "1",
        "listeners": f"PLAINTEXT://{HOST}:{port}",
        "default.replication.factor": "1",
        **secure(zookeeper, scratch),
    }
    broker = Role("broker", scratch / "secured-broker", lines)
    broker.start()
    try:
        outcomes = []
        producer = Producer({"bootstrap.servers": f"{HOST}:{port}", "log_level": 0})
        producer.produce("t", b"x", callback=lambda error, _: outcomes.append(error))
        assert producer.flush(90) == 0
        assert outcomes == [None] if outcomes[0] is None else outcomes[0].str()
    finally:
        broker.discard()
    told = tools.run(
        [str(paths.python_script("quire")), "ledger", "list", "--conf", str(bookie.config)]
    )
    assert re.search(r"\d", told), told


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"quire.zookeeper.digest.path": ""}, "quire.zookeeper.digest.path must be set"),
        ({"zookeeper.ssl.trustStore.location": "/nowhere.pem"}, "/nowhere.pem"),
        ({"zookeeper.ssl.trustStore.type": "JKS"}, "JKS cannot be read here, PEM can"),
    ],
)
def test_settings_that_cannot_work_are_told(zookeeper, scratch, name, changes, words):
    path = scratch / name("conf")
    lines = secure(zookeeper, scratch, **changes)
    path.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    done = subprocess.run(
        [str(paths.python_script("quire")), "ledger", "list", "--conf", str(path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert words in done.stderr


def test_another_user_is_refused(bookie, zookeeper, scratch, name):
    other = scratch / name("digest")
    other.write_text("mallory:guess\n")
    path = scratch / name("conf")
    lines = secure(zookeeper, scratch, **{"quire.zookeeper.digest.path": other})
    path.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    told = tools.run(
        [str(paths.python_script("quire")), "ledger", "list", "--conf", str(path)], code=1
    )
    assert "no permission" in told, told


@pytest.fixture
def demanding(scratch, name):
    """A ZooKeeper that serves who has a certificate of its authority."""
    server = ZooKeeper(scratch / name("zookeeper"), {"ssl.clientAuth": "need"}, tls=True).start()
    yield server
    server.discard()


def test_a_client_certificate(demanding, scratch, name):
    """A bookie, and commands: with the right one, with a stranger's, and without."""
    (scratch / "digest").write_text("quire:a secret\n")
    keystore = scratch / name("keystore")
    parts = (demanding.client_key_file, demanding.client_file)
    keystore.write_text("".join(part.read_text() for part in parts))
    certified = secure(demanding, scratch, **{"zookeeper.ssl.keyStore.location": keystore})
    directory = scratch / name("bookie")
    lines = {
        "bookieId": "certified",
        "bookiePort": free_port(),
        "listeningInterface": "lo",
        "advertisedAddress": HOST,
        "allowLoopback": "true",
        "journalDirectory": directory / "journal",
        "ledgerDirectories": directory / "ledgers",
        **certified,
    }
    bookie = Role("bookie", directory, lines).start()
    try:
        assert list_bookies(certified, scratch / name("conf")) == (0, True)
        for lines in (
            secure(demanding, scratch),
            {**certified, "zookeeper.ssl.keyStore.location": strange_keystore(scratch, name)},
        ):
            code, is_there = list_bookies(lines, scratch / name("conf"))
            assert code != 0
            assert not is_there
    finally:
        bookie.discard()


def strange_keystore(scratch, name):
    """Signed by itself."""
    path = scratch / name("strange")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", f"{path}.key",
         "-out", f"{path}.crt", "-days", "30", "-subj", "/CN=client"],
        check=True,
        capture_output=True,
    )  # fmt: skip
    path.write_text("".join(Path(f"{path}.{kind}").read_text() for kind in ("key", "crt")))
    return path


def list_bookies(lines, path):
    """(exit code, whether the bookie was seen) of a command of ours."""
    path.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    done = subprocess.run(
        [str(paths.python_script("quire")), "bookie", "listbookies", "--conf", str(path)],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    return done.returncode, "certified" in done.stdout
