"""START_TLS between clients and bookies, ours and Java's, both ways; mutual TLS; who is refused."""

import re
import subprocess

import pytest
from harness import paths, servers, tools
from harness.bookkeeper import Cluster, JavaBookie, QuireBookie, ToolError, wait_for

pytestmark = pytest.mark.skipif(servers.target() != "quire", reason="about our own processes")

FACTORY = "org.apache.bookkeeper.tls.TLSContextFactory"


class Authority:
    """A certificate authority, and certificates for 127.0.0.1 that it signs."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir(parents=True)
        self._openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "ca.key",
                      "-out", "ca.pem", "-days", "30", "-subj", "/CN=test-ca",
                      "-addext", "keyUsage=critical,keyCertSign,cRLSign")  # fmt: skip
        (folder / "names").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")

    def _openssl(self, *words):
        subprocess.run(["openssl", *words], cwd=self.folder, check=True, capture_output=True)

    @property
    def trust(self):
        return str(self.folder / "ca.pem")

    def issue(self, name, subject=None):
        """(certificate, key)"""
        self._openssl("req", "-newkey", "rsa:2048", "-nodes", "-keyout", f"{name}.key", "-out",
                      f"{name}.csr", "-subj", subject or f"/CN={name}")  # fmt: skip
        self._openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key",
                      "-CAcreateserial", "-out", f"{name}.pem", "-days", "30",
                      "-extfile", "names")  # fmt: skip
        return str(self.folder / f"{name}.pem"), str(self.folder / f"{name}.key")


@pytest.fixture(scope="module")
def authority(scratch):
    return Authority(scratch / "security" / "ca")


@pytest.fixture(scope="module")
def stranger(scratch):
    """Whom nobody believes."""
    return Authority(scratch / "security" / "stranger")


def of_bookie(authority, name, *, mutual):
    certificate, key = authority.issue(name)
    return {
        "tlsProvider": "JDK",
        "tlsProviderFactoryClass": FACTORY,
        "tlsCertificatePath": certificate,
        "tlsKeyStoreType": "PEM",
        "tlsKeyStore": key,
        "tlsTrustStoreType": "PEM",
        "tlsTrustStore": authority.trust,
        "tlsClientAuthentication": str(mutual).lower(),
    }


def of_client(authority, name=None, *, trust=None, subject=None):
    """Settings that Java's client and ours read alike; with a name it has a certificate."""
    settings = {
        "tlsProvider": "JDK",
        "tlsProviderFactoryClass": FACTORY,
        "clientTrustStoreType": "PEM",
        "clientTrustStore": trust or authority.trust,
    }
    if name is not None:
        certificate, key = authority.issue(name, subject)
        settings |= {
            "tlsClientAuthentication": "true",
            "tlsCertificatePath": certificate,
            "clientKeyStoreType": "PEM",
            "clientKeyStore": key,
        }
    return settings


@pytest.fixture(scope="module")
def cluster(scratch, authority):
    """A bookie of ours and one of Java's, with mutual TLS."""
    made = Cluster(scratch / "security" / "cluster")
    try:
        made.start(QuireBookie, **of_bookie(authority, "ours", mutual=True))
        made.start(JavaBookie, **of_bookie(authority, "java", mutual=True))
        yield made
    finally:
        made.discard()


def quire_simpletest(cluster, settings, *, code=0):
    """`quire ledger simpletest` on both bookies."""
    config = cluster.directory / "client.conf"
    # What is refused is refused at once; what is not may take long on a busy machine.
    lines = {"metadataServiceUri": cluster.uri, "addEntryTimeoutSec": "30", **settings}
    config.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    words = ["ledger", "simpletest", "--conf", str(config), "--ensemble", "2"]
    words += ["--writeQuorum", "2", "--ackQuorum", "2", "--numEntries", "20"]
    return tools.run([str(paths.python_script("quire")), *words], code=code)


def quires_of(cluster):
    return cluster.bookies[0].log_since_start()


def test_our_client_on_both_bookies(cluster, authority):
    told = quire_simpletest(cluster, of_client(authority, "quire-client"))
    assert re.search(r"\b20\b", told), told


