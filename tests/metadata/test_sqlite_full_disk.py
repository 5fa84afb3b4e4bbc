"""SQLite on a disk that is full: deletions still go, refusals are clear, the store goes on."""

import os
import shutil
import subprocess

import pytest

from metadata.sqlite import RESERVE_SIZE_BYTES, SqliteStore
from metadata.store import ANY_VERSION, MetadataUnavailableError
from runtime.real_disk import RealDisk

SIZE_BYTES = 10 * RESERVE_SIZE_BYTES
KIB = 1024


@pytest.fixture
def full_folder(tmp_path):
    """A file system of its own, small enough to be filled."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("mounting a tmpfs needs root")
    options = ["mount", "-t", "tmpfs", "-o", f"size={SIZE_BYTES}", "tmpfs", str(tmp_path)]
    if subprocess.run(options, capture_output=True, check=False).returncode:
        pytest.skip("no tmpfs can be mounted here")
    yield tmp_path
    subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def fill(folder):
    with (folder / "filler").open("ab", buffering=0) as file:
        for size in (1 << 20, 4096):
            block = bytes(size)
            try:
                while file.write(block) == size:
                    pass
            except OSError:
                continue


async def test_a_full_disk(full_folder, nursery):
    store = SqliteStore(str(full_folder / "metadata.db"), RealDisk().run)
    await nursery.start(store.run)
    reserve = full_folder / "metadata.db.reserve"
    assert reserve.stat().st_size == RESERVE_SIZE_BYTES
    await store.create("/d")
    for number in range(50):
        await store.create(f"/d/{number}", bytes(4 * KIB))
    fill(full_folder)
    # The reserve lets deletions through, and whatever is small.
    for number in range(0, 50, 2):
        await store.delete(f"/d/{number}", ANY_VERSION)
        await store.create(f"/d/again{number}", bytes(4 * KIB))
    fill(full_folder)
    assert not reserve.exists()
    refused = []
    for number in range(20):
        try:
            await store.create(f"/d/large{number}", bytes(64 * KIB))
        except MetadataUnavailableError as error:
            refused.append(str(error))
            assert not await store.exists(f"/d/large{number}")
    assert len(refused) > 10
    assert all("full; nothing was changed" in words for words in refused)
    os.truncate(full_folder / "filler", 0)
    for number in range(300):
        await store.put("/d/1", b"%d" % number, ANY_VERSION)
    assert reserve.stat().st_size == RESERVE_SIZE_BYTES
    await store.aclose()
    store = SqliteStore(str(full_folder / "metadata.db"), RealDisk().run)
    await nursery.start(store.run)
    assert (await store.get("/d/1")).data == b"299"
    assert (await store.get("/d/again2")).data == bytes(4 * KIB)
    assert not await store.exists("/d/2")
    await store.aclose()
