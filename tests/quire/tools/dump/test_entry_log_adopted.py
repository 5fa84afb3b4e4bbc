"""`dump entrylog` of a journal that is to be an entry log: its end is that of the journal."""

import shutil

import trio


async def test_what_an_earlier_life_of_the_file_left_is_no_damage_and_no_entry(
    running_bookie, dump, tmp_path
):
    settings = {
        "journal_size_bytes": 256 << 10,
        "journal_group_size_max_bytes": 64 << 10,
        "entry_size_max_bytes": 64 << 10,
        "write_cache_segment_size_bytes": 128 << 10,
        "journal_kept_entry_min_bytes": 30_000,
    }
    async with running_bookie(**settings) as node:
        for number in range(60):  # some journals' worth of small ones, which become spares
            await node.add(7, range(number * 20, number * 20 + 20), b"a" * 1001)
            await node.bookie.flush()
            await trio.sleep(0.01)
        for number in range(30):
            await node.add(9, [number], b"b" * 40_000)
            await node.bookie.flush()
            adopted = list(node.bookie._logs.adopted.values())
            if adopted and adopted[0].records_end < 100_000:
                break
        (log, *_) = adopted
        copy = tmp_path / log.path.rpartition("/")[2]
        shutil.copy(log.path, copy)
        end, expected = log.records_end, sum(log.ledgers.values())
        assert copy.read_bytes()[log.records_end + 4096 :].count(b"a") > 1000, "an earlier life"
    got = dump("entrylog", copy)
    assert (got.exit_code, got.rows("damage")) == (0, [])
    shown = got.rows("entry")
    assert sum(row["size"] + 4 for row in shown if row["ledger"] == 9) == expected
    assert [row["offset"] for row in shown if row["offset"] > end] == []
