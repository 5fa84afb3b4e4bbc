"""Documents by URL: which URLs are taken, and what a file must be."""

import os

import pytest

from runtime.documents import DocumentError, fetch, parse_url


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://id.example.org/keys", "https://id.example.org:443/keys"),
        ("HTTPS://ID.example.org:8443", "https://id.example.org:8443/"),
        ("https://[::1]/keys?tenant=secret", "https://[::1]:443/keys"),
        ("file:///etc/a%20b", "file:/etc/a b"),
        ("file:/etc/keys", "file:/etc/keys"),
    ],
)
def test_urls(text, shown):
    assert str(parse_url(text)) == shown


def test_a_query_is_asked_for():
    assert parse_url("https://host/keys?tenant=a").path == "/keys?tenant=a"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "keys",
        "/etc/keys",
        "ftp://host/keys",
        "jar:file:///x!/y",
        "https://",
        "https:///keys",
        "https://user:secret@host/",
        "https://host@evil/",
        "https://host/#x",
        "https://host:99999/",
        "https://host:port/",
        "https://ho st/",
        "https://host/\n",
        "https://hö/",
        "https://host\\@evil/",
        "https://[::1/",
        "file://host/etc/keys",
        "file:keys",
        "file:///keys?x",
        "file:///%00",
        "file:///%ff",
        "http://127.0.0.1/keys",
        "http://host/keys",
    ],
)
def test_no_urls(text):
    with pytest.raises(ValueError, match=r".") as raised:
        parse_url(text)
    assert "secret" not in str(raised.value)


def test_http_is_for_addresses_of_this_machine():
    for host in ("127.0.0.1", "127.9.9.9", "[::1]"):
        assert parse_url(f"http://{host}:1/", allows_loopback_http=True).scheme == "http"
    for host in ("localhost", "10.0.0.1", "169.254.169.254", "127.0.0.1.evil", "0x7f.1", "[::]"):
        with pytest.raises(ValueError, match="not secure"):
            parse_url(f"http://{host}:1/", allows_loopback_http=True)


async def test_files(tmp_path):
    path = tmp_path / "keys.json"
    url = parse_url(f"file://{path}")

    async def read():
        return await fetch(url, None, bytes_max=10)

    with pytest.raises(DocumentError, match=r"keys\.json: .*No such file"):
        await read()
    path.write_bytes(b"0123456789")
    assert await read() == b"0123456789"
    path.write_bytes(b"0123456789x")
    with pytest.raises(DocumentError, match="larger than 10 bytes"):
        await read()
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(DocumentError, match="no regular file"):
        await read()
    path.unlink()
    path.mkdir()
    with pytest.raises(DocumentError):
        await read()


async def test_a_host_that_is_away():
    url = parse_url("http://127.0.0.1:9/keys?secret", allows_loopback_http=True)
    with pytest.raises(DocumentError, match=r"http://127.0.0.1:9/keys: ") as raised:
        await fetch(url, None, bytes_max=10)
    assert "secret" not in str(raised.value)
