"""All ledgers of a small tree at once; servers walk them in portions."""

from ledger.ledger_walk import walk_ledger_ids


async def ledger_ids(manager):
    """Ascending. NoNodeError if there is no tree."""
    portions = walk_ledger_ids(manager.store, manager.root)
    return [each async for ids in portions for each in ids]
