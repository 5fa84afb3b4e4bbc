"""The administration pages over real HTTP: a real bookie, a ledger client, a metadata store."""

import base64
import json

import pytest
import trio

from ledger.errors import LedgerError
from quire.tools.admin.bookies import readable
from quire.tools.admin.credentials import PageCredentials
from quire.tools.admin.routes import ROUTES, AdminSite
from quire.tools.admin.serve import NOTE_NAME, _note
from runtime.http import HttpError, HttpRequest


async def write(admin, payloads, **options):
    """A closed ledger with these entries; its id."""
    writer = await admin.ledgers.create_ledger(**options)
    for payload in payloads:
        done = trio.Event()
        writer.append_nowait([payload], lambda _id, error, done=done: (error or done).set())
        await done.wait()
    await writer.close()
    return writer.ledger_id


async def test_ledgers_are_listed_described_and_read(admin):
    assert (await admin.json("GET", "/api/v1/ledger/list")) == {}
    payloads = [b"entry0", b"\xff\x00\nz", b"x" * 300_000]
    first = await write(admin, payloads, custom_metadata={"app": b"x"}, password=b"pw")
    second = await write(admin, [])
    ids = [str(first), str(second)]
    assert list(await admin.json("GET", "/api/v1/ledger/list")) == ids
    assert set((await admin.json("GET", "/api/v1/ledger/list")).values()) == {None}

    path = f"/api/v1/ledger/metadata?ledger_id={first}"
    described = (await admin.json("GET", path))[ids[0]]
    assert described.pop("ctime") > 1.7e12
    assert described == {
        "ledgerId": first,
        "metadataFormatVersion": 3,
        "ensembleSize": 1,
        "writeQuorumSize": 1,
        "ackQuorumSize": 1,
        "state": "CLOSED",
        "length": sum(map(len, payloads)),
        "lastEntryId": 2,
        "digestType": "CRC32C",
        "password": base64.b64encode(b"pw").decode(),
        "customMetadata": {"app": "eA=="},
        "closed": True,
        "allEnsembles": {"0": [{"id": "b1"}]},
        "ctoken": 0,
    }
    decoded = await admin.json("GET", "/api/v1/ledger/list?print_metadata=true&decode_meta=true")
    assert list(decoded) == ids
    assert decoded[ids[1]]["lastEntryId"] == -1
    raw = await admin.json("GET", "/api/v1/ledger/list?print_metadata=true")
    assert raw[ids[0]].startswith("BookieMetadataFormatVersion\t3\n")

    texts = {str(i): data.decode("ascii", "replace") for i, data in enumerate(payloads)}
    read = f"/api/v1/ledger/read?ledger_id={first}"
    assert await admin.json("GET", read) == texts
    assert list(await admin.json("GET", f"{read}&start_entry_id=1&end_entry_id=1")) == ["1"]
    assert list(await admin.json("GET", f"{read}&start_entry_id=1&end_entry_id=9")) == ["1", "2"]
    assert await admin.json("GET", f"{read}&page=1") == {"Entries for page: ": "1", **texts}
    assert await admin.json("GET", f"{read}&page=2") == {"Entries for page: ": "2"}
    assert await admin.json("GET", f"/api/v1/ledger/read?ledger_id={second}") == {}


async def test_an_open_ledger_is_read_as_far_as_it_is_confirmed(admin):
    writer = await admin.ledgers.create_ledger()
    for number in range(3):
        done = trio.Event()
        writer.append_nowait([b"%d" % number], lambda *_, done=done: done.set())
        await done.wait()
    read = await admin.json("GET", f"/api/v1/ledger/read?ledger_id={writer.ledger_id}")
    assert read == {"0": "0", "1": "1"}  # that the last is confirmed, only the writer knows
    assert (await writer.close()).last_entry_id == 2  # it was not fenced


async def test_pages_of_the_list_are_as_bookkeeper_cuts_them(admin):
    ids = [await write(admin, []) for _ in range(250)]
    path = "/api/v1/ledger/list?print_metadata=true&decode_meta=true"
    pages = [list(await admin.json("GET", f"{path}&page={page}")) for page in (1, 2, 3, 4)]
    assert [len(page) for page in pages] == [99, 100, 51, 0]
    assert [int(one) for page in pages for one in page] == ids
    assert len(await admin.json("GET", path)) == 250


