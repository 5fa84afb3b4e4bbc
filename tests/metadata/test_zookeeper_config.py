"""ZooKeeper's settings by name."""

import pytest

from metadata.zookeeper_config import DIGEST_PATH, zookeeper_security
from metadata.zookeeper_session import ZooKeeperOptions
from runtime.config import ConfigError


def test_nothing_set_is_an_open_cluster_in_the_clear():
    found = zookeeper_security({})
    assert found == {"creator_all_acl": False, "digest": None, "tls": None}
    assert ZooKeeperOptions("h:1", **found).tls is None


def test_digest_and_acls(tmp_path):
    path = tmp_path / "digest"
    path.write_text("user:pass:word\n")
    found = zookeeper_security({"zkEnableSecurity": True, DIGEST_PATH: str(path)})
    assert (found["creator_all_acl"], found["digest"]) == (True, "user:pass:word")


@pytest.mark.parametrize("text", ["", "user", ":password"])
def test_a_digest_file_that_has_none(tmp_path, text):
    path = tmp_path / "digest"
    path.write_text(text)
    with pytest.raises(ConfigError, match="user:password"):
        zookeeper_security({DIGEST_PATH: str(path)})


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"zkEnableSecurity": True}, "must be set, too"),
        ({DIGEST_PATH: "/nowhere"}, "/nowhere"),
        (
            {"zookeeper.client.secure": True, "zookeeper.ssl.trustStore.location": "/nowhere"},
            "/nowhere",
        ),
        (
            {"zookeeper.client.secure": True, "zookeeper.ssl.keyStore.type": "PKCS12"},
            "PKCS12 cannot be read here",
        ),
    ],
)
def test_what_cannot_work(values, words):
    with pytest.raises(ConfigError, match=words):
        zookeeper_security(values)
