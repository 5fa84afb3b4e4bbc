"""What the ledger client's tests run as bookies."""

from bookie.config import BookieConfig

MIB = 1024 * 1024


def small_bookie(directory, name):
    """A bookie's configuration, with journal and cache so small that many fit into a test."""
    return BookieConfig(
        bookie_id=name,
        instance_id="",
        journal_directory=str(directory / name / "journal"),
        ledger_directory=str(directory / name / "ledgers"),
        journal_size_bytes=8 * MIB,
        journal_group_size_max_bytes=MIB,
        write_cache_size_bytes=16 * MIB,
    )
