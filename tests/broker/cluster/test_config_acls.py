"""Who is asked for rights: which classes are taken, and how super users are written."""

import pytest

from bookie.config_definitions import BOOKIE_CONFIGS
from broker.cluster.config_acls import STANDARD_AUTHORIZER, parse_super_users
from broker.cluster.config_file import load
from runtime.config import ConfigError


def test_kafkas_authorizer_is_taken():
    broker = load("", {"authorizer.class.name": STANDARD_AUTHORIZER}, BOOKIE_CONFIGS).broker
    assert broker.authorizer_class_name == STANDARD_AUTHORIZER
    assert not broker.allow_everyone_if_no_acl_found
    assert not load("", {}, BOOKIE_CONFIGS).broker.authorizer_class_name


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("kafka.security.authorizer.AclAuthorizer", "its successor"),
        ("kafka.security.auth.SimpleAclAuthorizer", "its successor"),
        ("com.example.Rules", "no other class"),
        ("StandardAuthorizer", "no other class"),
    ],
)
def test_another_ends_the_start(name, hint):
    with pytest.raises(ConfigError, match=hint) as caught:
        load("", {"authorizer.class.name": name}, BOOKIE_CONFIGS)
    assert STANDARD_AUTHORIZER in str(caught.value)


def test_super_users_are_principals_as_they_read():
    """A DN has commas and equals signs, and keeps them."""
    text = "User:alice; User:CN=a,OU=b ;Group:x;;User:a:b"
    assert parse_super_users(text) == ("User:alice", "User:CN=a,OU=b", "Group:x", "User:a:b")
    assert parse_super_users("") == ()


@pytest.mark.parametrize("text", ["alice", "User:", ":alice", "User:a;bob"])
def test_a_super_user_without_a_type_ends_the_start(text):
    with pytest.raises(ConfigError, match="no principal"):
        load("", {"super.users": text}, BOOKIE_CONFIGS)
