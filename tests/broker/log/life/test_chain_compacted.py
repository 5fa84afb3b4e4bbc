"""Chains with compacted ledgers: format 3, swaps against a model on lists, archives made anew."""

import json
from dataclasses import replace
from itertools import pairwise

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.cluster.ownership import Incarnation
from broker.log.life.chain import (
    Chain,
    ChainFormatError,
    SourcesGoneError,
    archive_bytes,
    archive_from_bytes,
    is_archive,
)
from broker.log.life.document import read_chain, write_chain
from broker.log.life.ledger_info import LedgerInfo, merged_epochs
from broker.log.settings import LogSettings
from metadata.memory import MemoryStore

PATH = "/quire/partitions/x/0"
OWNER = Incarnation(1, "0f" * 16)
SMALL = LogSettings(document_ledgers_max=4, archive_ledgers=3)
PLAIN = LedgerInfo(7, 0, 2, 1000, 99, 12, 5000, 1500, 98, 10, 11)
WHOLE = LedgerInfo(
    9, 0, 2, 1000, 99, 12, 5000, 1500, 98, 10, 11,
    generation=2, epochs=((2, 0), (5, 60)), min_horizon_ms=7777, aborted_entry=9, aborted_count=3,
)  # fmt: skip


def ledger(ledger_id, base, size=10, **facts):
    return LedgerInfo(ledger_id, base, 1, 1000, base + size - 1, 5, 100, **facts)


def chain_of(count):
    return Chain(1, 0, tuple(ledger(number, 10 * number) for number in range(count)), owner=OWNER)


def compacted(sources, ledger_id, count=1):
    """In the place of `sources`, so many ledgers."""
    base, end = sources[0].base_offset, sources[-1].end_offset
    cuts = [base, *range(base + 1, base + count), end]
    return [
        ledger(ledger_id + number, low, high - low, generation=1)
        for number, (low, high) in enumerate(pairwise(cuts))
    ]


def test_document_format_1_read_and_upgraded():
    """Formats 1 and 2 are written as long as nothing of 3 is used, and 3 from then on."""
    old = Chain(3, 0, (PLAIN,), owner=OWNER)
    document = json.loads(old.to_bytes())
    assert document["format"] == 1
    assert set(document["ledgers"][0]) == {
        "id", "base", "epoch", "created_ms", "last", "entries", "size", "max_ts",
        "max_ts_offset", "index", "snapshot",
    }  # fmt: skip
    assert "cleaned_to" not in document
    new = Chain.from_bytes(old.to_bytes()).with_compacted([7], [WHOLE])
    document = json.loads(new.to_bytes())
    assert document["format"] == 3
    assert document["ledgers"][0]["compacted"] == 2
    assert document["ledgers"][0]["epochs"] == [[2, 0], [5, 60]]
    assert document["ledgers"][0]["min_horizon"] == 7777
    assert (document["ledgers"][0]["aborted"], document["ledgers"][0]["aborted_count"]) == (9, 3)
    assert Chain.from_bytes(new.to_bytes()) == new
    only_cleaned = old.with_cleaned_to(100)
    assert json.loads(only_cleaned.to_bytes())["format"] == 3
    assert Chain.from_bytes(only_cleaned.to_bytes()).cleaned_to == 100


def test_only_what_is_not_as_usual_is_written():
    info = replace(WHOLE, epochs=(), min_horizon_ms=-1, aborted_entry=None, aborted_count=0)
    document = json.loads(Chain(3, 0, (info,)).to_bytes())
    assert set(document["ledgers"][0]) - {"compacted"} == set(
        json.loads(Chain(3, 0, (PLAIN,)).to_bytes())["ledgers"][0]
    )
    assert json.loads(archive_bytes([PLAIN]))["format"] == 2
    assert json.loads(archive_bytes([replace(WHOLE, base_offset=0)]))["format"] == 3


def test_an_archive_has_both_kinds():
    later = replace(PLAIN, ledger_id=12, base_offset=100, last_offset=120)
    assert archive_from_bytes(archive_bytes([WHOLE, later])) == [WHOLE, later]


@pytest.mark.parametrize("change", [
    {"format": 4}, {"cleaned_to": "x"}, {"epochs": [[2, 1]]}, {"epochs": [[2, 0], [2, 5]]},
    {"epochs": [[2, 0], [3, 0]]}, {"epochs": 7}, {"compacted": "1"}, {"aborted_count": None},
])  # fmt: skip
def test_damage_is_named(change):
    document = json.loads(Chain(3, 0, (WHOLE,)).to_bytes())
    ((name, value),) = change.items()
    place = document if name in ("format", "cleaned_to") else document["ledgers"][0]
    place[name] = value
    with pytest.raises(ChainFormatError, match=r"damaged|unknown format 4"):
        Chain.from_bytes(json.dumps(document).encode())


