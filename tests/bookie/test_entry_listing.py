"""What is flushed while the entries of a ledger are listed is listed."""

from bookie.entry_listing import EntryListing


async def test_a_flush_that_ends_after_the_index_was_walked(machine, adds_class, monkeypatch):
    """The index was asked before the flush put its entries there, and the cache is asked once more
    when it has let go of them."""
    async with machine.running() as bookie:
        adds = adds_class(bookie)
        for entry_id in range(3):
            adds.add(1, entry_id)
        await adds.wait(3)
        await bookie.flush()
        for entry_id in range(3, 6):
            adds.add(1, entry_id)
        await adds.wait(6)
        in_index = EntryListing._in_index

        async def then_flush(listing, ledger_id):
            found = await in_index(listing, ledger_id)
            await bookie.flush()
            return found

        monkeypatch.setattr(EntryListing, "_in_index", then_flush)
        found = await bookie.entries(1)
        assert [entry_id for entry_id in range(7) if entry_id in found] == list(range(6))