async def test_ledgers_are_deleted_but_not_from_under_a_partition(admin):
    free = await write(admin, [b"a"])
    path = f"/api/v1/ledger/delete?ledger_id={free}"
    assert await admin.json("DELETE", path) == f"Deleted ledger: {free}"
    assert await admin.json("DELETE", path) == f"Deleted ledger: {free}"
    owner = {"application": b"quire", "topic": b"orders", "partition": b"7"}
    used = await write(admin, [b"a"], custom_metadata=owner)
    path = f"/api/v1/ledger/delete?ledger_id={used}"
    answer = await admin.json("DELETE", path, status=409)
    assert "partition orders-7" in answer["error"]
    assert str(used) in await admin.json("GET", "/api/v1/ledger/list")
    await admin.json("DELETE", f"{path}&force=true")
    assert await admin.json("GET", "/api/v1/ledger/list") == {}
    with pytest.raises(LedgerError):
        await admin.ledgers.open_ledger(used, recover=False)


@pytest.mark.parametrize(
    ("method", "path", "status", "words"),
    [
        ("GET", "/api/v1/ledger/metadata", 400, "ledger_id=<id> is missing"),
        ("GET", "/api/v1/ledger/metadata?ledger_id=77", 404, "there is no ledger 77"),
        ("GET", "/api/v1/ledger/metadata?ledger_id=x", 400, "ledger_id='x' is no number"),
        ("GET", "/api/v1/ledger/read?ledger_id=77", 404, "there is no ledger 77"),
        ("GET", "/api/v1/ledger/read?ledger_id=" + "9" * 5000, 400, "is no number"),
        ("GET", "/api/v1/ledger/read?ledger_id=0&start_entry_id=3&end_entry_id=2", 400, "after"),
        ("DELETE", "/api/v1/ledger/delete", 400, "ledger_id=<id> is missing"),
        ("GET", "/api/v1/ledger/list?print_metadata=true&page=x", 400, "page='x'"),
        ("GET", "/api/v1/ledger/list?" + "a=1&" * 40, 400, "bad request target"),
        ("GET", "/api/v1/nothing", 404, "there is no /api/v1/nothing"),
        ("GET", "/", 404, "there is no /"),
        ("GET", "/api/v1/autorecovery/who_is_auditor", 404, "No auditor elected"),
        ("GET", "/api/v1/bookie/list_bookies/%ff", 400, "bad request target"),
    ],
)
async def test_bad_requests_are_told_what_is_wrong(admin, method, path, status, words):
    assert words in (await admin.json(method, path, status=status))["error"]


async def test_wrong_methods_are_told_the_right_ones(admin):
    for path, methods in ROUTES.items():
        for method in {"GET", "PUT", "POST", "DELETE", "PATCH"} - set(methods):
            status, headers, body = await admin.ask(method, path)
            assert status == 405, (method, path)
            assert set(headers["Allow"].split(", ")) - {"HEAD"} == set(methods)
            assert "error" in json.loads(body)


async def test_every_page_is_alive(admin):
    """With no parameters: an answer, or a refusal that says what is missing; never a failure."""
    for path, methods in ROUTES.items():
        for method in methods:
            status, headers, body = await admin.ask(method, path)
            # As BookKeeper's: nothing is marked, nobody audits; and what a command does instead.
            others = (404, 501) if "/autorecovery/" in path else ()
            assert status in (200, 400, *others), (method, path, body)
            assert headers["Content-Type"] in ("application/json", "text/plain; charset=utf-8")


async def test_the_process(admin):
    for path, answer in (("/heartbeat", b"OK\n"), ("/ping", b"pong\n"), ("/ping/", b"pong\n")):
        assert (await admin.ask("GET", path))[::2] == (200, answer)
    assert (await admin.json("GET", "/buildinfo"))["name"] == "quire"
    health = await admin.json("GET", "/health")
    assert health == {"bookie": {"healthy": True}, "metadata": {"healthy": True}}
    status, headers, body = await admin.ask("HEAD", "/buildinfo")
    assert (status, body) == (200, b"")
    assert int(headers["Content-Length"]) > 0
    assert b"test_figure 4" in (await admin.ask("GET", "/metrics"))[2]
    note = (admin.directory / NOTE_NAME).read_text()
    assert note == f"http://{admin.address[0]}:{admin.address[1]}\n"


def test_the_note_is_never_found_unfinished(tmp_path):
    """Also over one that a killed server has left."""
    path = tmp_path / NOTE_NAME
    path.write_text("http://127.0.0.1:1\n")
    with path.open() as before, _note(str(tmp_path), "http://127.0.0.1:2"):
        assert before.read() == "http://127.0.0.1:1\n"
        assert path.read_text() == "http://127.0.0.1:2\n"
    assert list(tmp_path.iterdir()) == []


