"""Long chains: their oldest ledgers go to archives, and no document outgrows metadata's limit."""

import json
from dataclasses import replace

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from broker.cluster.ownership import Incarnation
from broker.log.life.chain import (
    Chain,
    ChainDocument,
    ChainFormatError,
    archive_bytes,
    archive_from_bytes,
    is_archive,
)
from broker.log.life.document import read_chain, write_chain
from broker.log.life.ledger_info import LedgerInfo
from broker.log.life.orphans import sweep_orphans
from broker.log.life.sweep import named_ledgers
from broker.log.settings import LogSettings
from metadata.memory import MemoryStore
from metadata.store import BadVersionError, MetadataUnknownOutcomeError
from tests.broker.log.test_partition import PATH, World
from tests.ledger_ids import ledger_ids


class Store(MemoryStore):
    """Whose methods can be replaced."""


OWNER = Incarnation(1, "0f" * 16)
SMALL = LogSettings(document_ledgers_max=4, archive_ledgers=3)


def info(number, offset, size=10, *, is_open=False):
    """Facts as long as they get in years of service."""
    return LedgerInfo(
        2_000_000_000 + number, offset, 7, 1_700_000_000_000,
        None if is_open else offset + size - 1,
        5000, 1 << 30, 1_700_000_000_000, offset, 4998, 4999,
    )  # fmt: skip


def chain_of(count):
    ledgers = tuple(info(number, 10**12 + 10 * number) for number in range(count))
    return Chain(7, 10**12, ledgers, owner=OWNER)


def names(store):
    return sorted(store.tree.table.children(PATH.rpartition("/")[0]))


async def stored(chain, settings=SMALL):
    store = Store()
    await store.create(PATH, Chain().to_bytes(), make_parents=True)
    chain, version = await write_chain(store, PATH, Chain(), chain, 0, settings)
    return store, chain, version


async def test_a_long_chain_is_split_and_read_back_whole():
    store, chain, version = await stored(chain_of(0), LogSettings())
    for count in range(1_000, 13_000, 1_000):
        longer = replace(chain, ledgers=chain_of(count).ledgers)
        chain, version = await write_chain(store, PATH, chain, longer, version, LogSettings())
    read, read_version = await read_chain(store, PATH)
    assert (read, read_version) == (chain, version)
    assert read.ledgers == chain_of(12_000).ledgers
    sizes = [len((await store.get(f"{PATH.rpartition('/')[0]}/{n}")).data) for n in names(store)]
    assert max(sizes) < 100_000
    assert len(sizes) == 1 + (12_000 - 256 + 127) // 128
    for number in range(12_000, 12_020):
        following = replace(read, ledgers=(*read.ledgers, info(number, read.closed_end_offset)))
        read, version = await write_chain(store, PATH, read, following, version, LogSettings())
    assert (await read_chain(store, PATH))[0] == read
    assert len(read.ledgers) == 12_020


async def test_a_long_document_of_an_older_version_is_read_and_split():
    """As many ledgers as ZooKeeper takes in one node."""
    store = MemoryStore()
    old = chain_of(4_800)
    data = old.to_bytes()
    assert 1_000_000 < len(data) < 0xFFFFF - 2_048
    await store.create(PATH, data, make_parents=True)
    chain, version = await read_chain(store, PATH)
    assert chain == old
    assert json.loads(data)["format"] == 1
    await write_chain(store, PATH, chain, chain.with_epoch(8, OWNER), version, LogSettings())
    assert len((await store.get(PATH)).data) < 100_000
    assert (await read_chain(store, PATH))[0].ledgers == old.ledgers


async def test_a_document_without_archives_stays_as_it_was():
    store, _, _ = await stored(chain_of(4))
    document = json.loads((await store.get(PATH)).data)
    assert document["format"] == 1
    assert "archives" not in document
    assert names(store) == ["0"]


async def test_who_does_not_know_of_archives_refuses_the_document():
    store, _, _ = await stored(chain_of(10))
    data = (await store.get(PATH)).data
    assert json.loads(data)["format"] == 2
    with pytest.raises(ChainFormatError, match="archives"):
        Chain.from_bytes(data)


@given(
    st.lists(
        st.one_of(st.just("add"), st.just("write"), st.integers(0, 60), st.just("delete")),
        max_size=40,
    )
)
def test_any_history_is_read_back_as_it_was_written(steps):
    """Against a chain that is never split."""

    async def run():
        store, known, version = await stored(Chain(7, 0, owner=OWNER))
        chain, plain, number = known, known, 0
        for step in [*steps, "write"]:
            if step == "add":
                new = info(number, chain.closed_end_offset)
                chain, plain, number = chain.with_ledger(new), plain.with_ledger(new), number + 1
            elif step == "write":
                known, version = await write_chain(store, PATH, known, chain, version, SMALL)
                chain = known
                read, _ = await read_chain(store, PATH)
                assert read == known
                assert len(json.loads((await store.get(PATH)).data)["ledgers"]) <= 4
                assert {name for name in names(store) if is_archive(name)} == {
                    f"0-ledgers-{archive.number}" for archive in known.archives
                }
            elif step == "delete":
                gone = chain.all_deleting[:2]
                chain, plain = chain.with_deleted(set(gone)), plain.with_deleted(set(gone))
            else:
                start = min(chain.log_start_offset + step, chain.closed_end_offset)
                chain, plain = chain.with_log_start(start), plain.with_log_start(start)
            assert chain.ledgers == plain.ledgers
            assert sorted(chain.all_deleting) == sorted(plain.all_deleting)
            assert chain.closed_end_offset == plain.closed_end_offset

    trio.run(run)