@pytest.mark.parametrize("version", ["v3", "v2"])
def test_javas_client_on_both_bookies(cluster, authority, version):
    settings = of_client(authority, f"java-{version}")
    tool = cluster.ledger_tool(version, addEntryTimeoutSec="30", **settings)
    tool.wait_for_bookies(2)
    made = tool.write(50, 1000, e=2, qw=2, qa=2)
    tool.close(handle=made["handle"])
    tool.read_back(made["ledger"], 1000, 50)
    # Large frames span many records of TLS.
    big = tool.write(5, 1_000_000, e=2, qw=2, qa=2)
    tool.close(handle=big["handle"])
    tool.read_back(big["ledger"], 1_000_000, 5)


def test_our_client_without_a_certificate_is_refused(cluster, authority):
    before = quires_of(cluster).count("event=tls_failed")
    told = quire_simpletest(cluster, of_client(authority), code=1)
    assert "not enough bookies" in told.lower() or "bookies" in told.lower(), told
    # Java's may have refused first.
    wait_for(lambda: quires_of(cluster).count("event=tls_failed") > before, "it was not refused")


def test_our_client_does_not_believe_a_strange_bookie(cluster, authority, stranger):
    settings = of_client(authority, "deceived", trust=stranger.trust)
    quire_simpletest(cluster, settings, code=1)


def test_javas_client_without_a_certificate_is_refused(cluster, authority):
    tool = cluster.ledger_tool("v3", addEntryTimeoutSec="3", **of_client(authority))
    before = quires_of(cluster).count("event=tls_failed")
    handle = tool.create(e=2, qw=2, qa=2)["handle"]
    # It never answers: with TLS 1.3 its handshake is done when the refusal comes.
    tool.tell("append", handle=handle, count=1, size=10, window=1)
    wait_for(lambda: quires_of(cluster).count("event=tls_failed") > before, "it was not refused")
    wait_for(lambda: "certificate_required" in tool.log_path.read_text(), "it was not told why")
    tool.kill()


@pytest.fixture(scope="module")
def guarded(scratch, authority):
    """A bookie of ours that serves who has the role `writers`."""
    made = Cluster(scratch / "security" / "guarded")
    try:
        made.start(
            QuireBookie,
            **of_bookie(authority, "guarded", mutual=True),
            bookieAuthProviderFactoryClass="org.apache.bookkeeper.tls.BookieAuthZFactory",
            authorizedRoles="admins,writers",
        )
        yield made
    finally:
        made.discard()


def simpletest_on_one(cluster, settings, code=0):
    config = cluster.directory / "client.conf"
    lines = {"metadataServiceUri": cluster.uri, "addEntryTimeoutSec": "30", **settings}
    config.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    words = ["ledger", "simpletest", "--conf", str(config), "--ensemble", "1"]
    words += ["--writeQuorum", "1", "--ackQuorum", "1", "--numEntries", "5"]
    return tools.run([str(paths.python_script("quire")), *words], code=code)


def test_roles_of_our_client(guarded, authority):
    writer = of_client(authority, "w", subject="/OU=0:writers,x;1:c/CN=w")
    simpletest_on_one(guarded, writer)
    reader = of_client(authority, "r", subject="/OU=0:readers,writers/CN=r")
    told = simpletest_on_one(guarded, reader, code=1)
    wait_for(lambda: "role=readers" in quires_of(guarded), "it was not refused")
    plain = simpletest_on_one(guarded, {}, code=1)
    wait_for(lambda: 'reason="no certificate"' in quires_of(guarded), "it was not refused")
    assert told
    assert plain


@pytest.mark.parametrize("version", ["v3", "v2"])
def test_roles_of_javas_client(guarded, authority, version):
    settings = of_client(authority, f"jw-{version}", subject="/OU=0:writers/CN=jw")
    tool = guarded.ledger_tool(version, addEntryTimeoutSec="30", **settings)
    tool.wait_for_bookies(1)
    made = tool.write(20, 100, e=1, qw=1, qa=1)
    tool.close(handle=made["handle"])
    tool.read_back(made["ledger"], 100, 20)
    tool.kill()
    plain = guarded.ledger_tool(version, addEntryTimeoutSec="3")
    before = quires_of(guarded).count('reason="no certificate"')
    handle = plain.create(e=1, qw=1, qa=1)["handle"]
    try:
        acked = plain.append(handle=handle, count=3, size=10, window=3)["acked"]
    except ToolError:
        acked = 0
    assert acked == 0
    wait_for(
        lambda: quires_of(guarded).count('reason="no certificate"') > before, "it was not refused"
    )
    plain.kill()
