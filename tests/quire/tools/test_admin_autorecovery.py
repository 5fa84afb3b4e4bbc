"""The pages of auto-recovery, over real HTTP and on real records in metadata."""

import json

import pytest
import trio

from ledger.autorecovery.auditor_election import AuditorElection
from ledger.autorecovery.statistics import AuditorStatistics
from ledger.underreplication import UnderReplication

API = "/api/v1/autorecovery/"


@pytest.fixture
async def records(admin):
    made = UnderReplication(admin.store)
    await made.ensure_layout()
    return made


async def text(admin, method, page, body=None):
    status, _, data = await admin.ask(method, API + page, body)
    assert status == 200, data
    return data.decode()


async def test_status_is_read_and_changed(admin, records):
    assert await admin.json("GET", API + "status") == {"enabled": True}
    assert await admin.json("PUT", API + "status?enabled=false") == {"enabled": False}
    assert not await records.is_enabled()
    assert await admin.json("PUT", API + "status?enabled=false") == {"enabled": False}
    assert await admin.json("GET", API + "status") == {"enabled": False}
    assert await admin.json("PUT", API + "status?enabled=TRUE") == {"enabled": True}
    assert await records.is_enabled()
    refused = await admin.json("PUT", API + "status", status=400)
    assert "Param 'enabled' not found" in refused["error"]


async def test_marked_ledgers_are_listed(admin, records):
    page = API + "list_under_replicated_ledger"
    none = await admin.json("GET", page, status=404)
    assert none["error"] == "No under replicated ledgers found"
    await records.mark(3, ["b1"], 1)
    await records.mark(4, ["b1", "b2"], 1)
    await records.mark(70_000, ["b3"], 1)
    assert sorted(await admin.json("GET", page)) == [3, 4, 70_000]
    told = await admin.json("GET", page + "?printmissingreplica=x")
    assert {key: sorted(value) for key, value in told.items()} == {
        "3": ["b1"],
        "4": ["b1", "b2"],
        "70000": ["b3"],
    }
    assert sorted(await admin.json("GET", page + "?missingreplica=b1")) == [3, 4]
    both = "?missingreplica=b1&excludingmissingreplica=b2"
    assert await admin.json("GET", page + both) == [3]
    assert sorted(await admin.json("GET", page + "?excludingmissingreplica=b1")) == [70_000]
    await admin.json("GET", page + "?missingreplica=nobody", status=404)


async def test_the_auditor_and_an_audit(admin, records, nursery):
    page = API + "trigger_audit"
    assert "no auditor" in (await admin.json("PUT", page, status=404))["error"]
    election = AuditorElection(admin.store, "/ledgers", "b7:1", AuditorStatistics())
    await nursery.start(election.run, trio.sleep_forever)
    with trio.fail_after(20):
        while await records.auditor() is None:
            await trio.sleep(0.01)
    assert await text(admin, "GET", "who_is_auditor") == "Auditor: b7:1"
    watch = records.watch_recovery_delay()
    await records.set_recovery_delay_s(9)
    with trio.fail_after(20):
        await watch.changed()
    assert await text(admin, "PUT", "trigger_audit") == "Success trigger audit."
    with trio.fail_after(20):
        await watch.changed()
    watch.close()
    assert await records.recovery_delay_s() == 9, "the same number, written again"
    await records.disable()
    assert "disabled" in (await admin.json("PUT", page, status=404))["error"]


async def test_the_delay(admin, records):
    page = API + "lost_bookie_recovery_delay"
    assert "never set" in (await admin.json("GET", page, status=404))["error"]
    done = await text(admin, "PUT", "lost_bookie_recovery_delay", json.dumps({"delay_seconds": 60}))
    assert done == "Success set lostBookieRecoveryDelay to 60"
    assert await records.recovery_delay_s() == 60
    told = await text(admin, "GET", "lost_bookie_recovery_delay")
    assert told == "lostBookieRecoveryDelay value: 60"
    for body, status in (
        (None, 404),
        ("{}", 404),
        ("[]", 400),
        ('{"delay_seconds": -1}', 400),
        ('{"delay_seconds": true}', 400),
        ('{"delay_seconds": "60"}', 400),
        ('{"delay_seconds": 99999999999}', 400),
    ):
        await admin.json("PUT", page, body, status=status)
    assert await records.recovery_delay_s() == 60


@pytest.mark.parametrize("page", ["bookie", "decommission"])
async def test_what_is_done_by_a_command(admin, page):
    words = {"bookie": "quire bookie recover", "decommission": "quire bookie decommission"}[page]
    assert words in (await admin.json("PUT", API + page, "{}", status=501))["error"]