async def test_settings_are_shown_and_not_pretended_to_change(admin):
    path = "/api/v1/config/server_config"
    settings = await admin.json("GET", path)
    assert settings["bookieId"] == "b1"
    assert settings["flushInterval"] == "700"
    assert settings["journalDirectory"] == admin.config.journal_directory
    assert all(isinstance(value, str) for value in settings.values())
    same = json.dumps({"flushInterval": 700})
    status, _, body = await admin.ask("PUT", path, same)
    assert (status, body) == (200, b"Success set server config.")
    for body, words in (
        ('{"flushInterval": 900}', "flushInterval cannot be changed while"),
        ('{"flushInterval": "soon"}', "flushInterval"),
        ('{"flushInterval": [1]}', "must be text"),
        ('{"noSuchSetting": 1}', "no such setting"),
        ("[]", "no JSON object"),
        ("{bad", "no JSON"),
        ("[" * 100_000, "no JSON"),
    ):
        assert words in (await admin.json("PUT", path, body, status=400))["error"]


async def test_the_bookie(admin):
    api = "/api/v1/bookie/"
    await write(admin, [b"x" * 1000] * 20)
    await admin.bookie.flush()
    assert await admin.json("GET", f"{api}list_bookies") == {"b1": None}
    assert await admin.json("GET", f"{api}list_bookies?type=ro") == {}
    named = await admin.json("GET", f"{api}list_bookies?print_hostnames=true")
    assert isinstance(named["b1"], str)
    space = await admin.json("GET", f"{api}info")
    assert 0 < space["freeSpace"] < space["totalSpace"]
    words = await admin.json("GET", f"{api}list_bookie_info")
    assert list(words) == ["b1", "ClusterInfo: "]
    assert words["b1"].startswith(": {Free: ")
    assert words["b1"].endswith("},")
    cluster = await admin.json("GET", f"{api}cluster_info")
    assert (cluster["totalBookiesCount"], cluster["writableBookiesCount"]) == (1, 1)
    ((mark, position),) = (await admin.json("GET", f"{api}last_log_mark")).items()
    assert mark.startswith("LastLogMark: Journal Id - ")
    assert int(position.removeprefix("Pos - ")) > 0
    files = await admin.json("GET", f"{api}list_disk_file")
    assert list(files) == ["journal files", "entrylog files", "index files"]
    assert files["entrylog files"].endswith(".log\t")
    only = await admin.json("GET", f"{api}list_disk_file?file_type=journal")
    assert only == {"journal files": files["journal files"]}
    assert mark.partition("(")[2].rstrip(")") in files["journal files"].split("\t")
    assert await admin.json("GET", f"{api}sanity") == {"passed": True, "readOnly": False}
    assert (await admin.ask("GET", f"{api}is_ready"))[::2] == (200, b"OK")
    status, _, body = await admin.ask("PUT", f"{api}expand_storage")
    assert (status, body) == (200, b"Success expand storage")


async def test_read_only_and_back(admin):
    api = "/api/v1/bookie/"
    path = f"{api}state/readonly"
    assert await admin.json("GET", path) == {"readOnly": False}
    assert await admin.json("PUT", path, '{"readOnly": true}') == {"readOnly": True}
    state = await admin.json("GET", f"{api}state")
    assert (state["running"], state["readOnly"], state["shuttingDown"]) == (True, True, False)
    assert await admin.json("GET", f"{api}list_bookies?type=ro") == {"b1": None}
    assert await admin.json("GET", f"{api}list_bookies") == {}
    assert (await admin.json("GET", f"{api}cluster_info"))["readonlyBookiesCount"] == 1
    assert await admin.json("GET", f"{api}sanity") == {"passed": False, "readOnly": False}
    assert (await admin.json("GET", "/health", status=503))["bookie"]["healthy"] is False
    assert await admin.json("PUT", path, '{"readOnly": false}') == {"readOnly": False}
    assert await admin.json("GET", f"{api}sanity") == {"passed": True, "readOnly": False}
    await admin.json("PUT", path, "", status=400)


async def wait_until(condition):
    with trio.fail_after(20):
        while not await condition():
            await trio.sleep(0.01)


