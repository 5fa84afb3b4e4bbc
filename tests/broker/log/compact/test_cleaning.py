"""Passes over a real partition on bookies in memory: what is read afterwards."""


async def test_of_each_key_the_newest_stays(autojump_clock, shop, compaction):
    await shop.open()
    await shop.fill([(b"a", b"1"), (b"b", b"1")], [(b"a", b"2")])
    await shop.fill([(b"c", b"1")], [(b"b", b"2"), (b"d", b"1")])
    await shop.put((b"a", b"3"))
    before = await compaction.read_records(shop.log)
    ids, high_watermark = shop.ids(), shop.log.high_watermark
    state = await shop.compact()
    assert not state.last_error
    after = await compaction.read_records(shop.log)
    assert [record[:3] for record in after] == [
        (2, b"a", b"2"),
        (3, b"c", b"1"),
        (4, b"b", b"2"),
        (5, b"d", b"1"),
        (6, b"a", b"3"),
    ]
    assert set(after) <= set(before)
    assert compaction.table_of(after) == compaction.table_of(before)
    assert (shop.log.log_start_offset, shop.log.high_watermark) == (0, high_watermark)
    assert shop.ids()[-1] == ids[-1]
    assert len(shop.ids()) == 2
    assert shop.log.chain.cleaned_to == 6
    assert state.last.records_dropped == 2
