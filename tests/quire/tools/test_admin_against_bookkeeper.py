"""The same requests as to a Java bookie, and the answers field by field.

bookkeeper_http.json is what Apache BookKeeper 4.17.3 (VertxHttpServer, one bookie, ZooKeeper)
answered: three ledgers 2, 3 and 4 of five entries each, the last one open. Compared are status, the
fields and their order of appearance in lists, and values, but for what differs between any two
bookies: numbers, times, paths, sizes."""

import json
import re
from pathlib import Path

import trio

RECORDED = json.loads(Path(__file__).with_name("bookkeeper_http.json").read_text())
THEIR_ID = "127.0.0.1:23181"
PAYLOADS = [b"entry0", b"entry1", b"entry2", b"\xff\x00\nz", b"entry4"]
#: What is meant to differ: (end of the path, field).
DIFFERENT = {
    # Nothing replicates here, so it is not enabled.
    ("cluster_info", "ledgerReplicationEnabled"),
    # A test's bookie may be on a machine with another name, and other files.
    ("list_bookies?print_hostnames=true", "b1"),
}


def normal(text):
    text = text.replace(f"Bookie Server listening on {THEIR_ID} with id {THEIR_ID}", "b1")
    text = text.replace(THEIR_ID, "b1")
    text = re.sub(r"/\S*/locations", "PATH/locations", text)
    text = re.sub(r"\d+\([0-9a-f]+\.txn\)", "N(N.txn)", text)
    return re.sub(r"\d+\(\d+(?:\.\d+)?[KMGT]B\)|Pos - \d+", "SIZE", text)


def check(theirs, ours, where):
    """AssertionError names the field."""
    if isinstance(theirs, dict):
        assert isinstance(ours, dict), where
        expected = {normal(name): value for name, value in theirs.items()}
        found = {normal(name): value for name, value in ours.items()}
        assert set(found) == set(expected), where
        for name, value in expected.items():
            if (where.rpartition("/")[2], name) not in DIFFERENT:
                check(value, found[name], where)
    elif isinstance(theirs, list):
        assert isinstance(ours, list), where
        assert len(theirs) == len(ours), where
        for their, our in zip(theirs, ours, strict=True):
            check(their, our, where)
    elif isinstance(theirs, str):
        check_text(theirs, ours, where)
    else:
        assert type(theirs) is type(ours), where
        if isinstance(theirs, bool) or theirs is None:
            assert theirs == ours, (where, ours)


def check_text(theirs, ours, where):
    assert isinstance(ours, str), where
    if theirs.startswith("BookieMetadataFormatVersion"):
        assert ours.startswith("BookieMetadataFormatVersion\t3\n")
    elif "list_disk_file" in where:
        assert re.fullmatch(r"([0-9a-f]+\.(txn|log|sst)\t)*", ours), (where, ours)
    else:
        assert normal(theirs) == normal(ours), where


async def write(admin, *, close=True, password=b"pw"):
    writer = await admin.ledgers.create_ledger(custom_metadata={"app": b"x"}, password=password)
    for payload in PAYLOADS:
        done = trio.Event()
        writer.append_nowait([payload], lambda *_, done=done: done.set())
        await done.wait()
    if close:
        await writer.close()
    return writer.ledger_id


async def test_answers_are_bookkeepers(admin):
    for _ in range(2):
        await admin.ledgers.delete_ledger(await write(admin))
    ids = [await write(admin, password=b""), await write(admin), await write(admin, close=False)]
    assert ids == [2, 3, 4]
    for exchange in RECORDED:
        method, path, body = exchange["method"], exchange["path"], exchange["body"]
        with trio.fail_after(20):
            while "gc" in path and (await admin.json("GET", "/api/v1/bookie/gc")) != {
                "is_in_force_gc": "false"
            }:
                await trio.sleep(0.01)
        status, _, data = await admin.ask(method, path, body)
        assert status == exchange["status"], (method, path, body, data)
        if status != 200:
            assert json.loads(data)["error"]  # theirs is text
        elif path.endswith("server_config"):
            settings = json.loads(data)
            assert all(isinstance(value, str) for value in settings.values())
        elif "text" in exchange:
            assert data.decode() == exchange["text"]
        else:
            check(exchange["json"], json.loads(data), path)


async def test_the_comparison_can_fail():
    state = {"running": True, "name": "x", "inner": [{"a": 1}]}
    for other in (
        {**state, "running": False},
        {**state, "name": "y"},
        {**state, "more": 1},
        {"running": True, "name": "x"},
        {**state, "inner": [{"a": "1"}]},
        {**state, "inner": []},
    ):
        try:
            check(state, other, "/p")
        except AssertionError:
            continue
        raise RuntimeError(f"not told apart: {other}")
