"""`quire bookie`, with another constant: how long a ledger must be missing before it is collected.

    hasty_bookie.py SECONDS fresh|stale bookie --config FILE

A minute is too long for a short run. With `stale` it also believes what its ZooKeeper server says
without asking that server to catch up: that is how a net is shown to be one.
"""

import sys

from ledger.metadata import LedgerManager
from quire import bookie_node
from quire.cli import main


async def believe(_: LedgerManager) -> None:
    """In place of `LedgerManager.sync`."""


if __name__ == "__main__":
    seconds, trust, *words = sys.argv[1:]
    bookie_node.ABSENT_SECONDS_MIN = float(seconds)
    if trust == "stale":
        LedgerManager.sync = believe
    main(words)
