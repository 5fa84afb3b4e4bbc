"""AUTH between clients and bookies, ours and Java's, both ways: SASL with DIGEST-MD5, both versions
of the protocol, with and without TLS; a wrong password; who sends no AUTH at all."""

import re
import subprocess

import pytest
from harness import paths, servers, tools
from harness.bookkeeper import (
    SMALL_JVM,
    Cluster,
    JavaBookie,
    QuireAutoRecovery,
    QuireBookie,
    ToolError,
    wait_for,
)

pytestmark = pytest.mark.skipif(servers.target() != "quire", reason="about our own processes")

DIGEST = "org.apache.zookeeper.server.auth.DigestLoginModule"
USER, PASSWORD = "bookkeeper-writer", 'se"cret \\ pässword'
AUDITOR = "bookkeeper-auditor"
JAAS = "java.security.auth.login.config"
#: Of bookies and of clients, as their files have it.
OF_BOOKIE = {
    "bookieAuthProviderFactoryClass": "org.apache.bookkeeper.sasl.SASLBookieAuthProviderFactory"
}
OF_CLIENT = {
    "clientAuthProviderFactoryClass": "org.apache.bookkeeper.sasl.SASLClientProviderFactory"
}


def quoted(text):
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def jaas_file(folder, name, password):
    """The users' bookies, and what clients show."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.jaas"
    path.write_text(
        f"/* {name} */\n"
        f"Bookie {{\n  {DIGEST} required\n"
        f'    user_{USER}={quoted(PASSWORD)} user_{AUDITOR}="a" user_stranger="x";\n}};\n'
        f"BookKeeper {{ // a client\n  {DIGEST} required username={USER}\n"
        f"    password={quoted(password)};\n}};\n"
        f"Auditor {{\n  {DIGEST} required username={AUDITOR} password=a;\n}};\n"
        "Kerberos { com.sun.security.auth.module.Krb5LoginModule required; };\n"
    )
    return path


@pytest.fixture(scope="module")
def jaas(scratch):
    """name -> path"""
    folder = scratch / "auth"
    passwords = {"right": PASSWORD, "wrong": PASSWORD + "!"}
    return {name: jaas_file(folder, name, text) for name, text in passwords.items()}


def jvm(path):
    return (*SMALL_JVM, f"-D{JAAS}={path}", "-Dfile.encoding=UTF-8")


@pytest.fixture(scope="module")
def cluster(scratch, jaas):
    """A bookie of ours and one of Java's, both with SASL."""
    made = Cluster(scratch / "auth" / "cluster", jvm=jvm(jaas["right"]))
    try:
        made.start(QuireBookie, **OF_BOOKIE, **{JAAS: str(jaas["right"])})
        made.start(JavaBookie, **OF_BOOKIE)
        yield made
    finally:
        made.discard()


def quire_simpletest(cluster, settings, *, code=0, e=2):
    config = cluster.directory / "client.conf"
    lines = {
        "metadataServiceUri": cluster.uri,
        "addEntryTimeoutSec": "20",
        **settings,
    }
    config.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    words = ["ledger", "simpletest", "--conf", str(config)]
    words += ["--ensemble", str(e), "--writeQuorum", str(e), "--ackQuorum", str(e)]
    words += ["--numEntries", "20"]
    return tools.run([str(paths.python_script("quire")), *words], code=code)


def with_jaas(jaas, name):
    return {**OF_CLIENT, JAAS: str(jaas[name])}


def java_client(cluster, version, path, **settings):
    """A tool whose JVM has that JAAS file."""
    usual, cluster.jvm = cluster.jvm, jvm(path)
    try:
        return cluster.ledger_tool(version, addEntryTimeoutSec="30", **settings)
    finally:
        cluster.jvm = usual


def test_our_client_on_both_bookies(cluster, jaas):
    told = quire_simpletest(cluster, with_jaas(jaas, "right"))
    assert re.search(r"\b20\b", told), told


