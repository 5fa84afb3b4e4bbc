"""Where the `quire` command begins: what has to be so before anything else is imported."""

from __future__ import annotations

import gc

#: As `gc.set_threshold` takes it. What an import makes stays, and by default the collector goes
#: through all of it ten times while a server starts: a twelfth of that time. A start makes some
#: 150,000 such objects: the first number is above that. A server sets its own thresholds once it
#: serves (role.py).
THRESHOLDS = (250_000, 50, 100)


def main() -> None:
    gc.set_threshold(*THRESHOLDS)
    from quire.cli import main as command  # not before

    command()
