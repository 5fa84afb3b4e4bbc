"""A file that is cut short, or cannot be read, under somebody who looks at what was read from it:
with a mapping the process would end by SIGBUS. In a child process, on a real disk."""

import subprocess
import sys
import textwrap

PROGRAM = """
import glob, os, sys, trio
from bookie.bookie import Bookie
from bookie.config import BookieConfig
from bookie.errors import DamagedRecordError
from runtime.env import real_env
from wire.bookkeeper.status import Status

async def main(directory):
    env = real_env()
    config = BookieConfig(
        bookie_id="b", instance_id="", journal_directory=f"{directory}/journal",
        ledger_directory=f"{directory}/ledgers",
    )
    bookie = Bookie(config, env)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(env.turn.serve)
        await nursery.start(lambda task_status: bookie.run(task_status=task_status))
        answers = []
        for entry_id in range(100):
            entry = entry_id.to_bytes(16, "big").rjust(16) + bytes([entry_id]) * 100_000
            entry = (1).to_bytes(8, "big") + entry_id.to_bytes(8, "big") + entry
            bookie.add_entry(1, entry_id, b"k" * 20, [entry], 0, answers.append)
        with trio.fail_after(60):
            while len(answers) < 100:
                await trio.sleep(0.01)
            await bookie.flush()
        status, entries = await bookie.read_entries(1, 0, 0, 4 << 20)
        assert status is Status.EOK and len(entries) > 30, (status, len(entries))
        for log in glob.glob(f"{directory}/ledgers/current/*.log"):
            os.truncate(log, 2000)
        for entry_id, entry in enumerate(entries):
            assert set(bytes(entry[32:])) == {entry_id}
        status, entries = await bookie.read_entries(1, 50, 0, 4 << 20)
        print("answered", status.name, len(entries))
        sys.stdout.flush()
        os._exit(0)

trio.run(main, sys.argv[1])
"""


def test_a_log_that_is_cut_under_its_readers_does_not_end_the_bookie(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout.split()[:2]) == (0, ["answered", "EIO"]), done.stderr