@pytest.mark.parametrize("version", ["v3", "v2"])
def test_javas_client_on_both_bookies(cluster, jaas, version):
    tool = java_client(cluster, version, jaas["right"], **OF_CLIENT)
    tool.wait_for_bookies(2)
    made = tool.write(50, 1000, e=2, qw=2, qa=2)
    tool.close(handle=made["handle"])
    tool.read_back(made["ledger"], 1000, 50)
    # Large entries: what is allowed before AUTH is not the limit after it.
    big = tool.write(5, 1_000_000, e=2, qw=2, qa=2)
    tool.close(handle=big["handle"])
    tool.read_back(big["ledger"], 1_000_000, 5)
    tool.kill()


def log_of_ours(cluster):
    return cluster.bookies[0].log_since_start()


def nothing_is_taken(tool):
    """An add by Java's client on our bookie alone is not acknowledged."""
    tool.wait_for_bookies(1)
    handle = tool.create(e=1, qw=1, qa=1)["handle"]
    try:
        acked = tool.append(handle=handle, count=3, size=10, window=3)["acked"]
    except ToolError:
        acked = 0
    assert acked == 0
    tool.kill()


@pytest.fixture(scope="module")
def guarded(scratch, jaas):
    """A bookie of ours, with SASL, by itself."""
    made = Cluster(scratch / "auth" / "guarded", jvm=jvm(jaas["right"]))
    try:
        made.start(QuireBookie, **OF_BOOKIE, **{JAAS: str(jaas["right"])})
        yield made
    finally:
        made.discard()


@pytest.mark.parametrize("version", ["v3", "v2"])
def test_javas_client_with_a_wrong_password(guarded, jaas, version):
    before = log_of_ours(guarded).count("wrong password")
    nothing_is_taken(java_client(guarded, version, jaas["wrong"], **OF_CLIENT))
    # The client may have given up before that.
    wait_for(lambda: log_of_ours(guarded).count("wrong password") > before, "nothing is told", 60)


@pytest.mark.parametrize("version", ["v3", "v2"])
def test_javas_client_that_sends_no_auth(guarded, jaas, version):
    nothing_is_taken(java_client(guarded, version, jaas["right"]))


def test_our_client_with_a_wrong_password(guarded, jaas):
    before = log_of_ours(guarded).count("wrong password")
    told = quire_simpletest(guarded, with_jaas(jaas, "wrong"), code=1, e=1)
    assert "AUTH with the password (is it right?)" in told
    assert log_of_ours(guarded).count("wrong password") > before
    assert PASSWORD not in log_of_ours(guarded) + told


def test_our_client_that_sends_no_auth(guarded):
    quire_simpletest(guarded, {}, code=1, e=1)


@pytest.fixture(scope="module")
def javas(scratch, jaas):
    """A bookie of Java's, with SASL, by itself."""
    made = Cluster(scratch / "auth" / "javas", jvm=jvm(jaas["right"]))
    try:
        made.start(JavaBookie, **OF_BOOKIE)
        yield made
    finally:
        made.discard()


def test_javas_bookie_and_our_client_with_a_wrong_password(javas, jaas):
    """It leaves us without an answer; we say at what."""
    # A slow JVM has to get as far as the password within that.
    settings = {**with_jaas(jaas, "wrong"), "clientConnectTimeoutMillis": "15000"}
    told = quire_simpletest(javas, settings, code=1, e=1)
    assert "no answer in time to AUTH with the password" in told
    quire_simpletest(javas, with_jaas(jaas, "right"), e=1)


def test_javas_bookie_and_our_client_that_sends_no_auth(javas):
    quire_simpletest(javas, {}, code=1, e=1)


@pytest.fixture(scope="module")
def encrypted(scratch, jaas):
    """Ours, with TLS that asks for no certificate, and SASL. Java's has no order between the two:
    its client's AUTH and START_TLS are under way at once, and its bookie wants AUTH done first."""
    folder = scratch / "auth" / "encrypted"
    made = Cluster(folder, jvm=jvm(jaas["right"]))
    certificate, key = folder / "bookie.pem", folder / "bookie.key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(key),
         "-out", str(certificate), "-days", "30", "-subj", "/CN=bookie",
         "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"],
        check=True,
        capture_output=True,
    )  # fmt: skip
    tls = {
        "tlsProvider": "JDK",
        "tlsProviderFactoryClass": "org.apache.bookkeeper.tls.TLSContextFactory",
        "tlsCertificatePath": str(certificate),
        "tlsKeyStoreType": "PEM",
        "tlsKeyStore": str(key),
    }
    made.of_client = {
        **OF_CLIENT,
        "tlsProvider": "JDK",
        "tlsProviderFactoryClass": "org.apache.bookkeeper.tls.TLSContextFactory",
        "clientTrustStoreType": "PEM",
        "clientTrustStore": str(certificate),
    }
    try:
        made.start(QuireBookie, **OF_BOOKIE, **tls, **{JAAS: str(jaas["right"])})
        yield made
    finally:
        made.discard()