async def test_garbage_collection(admin):
    api = "/api/v1/bookie/"
    doomed = await write(admin, [b"x" * 1000] * 20)
    await admin.bookie.flush()
    assert await admin.json("GET", f"{api}gc") == {"is_in_force_gc": "false"}
    await admin.ledgers.delete_ledger(doomed)
    answer = await admin.json("PUT", f"{api}gc", '{"forceMajor": true, "forceMinor": false}')
    assert answer == "Triggered GC on BookieServer: b1"

    async def is_done():
        return (await admin.json("GET", f"{api}gc")) == {"is_in_force_gc": "false"}

    await wait_until(is_done)
    assert doomed not in admin.bookie.list_ledgers()
    (details,) = await admin.json("GET", f"{api}gc_details")
    assert list(details) == [
        "forceCompacting",
        "majorCompacting",
        "minorCompacting",
        "lastMajorCompactionTime",
        "lastMinorCompactionTime",
        "lastEntryLocationCompactionTime",
        "majorCompactionCounter",
        "minorCompactionCounter",
        "entryLocationCompactionCounter",
    ]
    assert details["majorCompactionCounter"] == 1
    for body in ("{bad", '{"forceMajor": 1}', "[]"):
        await admin.json("PUT", f"{api}gc", body, status=400)


async def test_compaction_is_suspended_and_resumed(admin):
    api = "/api/v1/bookie/gc/"
    state = f"{api}suspend_compaction"
    assert await admin.json("GET", state) == {
        "isMinorGcSuspended": "false",
        "isMajorGcSuspended": "false",
    }
    answer = await admin.json("PUT", state, '{"suspendMajor": true, "suspendMinor": true}')
    assert answer == ("Suspend majorGC on BookieServer: b1, Suspend minorGC on BookieServer: b1")
    assert set((await admin.json("GET", state)).values()) == {"true"}
    resume = f"{api}resume_compaction"
    answer = await admin.json("PUT", resume, '{"resumeMinor": true}')
    assert answer == ", Resume minorGC on BookieServer: b1"
    assert await admin.json("GET", state) == {
        "isMinorGcSuspended": "false",
        "isMajorGcSuspended": "true",
    }
    await admin.json("PUT", resume, '{"resumeMajor": true}')
    assert set((await admin.json("GET", state)).values()) == {"false"}
    for path, body in ((state, ""), (state, "{}"), (resume, ""), (resume, '{"resumeMajor": 3}')):
        await admin.json("PUT", path, body, status=400)


async def test_the_index_is_compacted(admin):
    path = "/api/v1/bookie/entry_location_compact"
    ((location, is_running),) = (await admin.json("GET", path)).items()
    assert location.endswith("/current/locations")
    assert is_running is False
    await admin.json("PUT", path, "", status=400)
    _, _, body = await admin.ask("PUT", path, "{}")
    assert body == b"Not trigger Entry Location RocksDB compact."
    wrong = '{"entryLocationRocksDBCompact": true, "entryLocations": "/x"}'
    assert "is invalid" in (await admin.json("PUT", path, wrong, status=400))["error"]
    right = json.dumps({"entryLocationRocksDBCompact": True, "entryLocations": location})
    assert location in await admin.json("PUT", path, right)

    async def is_done():
        return (await admin.json("GET", path))[location] is False

    await wait_until(is_done)
    (details,) = await admin.json("GET", "/api/v1/bookie/gc_details")
    assert details["entryLocationCompactionCounter"] == 1


@pytest.mark.parametrize(
    ("peer", "host", "is_fine"),
    [
        ("127.0.0.1", "127.0.0.1:9600", True),
        ("127.8.8.8", "localhost", True),
        ("::1", "[::1]:9600", True),
        ("::ffff:127.0.0.1", "LocalHost:1", True),
        ("10.0.0.1", "127.0.0.1", False),
        ("fe80::1%eth0", "[::1]", False),
        ("", "localhost", False),
        ("127.0.0.1", "rebound.example:9600", False),
        ("127.0.0.1", "", False),
    ],
)
async def test_the_administration_is_for_this_machine(admin, peer, host, is_fine):
    site = AdminSite(admin.context, admin.metrics, PageCredentials())
    request = HttpRequest("GET", "/api/v1/bookie/state", {}, {"host": host}, b"", peer)
    if is_fine:
        assert (await site(request)).status == 200
    else:
        with pytest.raises(HttpError) as raised:
            await site(request)
        assert raised.value.status == 403
    open_to_all = HttpRequest("GET", "/ping", {}, {"host": host}, b"", peer)
    assert (await site(open_to_all)).status == 200


def test_sizes_are_written_as_bookkeeper_does():
    # From a Java bookie's list_bookie_info.
    assert readable(67041742848) == "(67.041GB)"
    assert readable(270553174016) == "(270.553GB)"
    assert [readable(n) for n in (0, 999, 1000, 1500, 10**15)] == [
        "", "", "(1KB)", "(1.5KB)", "(1000TB)",
    ]  # fmt: skip