def test_epochs_of_sources_are_joined():
    first = replace(PLAIN, leader_epoch=2)
    second = replace(PLAIN, base_offset=100, leader_epoch=2)
    third = replace(PLAIN, base_offset=200, leader_epoch=4, epochs=((4, 200), (6, 250)))
    assert merged_epochs([first, second]) == ()
    assert merged_epochs([first, second, third]) == ((2, 0), (4, 200), (6, 250))
    assert merged_epochs([third, replace(PLAIN, base_offset=300, leader_epoch=6)]) == third.epochs


def test_sources_have_to_be_there_one_after_the_other():
    chain = chain_of(6)
    infos = compacted(chain.ledgers[1:4], 100)
    for wrong in ([1, 3], [1, 2, 4], [2, 1, 3], [1, 2, 99], [0, 1, 2]):
        with pytest.raises(SourcesGoneError):
            chain.with_compacted(wrong, infos)
    with pytest.raises(SourcesGoneError):
        chain.with_log_start(25).with_compacted([1, 2, 3], infos)
    with pytest.raises(SourcesGoneError):
        chain.with_compacted([1, 2, 3], infos).with_compacted([1, 2, 3], infos)
    with pytest.raises(AssertionError):  # another range
        chain.with_compacted([1, 2], infos)
    open_last = Chain(1, 0, (*chain.ledgers[:1], LedgerInfo(1, 10, 1, 1000)))
    with pytest.raises(AssertionError, match="open"):
        open_last.with_compacted([0, 1], [ledger(100, 0, 20, generation=1)])


def test_the_log_start_may_be_in_a_source():
    chain = chain_of(4).with_log_start(15)
    swapped = chain.with_compacted([1, 2], compacted(chain.ledgers[:2], 100))
    assert swapped.log_start_offset == 15
    assert [info.ledger_id for info in swapped.ledgers] == [100, 3]
    assert swapped.deleting == (0, 1, 2)


def test_what_stands_in_for_a_ledger_that_is_kept_for_the_producers_is_kept():
    """The log start has risen above all of it since the pass began: the newest snapshot of the
    producers is in there all the same."""
    sources = ledger(0, 0, 10, snapshot_entry=3), ledger(1, 10, 10, snapshot_entry=4)
    chain = Chain(1, 0, sources, owner=OWNER).with_log_start(20, keeps_producers=True)
    assert chain.ledgers == sources[1:]
    info = ledger(100, 10, 10, generation=1, snapshot_entry=2)
    swapped = chain.with_compacted([1], [info])
    assert swapped.ledgers == (info,)
    assert 100 not in swapped.deleting
    assert Chain.from_bytes(swapped.to_bytes()) == swapped
    assert swapped.has_superfluous(keeps_producers=False)
    assert not swapped.has_superfluous(keeps_producers=True)


def test_first_dirty_is_clamped():
    chain = chain_of(4)
    assert chain.first_dirty == 0
    assert chain.with_cleaned_to(20).first_dirty == 20
    assert chain.with_cleaned_to(20).with_log_start(25).first_dirty == 25
    assert replace(chain, cleaned_to=41).first_dirty == 0
    assert chain.with_cleaned_to(40).first_dirty == 40


