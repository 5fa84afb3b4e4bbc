"""A produce and a fetch of `quire standalone` run in the rooms below `quire`.

The composition starts the parts; nothing of it is called for a request (docs/architecture.md,
Layers). What is called is seen by the interpreter's profile hook, of the loop's thread.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


class Seen:
    """Modules, as paths below the checkout, that were entered or resumed."""

    def __init__(self):
        self.files = set()

    def __call__(self, frame, event, arg):
        if event == "call":
            self.files.add(frame.f_code.co_filename)

    def rooms(self):
        paths = map(Path, self.files)
        return {str(path.relative_to(ROOT)) for path in paths if path.is_relative_to(ROOT)}


async def test_no_request_climbs_into_the_composition(client):
    await client.produce("t", [b"the ledger is open now"])
    seen = Seen()
    sys.setprofile(seen)
    try:
        produced = await client.produce("t", [b"one"])
        fetched = await client.fetch("t", 0)
    finally:
        sys.setprofile(None)
    assert produced.error_code == 0
    assert fetched.high_watermark == 2
    rooms = seen.rooms()
    assert {"broker/handlers/produce.py", "broker/handlers/fetch.py", "bookie/adds.py"} <= rooms
    assert "joined/local_bookie.py" in rooms
    assert sorted(path for path in rooms if path.startswith("quire/")) == []