def test_our_client_over_tls(encrypted, jaas):
    quire_simpletest(encrypted, {**encrypted.of_client, JAAS: str(jaas["right"])}, e=1)
    wrong = {**encrypted.of_client, JAAS: str(jaas["wrong"])}
    quire_simpletest(encrypted, wrong, code=1, e=1)
    assert "wrong password" in log_of_ours(encrypted)


def test_javas_client_with_sasl_on_a_bookie_without(scratch, jaas):
    """It is told AuthDisabledPlugin, and goes on."""
    made = Cluster(scratch / "auth" / "open", jvm=jvm(jaas["right"]))
    try:
        made.start(QuireBookie)
        tool = java_client(made, "v3", jaas["right"], **OF_CLIENT)
        tool.wait_for_bookies(1)
        ledger = tool.write(20, 100, e=1, qw=1, qa=1)
        tool.close(handle=ledger["handle"])
        tool.read_back(ledger["ledger"], 100, 20)
        quire_simpletest(made, with_jaas(jaas, "right"), e=1)
    finally:
        made.discard()


@pytest.mark.timeout(400)
def test_auto_recovery_has_a_user_of_its_own(scratch, jaas):
    """Ours, on bookies of both kinds: copies that a lost bookie had are made again."""
    made = Cluster(scratch / "auth" / "recovery", jvm=jvm(jaas["right"]))
    of_quire = {**OF_BOOKIE, JAAS: str(jaas["right"])}
    try:
        lost, kept = made.start(QuireBookie, QuireBookie, **of_quire)
        made.start(JavaBookie, **OF_BOOKIE)
        recovery = {**OF_CLIENT, JAAS: str(jaas["right"]), "rwRereplicateBackoffMs": "500"}
        made.start(QuireAutoRecovery, **recovery)
        tool = java_client(made, "v3", jaas["right"], **OF_CLIENT)
        tool.wait_for_bookies(3)

        def bookies(ledger):
            segments = tool.metadata(ledger=ledger)["segments"]
            return {bookie for _, ensemble in segments for bookie in ensemble}

        ledgers = []
        # Two of three bookies are taken by chance.
        while sum(lost.id in bookies(ledger) for ledger in ledgers) < 2:
            assert len(ledgers) < 50, "it is never chosen"
            written = tool.write(20, 100, e=2, qw=2, qa=2)
            tool.close(handle=written["handle"])
            ledgers.append(written["ledger"])
        lost.kill()
        wait_for(
            lambda: not any(lost.id in bookies(ledger) for ledger in ledgers),
            "copies are missing",
            timeout_s=180,
        )
        for ledger in ledgers:
            tool.read_back(ledger, 100, 20)
        assert f"user={AUDITOR}" in kept.log_since_start()
        tool.kill()
    finally:
        made.discard()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"saslJaasBookieSectionName": "Kerberos"}, "no Kerberos, GSSAPI"),
        ({"saslJaasBookieSectionName": "Nobody"}, "no section Nobody"),
        ({"saslJaasClientAllowedIds": "admins"}, "matches none of the users"),
        ({JAAS: ""}, "must name the JAAS file"),
    ],
    ids=["kerberos", "section", "ids", "file"],
)
def test_a_bookie_that_could_not_ask_does_not_start(guarded, jaas, settings, words):
    config = guarded.directory / "refused.conf"
    lines = {"metadataServiceUri": guarded.uri, "allowLoopback": "true"}
    lines |= {"advertisedAddress": "127.0.0.1", **OF_BOOKIE, JAAS: str(jaas["right"]), **settings}
    config.write_text("".join(f"{key}={value}\n" for key, value in lines.items() if value))
    told = tools.run(
        [str(paths.python_script("quire")), "bookie", "--config", str(config)], code=None
    )
    assert words in told
