"""What a deleted topic may leave behind: ledgers that no document ever named."""

from uuid import UUID

import pytest
import trio

from broker.log.life.orphans import sweep_orphans
from broker.log.life.swept import mark_path, mark_swept, read_marks
from broker.log.partition import State
from broker.log.settings import LogSettings
from tests.ledger_ids import ledger_ids

ANOTHER_TOPIC = "00000000-0000-4000-8000-000000000000"


async def until(condition):
    with trio.fail_after(60):
        while not condition():
            await trio.sleep(0.01)


@pytest.fixture
async def cluster(sim, nursery, autojump_clock):
    """Broker 1 leads the topic's partition, and has made a spare ledger for it."""
    cluster = sim.Cluster(settings=LogSettings(spare_ledger_share=1e-9))
    cluster.one = await cluster.start(nursery, 1)
    cluster.two = await cluster.start(nursery, 2)
    cluster.topic = await cluster.create_topic(cluster.one, 1)
    cluster.assignments.assign(cluster.topic.id, 0, 1)
    await until(lambda: cluster.one.log() is not None and cluster.one.log().state is State.ONLINE)
    await cluster.one.log().append(sim.batch(b"1"))
    await cluster.one.log().append(sim.batch(b"2"))
    spare = cluster.one.manager._find("t", 0).keeper._spare
    await until(lambda: spare._writer is not None)
    cluster.spare = spare._writer.ledger_id
    yield cluster
    await cluster.two.kill()


async def delete_topic(cluster):
    """And all that its documents name."""
    two = cluster.two
    await two.catalog.delete("t")
    with trio.fail_after(60):
        while await two.store.exists(f"/quire/deleted/{cluster.topic.id}"):
            await trio.sleep(0.01)


async def test_the_spare_ledger_of_a_broker_that_died_before_its_topic_was_deleted_goes(
    autojump_clock, cluster
):
    await cluster.one.kill()
    await delete_topic(cluster)
    assert await ledger_ids(cluster.two.ledgers.manager) == [cluster.spare]
    assert await sweep_orphans(cluster.two.store, cluster.two.ledgers) == 1
    assert await ledger_ids(cluster.two.ledgers.manager) == []


async def test_two_whole_looks_at_all_ledgers_end_the_memory_of_a_deleted_topic(
    autojump_clock, cluster
):
    two, mark = cluster.two, mark_path(str(cluster.topic.id))
    await cluster.one.kill()
    await delete_topic(cluster)
    two.store.away = True
    assert await sweep_orphans(two.store, two.ledgers) == 0
    two.store.away = False
    assert await read_marks(two.store) == {mark: 0}
    assert await sweep_orphans(two.store, two.ledgers) == 1
    assert await read_marks(two.store) == {mark: 1}
    # A broker that had not heard of the deletion: its ledger is there after the first look.
    late = await two.ledgers.create_ledger(custom_metadata=stamps(str(cluster.topic.id)))
    assert await ledger_ids(two.ledgers.manager) == [late.ledger_id]
    assert await sweep_orphans(two.store, two.ledgers) == 1
    assert await ledger_ids(two.ledgers.manager) == []
    assert await read_marks(two.store) == {}


async def test_a_look_that_did_not_see_all_ledgers_does_not_count(
    autojump_clock, cluster, monkeypatch
):
    two, mark = cluster.two, mark_path(str(cluster.topic.id))
    await cluster.one.kill()
    await delete_topic(cluster)
    delete_ledger = two.ledgers.delete_ledger

    async def refuses(ledger_id):
        two.store.away = True
        await delete_ledger(ledger_id)

    monkeypatch.setattr(two.ledgers, "delete_ledger", refuses)
    assert await sweep_orphans(two.store, two.ledgers) == 0
    two.store.away = False
    assert await read_marks(two.store) == {mark: 0}
    assert await ledger_ids(two.ledgers.manager) == [cluster.spare]


async def test_a_topic_that_is_not_known_to_be_deleted_keeps_its_ledgers(
    autojump_clock, cluster, sim
):
    """Whether its documents are there, or missing for another reason than its end."""
    two, topic_id = cluster.two, str(cluster.topic.id)
    document = f"/quire/partitions/{topic_id}/0"
    await cluster.one.kill()
    await two.ledgers.create_ledger(custom_metadata=stamps(ANOTHER_TOPIC))
    await mark_swept(two.store, str(UUID(int=1)))
    before = await ledger_ids(two.ledgers.manager)
    assert cluster.spare in before
    assert await sweep_orphans(two.store, two.ledgers) == 0
    await two.store.delete(document)
    assert await sweep_orphans(two.store, two.ledgers) == 0
    assert await ledger_ids(two.ledgers.manager) == before


async def test_a_document_that_is_there_outweighs_the_mark(autojump_clock, cluster):
    """No crash leads to this; whoever restores a part of the metadata may have both."""
    two = cluster.two
    await mark_swept(two.store, str(cluster.topic.id))
    before = await ledger_ids(two.ledgers.manager)
    assert await sweep_orphans(two.store, two.ledgers) == 0
    assert await ledger_ids(two.ledgers.manager) == before


async def test_ledgers_of_other_software_are_kept_whatever_topic_they_name(autojump_clock, cluster):
    two, topic_id = cluster.two, str(cluster.topic.id)
    await cluster.one.kill()
    await delete_topic(cluster)
    ours = stamps(topic_id)
    strangers = [
        {},
        {**ours, "application": b"another"},
        {key: text for key, text in ours.items() if key != "application"},
        {**ours, "topic_id": topic_id[:-1].encode()},
        {key: text for key, text in ours.items() if key != "partition"},
    ]
    kept = [
        (await two.ledgers.create_ledger(custom_metadata=custom)).ledger_id for custom in strangers
    ]
    assert await sweep_orphans(two.store, two.ledgers) == 1
    assert await ledger_ids(two.ledgers.manager) == kept


def stamps(topic_id):
    texts = {"application": "quire", "topic_id": topic_id, "partition": "0", "leader_epoch": "0"}
    return {key: text.encode() for key, text in texts.items()}
