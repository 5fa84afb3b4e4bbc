"""BookKeeper's metadataServiceUri."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.service_uri import ServiceUri, parse_service_uri


@pytest.mark.parametrize(
    ("text", "hosts", "root", "layout"),
    [
        ("zk+null://h1:2181,h2:2181/ledgers", "h1:2181,h2:2181", "/ledgers", "null"),
        ("zk+hierarchical://h1:2181;h2/ledgers", "h1:2181,h2:2181", "/ledgers", "hierarchical"),
        ("zk+longhierarchical://h/a/b/ledgers/", "h:2181", "/a/b/ledgers", "longhierarchical"),
        ("zk+flat://h", "h:2181", "/ledgers", "flat"),
        ("zk://h:1/", "h:1", "/ledgers", "null"),
        ("ZK+Null://127.0.0.1:2181/x", "127.0.0.1:2181", "/x", "null"),
        ("zk://[::1]:2182;[fe80::1]/l", "[::1]:2182,[fe80::1]:2181", "/l", "null"),
        ("zk+ms://a , b:3/l", "a:2181,b:3", "/l", "ms"),
    ],
)
def test_what_is_understood(text, hosts, root, layout):
    assert parse_service_uri(text) == ServiceUri(hosts, root, layout)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "expected zk"),
        ("localhost:2181", "expected zk"),
        ("etcd://h/x", "«etcd» is not supported"),
        ("zk+trie://h/x", "layout «trie» is none of null, flat"),
        ("zk+://h/x", "layout «» is none of"),
        ("zk:///ledgers", "bad host ''"),
        ("zk://h1,,h2/l", "bad host ''"),
        ("zk://h:/l", "bad port in 'h:'"),
        ("zk://h:0/l", "bad port"),
        ("zk://h:65536/l", "bad port"),
        ("zk://h:2x/l", "bad port"),
        ("zk://::1/l", "bad host"),
        ("zk://u@h/l", "bad host"),
        ("zk://h//l", "not in normal form"),
        ("zk://h/a/../l", "not in normal form"),
    ],
)
def test_what_is_refused_is_quoted(text, words):
    with pytest.raises(ValueError, match=words) as raised:
        parse_service_uri(text)
    assert repr(text) in str(raised.value)


def test_the_class_that_the_layout_must_name():
    factory = parse_service_uri("zk+hierarchical://h/l").factory
    assert factory == "org.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory"
    assert parse_service_uri("zk+null://h/l").factory is None


@given(st.text(max_size=40) | st.text("zk+:/,;[]h1 ", max_size=20).map("zk://".__add__))
def test_any_text_is_parsed_or_refused(text):
    try:
        uri = parse_service_uri(text)
    except ValueError:
        return
    assert parse_service_uri(f"zk+{uri.layout}://{uri.hosts}{uri.ledgers_root}") == uri


def test_a_socket_of_ours():
    uri = parse_service_uri("quire+unix:///data/a b/metadata.sock")
    assert (uri.socket_path, uri.ledgers_root) == ("/data/a b/metadata.sock", "/ledgers")
    assert parse_service_uri("zk://h/l").socket_path is None
    for text in ("quire+unix://relative", "quire+unix:///folder/", "quire+tcp:///x", "quire:///x"):
        with pytest.raises(ValueError, match="metadataServiceUri"):
            parse_service_uri(text)
