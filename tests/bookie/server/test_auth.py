"""bookieAuthProviderFactoryClass: which roles certificates tell of, and what is refused."""

import random

import pytest

from bookie.config_definitions import BOOKIE_CONFIGS
from bookie.server.auth import AuthError, CertificateRoles, auth_provider, first_role
from runtime.config import ConfigError
from wire.bookkeeper.sasl_digest import DigestClient

FACTORY = "org.apache.bookkeeper.tls.BookieAuthZFactory"
WITH_TLS = {"tlsProviderFactoryClass": "x", "tlsClientAuthentication": "true"}


def certificate(*units):
    names = [(("commonName", "c"),), *((("organizationalUnitName", unit),) for unit in units)]
    return {"subject": tuple(names)}


@pytest.mark.parametrize(
    ("units", "role"),
    [
        (["0:writers"], "writers"),
        (["0:writers,readers;1:cluster"], "writers"),
        (["1:cluster;0:writers"], "writers"),
        (["Sales", "0:writers"], "writers"),
        (["1:writers"], None),
        (["0:"], None),
        (["writers"], None),
        ([], None),
    ],
)
def test_the_first_role_counts(units, role):
    assert first_role(certificate(*units)) == role
    assert CertificateRoles(frozenset({"writers"})).admits("p", certificate(*units)) is bool(role)


def test_without_a_certificate_nobody_is_admitted():
    roles = CertificateRoles(frozenset({"writers"}))
    assert not roles.admits("p", None)
    assert not roles.admits("p", {})
    assert not roles.admits("p", certificate("0:readers,writers"))


def provider(**texts):
    return auth_provider(BOOKIE_CONFIGS.parse(texts))


def test_the_provider_by_name():
    assert provider() is None
    found = provider(
        bookieAuthProviderFactoryClass=FACTORY, authorizedRoles="a, writers", **WITH_TLS
    )
    assert found.admits("p", certificate("0:writers"))


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (
            {"bookieAuthProviderFactoryClass": "org.apache.bookkeeper.sasl.SASLBookieAuthProvider"},
            "SASLBookieAuthProvider is not known here, BookieAuthZFactory and SASLBookieAuthProv",
        ),
        ({"bookieAuthProviderFactoryClass": FACTORY, **WITH_TLS}, "authorizedRoles: must be set"),
        (
            {"bookieAuthProviderFactoryClass": FACTORY, "authorizedRoles": "a"},
            "needs TLS and tlsClientAuthentication=true",
        ),
    ],
)
def test_what_would_serve_everybody_is_refused(texts, words):
    with pytest.raises(ConfigError, match=words):
        provider(**texts)


SASL = {
    "bookieAuthProviderFactoryClass": "org.apache.bookkeeper.sasl.SASLBookieAuthProviderFactory"
}
JAAS = "java.security.auth.login.config"


@pytest.fixture
def jaas(tmp_path):
    """jaas(text of a section) -> its file's path"""

    def write(options):
        path = tmp_path / "jaas.conf"
        module = "org.apache.zookeeper.server.auth.DigestLoginModule"
        path.write_text(f"Bookie {{ {module} required {options}; }};\n")
        return str(path)

    return write


def test_users_of_a_jaas_file(jaas):
    path = jaas('user_bookkeeper="x" user_other="y" username="z" password="z"')
    found = provider(**SASL, **{JAAS: path})
    assert found.plugin_name == "sasl"
    assert not found.admits("p", certificate("0:writers"))
    for user, password, is_fine in (("bookkeeper", "x", True), ("other", "y", False)):
        exchange = found.exchange(random.Random(1).randbytes)
        client = DigestClient(user, password, b"c")
        response = client.respond(exchange.step(b""))
        if is_fine:
            client.check(exchange.step(response))
            assert exchange.user == user
        else:
            with pytest.raises(AuthError, match="saslJaasClientAllowedIds"):
                exchange.step(response)
            assert exchange.user is None


def test_an_exchange_has_two_steps(jaas):
    found = provider(**SASL, **{JAAS: jaas('user_bookkeeper="x"')})
    exchange = found.exchange(random.Random(1).randbytes)
    with pytest.raises(AuthError, match="no initial response"):
        exchange.step(b"x")
    exchange = found.exchange(random.Random(1).randbytes)
    response = DigestClient("bookkeeper", "x", b"c").respond(exchange.step(b""))
    assert exchange.step(response).startswith(b"rspauth=")
    with pytest.raises(AuthError, match="one response"):
        exchange.step(response)


@pytest.mark.parametrize(
    ("options", "more", "words"),
    [
        ('username="a" password="b"', {}, 'no user_NAME="password"'),
        ('user_="a"', {}, 'no user_NAME="password"'),
        ('user_writer="a"', {}, "matches none of the users writer"),
        ('user_writer="a"', {"saslJaasClientAllowedIds": "("}, "saslJaasClientAllowedIds"),
        ('user_writer="a"', {"saslJaasBookieSectionName": "Other"}, "no section Other"),
    ],
)
def test_jaas_files_that_let_nobody_in(jaas, options, more, words):
    with pytest.raises(ConfigError, match=words):
        provider(**SASL, **{JAAS: jaas(options)}, **more)


def test_sasl_without_a_jaas_file():
    with pytest.raises(ConfigError, match="must name the JAAS file"):
        provider(**SASL)
