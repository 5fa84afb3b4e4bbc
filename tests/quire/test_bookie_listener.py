"""`--bookie-listen`: another process reads what the embedded bookie has; without it nobody does."""

import pytest
import trio

from pyspark_quire.connection import UnreachableError, Where, connected
from quire.options import StandaloneOptions
from quire.standalone import _load_config, run
from runtime.config import ConfigError
from tests.ledger.real_parts import write
from wire.bookkeeper.entry import DigestType


def options(tmp_path, **more):
    settings = {"journalMaxSizeMB": "16", "dbStorage_writeCacheMaxSizeMb": "16"}
    return StandaloneOptions(
        listen=("127.0.0.1", 0), data_dir=str(tmp_path / "data"), overrides=settings, **more
    )


async def test_its_ledgers_are_read_by_the_bookies_protocol(tmp_path):
    where = Where(f"quire+unix://{tmp_path}/data/metadata.sock")
    async with trio.open_nursery() as nursery:
        await nursery.start(run, options(tmp_path, bookie_listen=("127.0.0.1", 0)))
        async with connected(where) as connection:
            assert list(connection.addresses()) == ["quire-standalone"]
            writer = await connection.ledgers.create_ledger(digest_type=DigestType.CRC32C)
            await write(writer, 1)
            await writer.close()
            reader = await connection.ledgers.open_ledger(writer.ledger_id, recover=False)
            [payload] = await reader.read(0, count_max=1, size_max=1)
            assert bytes(payload) == b"entry 0"
        nursery.cancel_scope.cancel()


async def test_without_it_there_is_nobody_to_ask(tmp_path):
    where = Where(f"quire+unix://{tmp_path}/data/metadata.sock")
    async with trio.open_nursery() as nursery:
        await nursery.start(run, options(tmp_path))
        with pytest.raises(UnreachableError, match="--bookie-listen"):
            async with connected(where):
                pass
        nursery.cancel_scope.cancel()


def test_bookies_that_are_processes_have_listeners_already():
    wanted = StandaloneOptions(bookies=3, bookie_listen=("127.0.0.1", 0))
    with pytest.raises(ConfigError, match="has a listener already"):
        _load_config(wanted)