async def test_ledgers_of_an_archive_go_and_the_archive_with_the_last():
    store, chain, version = await stored(chain_of(10))
    assert [archive.ledger_count for archive in chain.archives] == [3, 3]
    raised = chain.with_log_start(10**12 + 45)
    assert raised.all_deleting == tuple(each.ledger_id for each in chain.ledgers[:4])
    known, version = await write_chain(store, PATH, chain, raised, version, SMALL)
    assert (await read_chain(store, PATH))[0] == known
    less = known.with_deleted(frozenset(known.all_deleting[:3]))
    known, version = await write_chain(store, PATH, known, less, version, SMALL)
    assert len([name for name in names(store) if is_archive(name)]) == 1
    read, _ = await read_chain(store, PATH)
    assert read.all_deleting == (chain.ledgers[3].ledger_id,)
    assert read.ledgers == chain.ledgers[4:]


async def test_a_lost_answer_is_looked_up_with_archives_too():
    store, chain, version = await stored(chain_of(3))
    longer = replace(chain, ledgers=chain_of(9).ledgers)
    multi = store.multi

    async def lose_the_answer(ops):
        store.multi = multi
        await multi(ops)
        raise MetadataUnknownOutcomeError(PATH, "lost")

    store.multi = lose_the_answer
    written, new_version = await write_chain(store, PATH, chain, longer, version, SMALL)
    assert new_version == version + 1
    assert await read_chain(store, PATH) == (written, new_version)


async def test_a_rival_leaves_no_archive_behind():
    store, chain, version = await stored(chain_of(3))
    longer = replace(chain, ledgers=chain_of(9).ledgers)
    await store.put(PATH, chain.with_epoch(8).to_bytes(), version)
    with pytest.raises(BadVersionError):
        await write_chain(store, PATH, chain, longer, version, SMALL)
    assert names(store) == ["0"]


async def test_who_reads_while_an_archive_goes_reads_again():
    store, chain, version = await stored(chain_of(10))
    get_many = store.get_many

    async def change_before(paths):
        store.get_many = get_many
        raised = chain.with_log_start(10**12 + 40)
        raised = raised.with_deleted(frozenset(raised.all_deleting))
        await write_chain(store, PATH, chain, raised, version, SMALL)
        return await get_many(paths)

    store.get_many = change_before
    read, new_version = await read_chain(store, PATH)
    assert new_version == version + 1
    assert read.ledgers == chain.ledgers[4:]


async def test_an_archive_that_is_missing_is_named():
    store, chain, _ = await stored(chain_of(10))
    await store.delete(f"{PATH}-ledgers-{chain.archives[0].number}")
    with pytest.raises(ChainFormatError, match="missing"):
        await read_chain(store, PATH)


@pytest.mark.parametrize("data", [b"", b"{}", b'{"format":4,"ledgers":[]}',
                                  b'{"format":2,"ledgers":[[1]]}', b'{"format":2}'])  # fmt: skip
def test_a_damaged_archive_is_named(data):
    with pytest.raises(ChainFormatError, match=r"archive|integer"):
        archive_from_bytes(data)


@pytest.mark.parametrize("change", [{"archives": [[1]]}, {"archives": [["a", 3]]},
                                    {"archives": 7}])  # fmt: skip
def test_damaged_names_of_archives(change):
    document = json.loads(chain_of(2).to_bytes()) | {"format": 2} | change
    with pytest.raises(ChainFormatError, match="damaged"):
        ChainDocument(json.dumps(document).encode())


def test_what_is_swept_of_a_deleted_topic():
    chain = chain_of(3).with_log_start(10**12 + 10)
    ids = [each.ledger_id for each in chain_of(3).ledgers]
    assert sorted(named_ledgers("/quire/deleted/x/0", chain.to_bytes())) == ids
    data = archive_bytes(chain_of(3).ledgers)
    assert named_ledgers("/quire/deleted/x/0-ledgers-3", data) == ids


async def test_a_partition_with_thousands_of_ledgers_rolls_on(tmp_path, nursery):
    """Each of them is taken over, rolled and read as before; orphans are swept, but none of it."""
    world = World(str(tmp_path), nursery, replace(SMALL, segment_excess_bytes_min=100))
    world.config.segment_bytes = 200
    await world.start()
    for number in range(40):
        await world.append(b"%03d" % number * 40)
    assert len(world.log.chain.archives) > 5
    model = [(number, b"%03d" % number * 40) for number in range(40)]
    assert await world.values() == model
    for how in ("crash", "restart"):
        await getattr(world, how)()
        assert await world.values() == model
        await sweep_orphans(world.store, world.ledgers)
        assert await world.values() == model
        assert await world.values(17) == model[17:]
    world.config.retention_bytes = 1000
    world.keeper.check_retention()
    with trio.fail_after(20):
        while world.log.chain.all_deleting or world.log.log_start_offset == 0:
            await trio.sleep(0.01)
    start = world.log.log_start_offset
    assert await world.values() == model[start:]
    kept = {each.ledger_id for each in world.log.chain.ledgers}
    assert set(await ledger_ids(world.ledgers.manager)) - kept <= {
        world.keeper._spare._writer and world.keeper._spare._writer.ledger_id
    }
    await world.crash()
    assert await world.values() == model[start:]


async def test_a_document_and_its_archives_are_one_change():
    """Who dies, or reads, between the two would find a name without its ledgers."""
    store, chain, version = await stored(chain_of(3))
    longer = replace(chain, ledgers=chain_of(9).ledgers)
    before = store.tree.transaction_number
    written, version = await write_chain(store, PATH, chain, longer, version, SMALL)
    assert written.archives
    raised = written.with_log_start(10**12 + 80)
    raised = raised.with_deleted(frozenset(raised.all_deleting))
    await write_chain(store, PATH, written, raised, version, SMALL)
    assert store.tree.transaction_number == before + 2
