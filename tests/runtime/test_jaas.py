"""JAAS files: what Java reads, what is refused and where."""

import pytest

from runtime.config import ConfigError
from runtime.jaas import LoginModule, digest_options, parse_jaas

DIGEST = "org.apache.zookeeper.server.auth.DigestLoginModule"


def test_a_file_as_java_reads_it():
    text = f"""
    /* users
       of bookies */
    Bookie {{
        {DIGEST} required   // the only one
            user_a="x y" user_b-c='z'
            debug=true;
        other.Module OPTIONAL;
    }};
    Empty {{ }};
    "Quoted"{{ {DIGEST} required a="1\\"2\\\\3\\n//4"; }};
    """
    assert parse_jaas(text) == {
        "Bookie": [
            LoginModule(DIGEST, {"user_a": "x y", "user_b-c": "'z'", "debug": "true"}),
            LoginModule("other.Module", {}),
        ],
        "Empty": [],
        "Quoted": [LoginModule(DIGEST, {"a": '1"2\\3\n//4'})],
    }
    assert parse_jaas("// nothing\n") == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Bookie\n{ M required a=1; }", "line 2: expected ';'"),
        ("Bookie { M required a=1 };", "line 1: expected an option or ';'"),
        ("Bookie { M needed; };", "line 1: expected required, requisite"),
        ("Bookie {\n M required\n a b; };", "line 3: expected '='"),
        ("Bookie { M required a=; };", "expected a value of a"),
        ('Bookie { M required a="1; };\n', "line 1: a quote that does not end"),
        ("Bookie { M required; };\nBookie { };", "line 2: section Bookie comes twice"),
        ('B { M required a="${user.home}"; };', "is not replaced here"),
        ("{ };", "expected a section's name"),
        ("Bookie {", "expected a login module's class"),
    ],
)
def test_what_is_wrong_and_where(text, words):
    with pytest.raises(ConfigError, match=words):
        parse_jaas(text)


def test_no_password_is_shown():
    assert "geheim" not in repr(LoginModule("m", {"user_a": "geheim"}))


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "jaas.conf"
    file.write_text(
        f'Bookie {{ {DIGEST} required user_a="x"; }};\n'
        "Kerberos { com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true; };\n"
    )
    return str(file)


def test_options_of_a_section(path):
    assert digest_options(path, "Bookie") == {"user_a": "x"}


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ("Client", "no section Client; there are: Bookie, Kerberos"),
        ("Kerberos", "Krb5LoginModule is not served, only DIGEST-MD5 .*no Kerberos, GSSAPI"),
    ],
)
def test_sections_that_are_of_no_use(path, section, words):
    with pytest.raises(ConfigError, match=words):
        digest_options(path, section)


def test_files_that_are_of_no_use(tmp_path):
    with pytest.raises(ConfigError, match="must name the JAAS file"):
        digest_options(None, "Bookie")
    with pytest.raises(ConfigError, match="No such file"):
        digest_options(str(tmp_path / "none"), "Bookie")
    large = tmp_path / "large"
    large.write_text("/" * ((1 << 20) + 1))
    with pytest.raises(ConfigError, match="larger than"):
        digest_options(str(large), "Bookie")