def test_the_flag_off_then_on_keeps_cleaned_to():
    """No change of a chain but a pass moves it."""
    chain = chain_of(4).with_cleaned_to(20)
    chain = chain.with_epoch(2, OWNER).with_ledger(LedgerInfo(50, 40, 2, 1000))
    chain = Chain.from_bytes(chain.with_log_start(10).to_bytes())
    assert chain.cleaned_to == 20


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_swaps_are_read_back_as_they_were_written(data):
    """Against a list of ledgers, while others are added, dropped and deleted."""

    async def run():
        store = MemoryStore()
        await store.create(PATH, Chain().to_bytes(), make_parents=True)
        count = data.draw(st.integers(0, 25))
        model, deleting, log_start = list(chain_of(count).ledgers), [], 0
        chain, version = await write_chain(store, PATH, Chain(), chain_of(count), 0, SMALL)
        known, next_id = chain, 1000
        for _ in range(data.draw(st.integers(1, 12))):
            match data.draw(st.sampled_from(["swap", "swap", "swap", "add", "start", "delete"])):
                case "swap" if model:
                    start = data.draw(st.integers(0, len(model) - 1))
                    stop = data.draw(st.integers(start + 1, min(len(model), start + 9)))
                    wide = model[stop - 1].end_offset - model[start].base_offset
                    most = min(stop - start + 1, 6, wide)  # none is empty
                    infos = compacted(model[start:stop], next_id, data.draw(st.integers(1, most)))
                    ids = [info.ledger_id for info in model[start:stop]]
                    chain = chain.with_compacted(ids, infos)
                    model[start:stop] = infos
                    gone = [info for info in infos if info.end_offset <= log_start]
                    deleting += ids + [info.ledger_id for info in gone]
                    model = model[len(gone) :]
                    next_id += len(infos)
                case "add":
                    info = ledger(next_id, chain.closed_end_offset)
                    chain, next_id = chain.with_ledger(info), next_id + 1
                    model.append(info)
                case "start":
                    log_start = data.draw(st.integers(log_start, chain.closed_end_offset))
                    chain = chain.with_log_start(log_start)
                    gone = [info for info in model if info.end_offset <= log_start]
                    deleting += [info.ledger_id for info in gone]
                    model = model[len(gone) :]
                case "delete":
                    gone_ids = chain.all_deleting[: data.draw(st.integers(0, 4))]
                    chain = chain.with_deleted(frozenset(gone_ids))
                    deleting = [each for each in deleting if each not in gone_ids]
            if data.draw(st.booleans()):
                known, version = await write_chain(store, PATH, known, chain, version, SMALL)
                chain = known
                read, _ = await read_chain(store, PATH)
                assert read == known
                names = set(store.tree.table.children("/quire/partitions/x"))
                assert {name for name in names if is_archive(name)} == {
                    f"0-ledgers-{archive.number}" for archive in known.archives
                }
                assert all(0 < archive.ledger_count <= 3 for archive in known.archives)
            assert list(chain.ledgers) == model
            assert sorted(chain.all_deleting) == sorted(deleting)
            assert chain.log_start_offset == log_start

    trio.run(run)


async def test_thousand_small_ledgers_joined():
    """What is left of their archives is not an archive each."""
    store = MemoryStore()
    await store.create(PATH, Chain().to_bytes(), make_parents=True)
    usual, chain, version = LogSettings(), chain_of(0), 0
    known, version = await write_chain(store, PATH, Chain(), chain_of(1000), version, usual)
    assert len(known.archives) == 6
    for start in range(0, 1000, 50):
        sources = chain_of(1000).ledgers[start : start + 50]
        ids = [info.ledger_id for info in sources]
        chain = known.with_compacted(ids, compacted(sources, 2000 + start))
        known, version = await write_chain(store, PATH, known, chain, version, usual)
    assert len(known.ledgers) == 20
    assert len(known.archives) <= 2
    assert (await read_chain(store, PATH))[0] == known
    assert known.deleting == tuple(range(1000))


async def test_no_archive_has_the_number_of_another():
    """A reader with an old document must not find another archive under a number in it."""
    store = MemoryStore()
    await store.create(PATH, Chain().to_bytes(), make_parents=True)
    known, version = await write_chain(store, PATH, Chain(), chain_of(40), 0, SMALL)
    seen = {archive.number: archive for archive in known.archives}
    for step in range(12):
        sources = known.ledgers[step % 3 : step % 3 + 2]
        ids = [info.ledger_id for info in sources]
        chain = known.with_compacted(ids, compacted(sources, 1000 + step))
        if step % 3 == 2:
            chain = chain.with_log_start(chain.ledgers[1].base_offset)
            chain = chain.with_deleted(frozenset(chain.all_deleting))
        new, version = await write_chain(store, PATH, known, chain, version, SMALL)
        fresh = {each.number for each in new.archives} - {each.number for each in known.archives}
        assert not fresh & set(seen)
        seen.update((each.number, each) for each in new.archives)
        known = new
    # Once none is left the largest number of all is forgotten, and not given again.
    chain = known.with_log_start(known.closed_end_offset)
    chain = chain.with_deleted(frozenset(chain.all_deleting))
    known, version = await write_chain(store, PATH, known, chain, version, SMALL)
    assert known.archives == ()
    chain = known
    for number in range(20):
        chain = chain.with_ledger(ledger(5000 + number, chain.closed_end_offset))
    known, version = await write_chain(store, PATH, known, chain, version, SMALL)
    assert len(known.archives) >= 5
    assert not {archive.number for archive in known.archives} & set(seen)
