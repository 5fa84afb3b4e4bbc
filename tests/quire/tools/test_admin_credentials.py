"""Who may ask the pages for what (attacks 56 and 63), and the files of their tokens."""

import os
import stat

import pytest

from bookie.server.pages_config import pages_config
from quire.tools.admin.credentials import PageCredentials, read_credentials
from quire.tools.admin.routes import ROUTES, AdminSite
from quire.tools.bookie.target import find_target
from runtime.config import ConfigError
from runtime.http import HttpError, HttpRequest
from runtime.secret_files import write_secret

TOKEN = "a" * 15 + "b"
CHANGES = [(method, path) for path, methods in ROUTES.items() for method in methods]
CHANGES = [(method, path) for method, path in CHANGES if method != "GET"]


def request(method="GET", path="/api/v1/bookie/state", token=None, **more):
    headers = {"host": "127.0.0.1:9600", **more.pop("headers", {})}
    if token is not None:
        headers["authorization"] = f"Bearer {token}"
    return HttpRequest(method, path, {}, headers, peer=more.get("peer", "127.0.0.1"))


def status(credentials, asked):
    try:
        credentials.check_admin(asked)
    except HttpError as error:
        return error.status
    return 200


@pytest.mark.parametrize(("method", "path"), CHANGES)
async def test_nothing_is_changed_without_the_token_from_this_machine_either(admin, method, path):
    for headers in ({}, {"Authorization": "Bearer x"}, {"Authorization": "Basic YTpi"}):
        found, answered, _ = await admin.ask(method, path, "{}", headers)
        assert found == 401
        assert answered["WWW-Authenticate"] == "Bearer"


def test_records_need_the_token_too_and_the_rest_if_it_is_said():
    some = PageCredentials(TOKEN)
    assert status(some, request()) == 200
    assert status(some, request(path="/api/v1/ledger/read")) == 401
    assert status(some, request(path="/api/v1/ledger/read", token=TOKEN)) == 200
    every = PageCredentials(TOKEN, reads_need_token=True)
    assert status(every, request()) == 401
    assert status(every, request(token=TOKEN)) == 200
    assert status(every, request(token=TOKEN, peer="10.0.0.1")) == 403, "and from here"


@pytest.mark.parametrize(
    "token", ["", "a", TOKEN[:-1], TOKEN + "b", TOKEN.upper(), "ä" * 16, "\0" * 16]
)
def test_another_token_is_none(token):
    assert status(PageCredentials(TOKEN), request("PUT", token=token)) == 401


def test_without_a_token_nobody_changes_anything():
    assert status(PageCredentials(), request("POST", token="")) == 403
    assert status(PageCredentials(), request("POST", token="None")) == 403


@pytest.mark.parametrize(
    ("host", "is_let"),
    [
        ("localhost:9600", True),
        ("[::1]:9600", True),
        ("127.0.0.1", True),
        ("localhost.:9600", False),
        ("evil.example:9600", False),
        ("127.0.0.1.nip.example", False),
        ("localhost.evil.example", False),
        ("", False),
    ],
)
def test_attack_56_a_name_that_was_bound_anew_is_refused(host, is_let):
    found = status(PageCredentials(TOKEN), request(headers={"host": host}))
    assert found == (200 if is_let else 403)


async def test_attack_56_a_web_page_can_send_nothing_that_is_done(admin):
    """What a browser sends for a page without asking first: POST with text/plain, and no header
    that says who he is; nor does a cookie or a password that it remembers count."""
    headers = {"Content-Type": "text/plain", "Origin": "http://evil.example", "Cookie": "a=b"}
    # An address of this machine, which a page can name without binding a name anew.
    of_all = {**headers, "Host": "0.0.0.0:9600"}
    for path in ROUTES:
        for sent in (headers, of_all):
            assert (await admin.ask("POST", path, "{}", sent))[0] in (401, 405), path
    found, answered, _ = await admin.ask("OPTIONS", "/api/v1/bookie/gc", None, headers)
    assert found in (401, 405)
    assert not [name for name in answered if name.lower().startswith("access-control")]


async def test_attack_63_metrics_need_their_own_token_if_there_is_one(admin):
    assert (await admin.ask("GET", "/metrics", None, {}))[0] == 200
    site = AdminSite(admin.context, admin.metrics, PageCredentials(TOKEN, metrics="m" * 16))
    for token in (None, TOKEN, "x"):
        with pytest.raises(HttpError) as caught:
            await site(request(path="/metrics", token=token))
        assert caught.value.status == 401
    remote = request(path="/metrics", token="m" * 16, peer="10.0.0.1")
    assert b"test_figure" in (await site(remote)).body


def test_tokens_are_read_from_files_that_are_ones_own(tmp_path):
    path = tmp_path / "token"
    write_secret(str(path), TOKEN)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    values = {"quire.admin.token.file": str(path), "quire.metrics.token.file": None}
    found = read_credentials(pages_config(values))
    assert (found.admin, found.metrics) == (TOKEN, None)
    assert TOKEN not in repr(found)
    for mode in (0o640, 0o604, 0o660, 0o644):
        path.chmod(mode)
        with pytest.raises(ConfigError, match=r"quire\.admin\.token\.file.*chmod 600"):
            read_credentials(pages_config(values))


def test_a_command_sends_the_noted_token_only_to_where_the_note_says(tmp_path):
    (tmp_path / "admin.url").write_text("http://127.0.0.1:9600\n")
    write_secret(str(tmp_path / "admin.token"), TOKEN)
    target = find_target(None, str(tmp_path), None)
    assert (target.url, target.token) == ("http://127.0.0.1:9600", TOKEN)
    assert TOKEN not in repr(target)
    assert find_target("http://10.0.0.1:1", str(tmp_path), None).token is None
    own = tmp_path / "own"
    write_secret(str(own), "o" * 16)
    assert find_target("http://10.0.0.1:1", str(tmp_path), None, str(own)).token == "o" * 16


async def test_a_server_leaves_its_token_to_its_user_alone(admin):
    found = os.stat(admin.directory / "admin.token")
    assert stat.S_IMODE(found.st_mode) == 0o600
