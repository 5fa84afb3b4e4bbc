"""Cookies: BookKeeper's text, and which directories belong together."""

import pytest

from bookie.cookie import Cookie, check_cookies, parse_cookie
from bookie.errors import BookieStartError

COOKIE = Cookie("127.0.0.1:31810", "/path/journal", "/path/ledgers", "88d2da4f")


def test_cookie_text_is_bookkeepers():
    assert COOKIE.encode() == (
        '5\nbookieHost: "127.0.0.1:31810"\njournalDir: "/path/journal"\n'
        'ledgerDirs: "1\\t/path/ledgers"\ninstanceId: "88d2da4f"\n'
    )
    odd = Cookie('a"b\\c', "/with space", "/tab\there", "")
    for cookie in (COOKIE, odd):
        assert parse_cookie(cookie.encode()) == cookie


@pytest.mark.parametrize(
    "text", ["", "4\n", "5\n", "5\nbookieHost: 1\n", '5\nbookieHost: "b"\njournalDir: "j"\n']
)
def test_bad_cookies(text):
    with pytest.raises(ValueError, match=r"version|field|no "):
        parse_cookie(text)


def test_cookies_of_directories(disk):
    disk.make_directory("/a")
    disk.make_directory("/b")
    assert check_cookies(disk, COOKIE, ["/a", "/b"])
    disk.open("/a/1.txn", create=True)
    assert not check_cookies(disk, COOKIE, ["/a", "/b"])
    for name in ("bookie_id", "instance_id", "journal_directory", "ledger_directory"):
        values = {field: getattr(COOKIE, field) for field in Cookie.__slots__}
        with pytest.raises(BookieStartError, match=f"/a/VERSION: {name}"):
            check_cookies(disk, Cookie(**{**values, name: "other"}), ["/a", "/b"])
    disk.remove("/b/VERSION")
    with pytest.raises(BookieStartError, match="/b/VERSION is missing, but /a has data"):
        check_cookies(disk, COOKIE, ["/a", "/b"])
    disk.remove("/a/VERSION")
    with pytest.raises(BookieStartError, match="missing"):
        check_cookies(disk, COOKIE, ["/a", "/b"])
