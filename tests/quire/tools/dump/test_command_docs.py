"""The dumps of one small data directory in docs/formats.md are what the commands print today.

The directory is made by a real server with a real client; only clock and entropy are set, so that
it has the same bytes each time. `python tests/quire/tools/dump/test_command_docs.py` prints the
section anew.
"""

import dataclasses
import random
import re
import shlex
import sys
import tempfile
from pathlib import Path
from unittest import mock

import click.testing
import trio
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from quire import standalone
from quire.options import StandaloneOptions
from quire.tools.dump.command import dump as dump_group
from runtime.env import RealClock, real_env

ROOT = Path(__file__).parents[4]
TITLE = "## One small data directory, dumped"
INTRODUCTION = """\
A server with one topic of one partition; an idempotent producer sent two records, and then one
more; the server was stopped. Each block is what the command prints when its output is piped
(`tests/quire/tools/dump/test_command_docs.py` makes this section and holds it to the commands).
Offsets of entries are those behind the length, as the index has them."""
COMMANDS = [
    "quire dump cookie data",
    "quire dump checkpoint data",
    "quire dump journal --entries data",
    "quire dump entrylog --records data",
    "quire dump index data",
    "quire dump metadata data",
    "quire dump batch --records --json --at 1028 data/bookie/ledgers/current/0.log",
]
START_MS = 1_767_225_600_000  # 2026-01-01
TIMEOUT_SECONDS = 30


class Clock(RealClock):
    """The wall clock stands still."""

    __slots__ = ()

    def time_ms(self):
        return START_MS


def set_env():
    return dataclasses.replace(real_env(), clock=Clock(), rng=random.Random(2026))


def without_idle_groups(values, **others):
    # The journal attests what is durable when it was idle for a while: that depends on the time.
    config = real_bookie_config(values, **others)
    return dataclasses.replace(config, journal_attest_interval_ms=0)


real_bookie_config = standalone.bookie_config


def produce(address):
    # Whoever asks for telemetry is given an id, and the topic's would depend on who is first.
    servers = {"bootstrap.servers": address, "log_level": 0, "enable.metrics.push": False}
    topic = NewTopic("orders", num_partitions=1, replication_factor=1)
    admin = AdminClient(servers)
    admin.create_topics([topic])["orders"].result(TIMEOUT_SECONDS)
    producer = Producer({**servers, "enable.idempotence": True, "linger.ms": 1000})
    for at, (key, value) in enumerate([("ann", "2 apples"), ("bob", None)]):
        headers = [("trace", b"\x07\xff")] if value else []
        producer.produce("orders", value, key, timestamp=START_MS + at, headers=headers)
    assert producer.flush(TIMEOUT_SECONDS) == 0
    producer.produce("orders", "1 pear", "ann", timestamp=START_MS + 9)
    assert producer.flush(TIMEOUT_SECONDS) == 0


async def serve(directory):
    options = StandaloneOptions(
        listen=("127.0.0.1", 0), data_dir=directory, overrides={"journalMaxSizeMB": "32"}
    )
    async with trio.open_nursery() as nursery:
        host, port = await nursery.start(lambda task_status: run(options, task_status))
        await trio.to_thread.run_sync(produce, f"{host}:{port}")
        nursery.cancel_scope.cancel()


async def run(options, task_status):
    await standalone.run(options, task_status=task_status)


def make_directory(directory):
    with (
        mock.patch.object(standalone, "real_env", set_env),
        mock.patch.object(standalone, "bookie_config", without_idle_groups),
    ):
        trio.run(serve, f"{directory}/data")
    # The next journal file is prepared beside: whether it is there yet depends on the time.
    Path(f"{directory}/data/bookie/journal/current/2.txn").unlink(missing_ok=True)


def section():
    """The text of docs/formats.md, from its title on."""
    with tempfile.TemporaryDirectory() as directory:
        make_directory(directory)
        parts = [TITLE, INTRODUCTION]
        for command in COMMANDS:
            arguments = [
                f"{directory}/{word}" if word.startswith("data") else word
                for word in shlex.split(command)[2:]
            ]
            got = click.testing.CliRunner().invoke(dump_group, arguments)
            assert got.exit_code == 0, (command, got.output)
            text = got.stdout.replace(f"{directory}/", "")
            parts.append(f"```\n$ {command}\n{text}```")
    return "\n\n".join(parts) + "\n"


def test_the_section_is_current():
    text = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
    found = re.search(rf"^{TITLE}\n.*?(?=^## |\Z)", text, re.M | re.S)
    how = "python tests/quire/tools/dump/test_command_docs.py prints it"
    assert found, f"docs/formats.md has no section «{TITLE}»: {how}"
    assert found.group().strip() == section().strip(), how


if __name__ == "__main__":
    sys.stdout.write(section())
