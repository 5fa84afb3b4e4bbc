"""What is decided without asking anybody: who is lost, what is missing, racks, the report."""

import random

import pytest

from ledger.autorecovery.config import AUTORECOVERY_CONFIGS, AutoRecoveryConfig, autorecovery_config
from ledger.autorecovery.lost_bookies import LostBookies
from ledger.autorecovery.placement_check import Adherence, adherence
from ledger.autorecovery.replicas_check import check_replicas
from ledger.autorecovery.report import Reason, entries_without_copy, problems_of
from ledger.copy_check import NOT_REGISTERED, CopyChecker
from ledger.fragments import fragments, schedule_of
from runtime.config import ConfigError
from wire.bookkeeper.entry import Digest, DigestType
from wire.bookkeeper.entry_set import EntrySet
from wire.bookkeeper.ledger_metadata import LedgerMetadata
from wire.bookkeeper.status import Status


def metadata_of(sizes, *segments, last=None):
    made = LedgerMetadata(*sizes, segments)
    return made if last is None else made.closed_at(last, 100)


def test_a_single_loss_waits_and_a_second_does_not():
    lost = LostBookies()
    lost.look("abc", 0.0)
    assert (lost.due(0.0, 10), lost.wait_s(0.0, 10)) == (frozenset(), float("inf"))
    lost.look("bc", 5.0)
    assert (lost.due(5.0, 10), lost.wait_s(7.0, 10)) == (frozenset(), 8.0)
    assert lost.due(14.9, 10) == frozenset()
    assert lost.due(15.0, 10) == {"a"}
    # Told once; and again when it was back in between.
    lost.look("bc", 16.0)
    assert lost.due(100.0, 10) == frozenset()
    lost.look("abc", 101.0)
    lost.look("bc", 102.0)
    lost.look("c", 103.0)
    assert lost.due(103.0, 10) == {"a", "b"}


def test_who_is_back_in_time_is_not_lost():
    lost = LostBookies()
    lost.look("ab", 0.0, known="abc")
    assert lost.waiting == {"c"}
    lost.look("abc", 3.0)
    assert (lost.due(50.0, 10), lost.cancelled) == (frozenset(), 1)
    lost.look("ab", 60.0)
    assert lost.due(60.0, 0) == {"c"}


@pytest.mark.parametrize("seed", range(40))
def test_entries_without_copy_against_counting(seed):
    rng = random.Random(seed)
    ensemble_size = rng.randint(1, 5)
    write_quorum = rng.randint(1, ensemble_size)
    names = tuple("abcde"[:ensemble_size])
    first = rng.randint(0, 7)
    last = first + rng.randint(-1, 12)
    segments = ((0, names),) if first == 0 else ((0, names), (first, names))
    metadata = metadata_of((ensemble_size, write_quorum, 1), *segments, last=last)
    fragment = fragments(1, metadata)[-1]
    schedule = schedule_of(metadata)
    registered = {name for name in names if rng.random() < 0.4}
    expected = sum(
        not any(names[index] in registered for index in schedule.write_set(entry_id))
        for entry_id in range(first, last + 1)
    )
    assert entries_without_copy(fragment, schedule, registered) == expected


def test_the_report():
    def reasons(metadata, registered, writable):
        return [each.reason for each in problems_of(1, metadata, registered, writable)]

    one = metadata_of((1, 1, 1), (0, ("a",)), last=9)
    assert reasons(one, "bc", "bc") == [Reason.NO_COPY_LEFT]
    three = metadata_of((3, 3, 2), (0, ("a", "b", "c")), last=9)
    assert reasons(three, "bc", "bc") == [Reason.TOO_FEW_BOOKIES]
    assert reasons(three, "bcd", "bcd") == []
    assert reasons(three, "bcd", "bc") == [Reason.TOO_FEW_BOOKIES]
    assert reasons(three, "abc", "abc") == []
    open_one = metadata_of((3, 3, 2), (0, ("a", "b", "c")), (5, ("d", "b", "c")))
    assert reasons(open_one, "abc", "abc") == [Reason.OPEN]
    assert reasons(open_one, "bcd", "bcd") == []
    assert reasons(open_one, "bcd", "bc") == [Reason.TOO_FEW_BOOKIES]
    # An empty ledger has no entry to lose.
    empty = metadata_of((1, 1, 1), (0, ("a",)), last=-1)
    assert reasons(empty, "bc", "bc") == []


def test_placements():
    racks = {"a": "/r/1", "b": "/r/1", "c": "/r/2"}

    def found(ensemble, sizes=(2, 2, 2), locations=racks):
        return adherence(metadata_of(sizes, (0, tuple(ensemble))), locations, 2)

    assert found("ac") is Adherence.STRICT
    assert found("ab") is Adherence.FAIL
    assert found("ab", locations={"a": "/r/1", "b": "/r/1"}) is Adherence.SOFT
    assert found("a", (1, 1, 1)) is Adherence.STRICT
    # Striped: one of the three write quorums is in one rack.
    assert found("abc", (3, 2, 2)) is Adherence.FAIL


class Lister:
    """Bookies that only list and read; EIO for who is not in `listed`."""

    def __init__(self, listed):
        self.listed = listed

    async def list_entries(self, bookie, ledger_id):
        if bookie not in self.listed:
            return Status.EIO, None
        return Status.EOK, EntrySet.of_entries(self.listed[bookie])


async def test_replicas_are_counted():
    metadata = metadata_of((3, 2, 2), (0, ("a", "b", "c")), last=5)
    whole = {"a": [0, 2, 3, 5], "b": [0, 1, 3, 4], "c": [1, 2, 4, 5]}
    found = await check_replicas(Lister(whole), 1, metadata, "abc")
    assert found == (6, 0, 0, 0, frozenset(), frozenset())
    found = await check_replicas(Lister({**whole, "b": [0, 1]}), 1, metadata, "abc")
    # Entries 3 and 4 have one copy left, which is below the ack quorum.
    assert found[:4] == (6, 0, 2, 0)
    assert found.lacking == {"b"}
    found = await check_replicas(Lister(whole), 1, metadata, "c")
    assert (found.without_copy, found.lacking) == (2, {"a", "b"})
    del whole["a"]
    found = await check_replicas(Lister(whole), 1, metadata, "abc")
    assert (found.silent, found.below_ack_quorum) == ({"a"}, 0)


async def test_what_a_bookie_lists_says_which_runs_are_missing(world):
    metadata = metadata_of((1, 1, 1), (0, ("a",)), last=9)
    checker = CopyChecker(Lister({"a": [0, 1, 4, 5, 9]}), 1, metadata, world.env.rng)
    (fragment,) = fragments(1, metadata)
    (missing,) = await checker.check(fragment, "a")
    assert missing.runs == (range(2, 4), range(6, 9))
    (gone,) = await checker.check(fragment, "")
    assert (gone.reason, gone.is_there, gone.runs) == (NOT_REGISTERED, False, None)


class Reader(Lister):
    """Lists nothing; `answers`: entry id -> status other than EOK."""

    def __init__(self, answers, entry):
        super().__init__({})
        self.answers = answers
        self.entry = entry
        self.asked = []

    async def read_entry(self, bookie, ledger_id, entry_id):
        self.asked.append(entry_id)
        status = self.answers.get(entry_id, Status.EOK)
        return status, memoryview(self.entry(entry_id) if status is Status.EOK else b"")


@pytest.mark.parametrize("sizes", [(1, 1, 1), (3, 2, 2)])
async def test_some_entries_are_read(world, sizes):
    digest = Digest(DigestType.CRC32C, b"")
    names = ("a", "b", "c")[: sizes[0]]
    metadata = metadata_of(sizes, (0, names), last=99)
    (fragment,) = fragments(1, metadata)

    async def found(answers, percentage=0):
        reader = Reader(
            answers, lambda entry_id: digest.seal(1, entry_id, -1, 3, [b"abc"], 3) + b"abc"
        )
        checker = CopyChecker(reader, 1, metadata, world.env.rng, percentage=percentage)
        return await checker.check(fragment, names), reader.asked

    missing, asked = await found({})
    assert missing == []
    # Of each bookie the first and the last that it should have.
    assert set(asked) == ({0, 99} if sizes[0] == 1 else {0, 1, 98, 99})
    missing, _ = await found({99: Status.ENOENTRY})
    assert [each.ensemble_index for each in missing] == ([0] if sizes[0] == 1 else [0, 1])
    assert missing[0].is_there
    missing, _ = await found({0: Status.EIO})
    assert not missing[0].is_there
    # One that is too busy to answer has lost nothing.
    assert (await found({0: Status.ETOOMANYREQUESTS}))[0] == []
    _, asked = await found({}, percentage=50)
    assert len(asked) > 20 * len(names)


def test_settings():
    assert autorecovery_config({}) == AutoRecoveryConfig()
    texts = {
        "lostBookieRecoveryDelay": "120",
        "auditorPeriodicCheckInterval": "0",
        "replicationRateByBytes": "1000",
        "rereplicationEntryBatchSize": "10",
        "openLedgerRereplicationGracePeriod": "5",
    }
    config = autorecovery_config(AUTORECOVERY_CONFIGS.parse(texts))
    assert config.lost_bookie_recovery_delay_s == 120
    assert config.ledger_check_interval_s == 0
    assert config.replication.bytes_per_second == 1000
    assert config.replication.batch_entries_max == 10
    assert config.open_ledger_grace_ms == 5
    with pytest.raises(ConfigError):
        AUTORECOVERY_CONFIGS.parse({"auditorLedgerVerificationPercentage": "101"})


def test_pauses_double_and_end():
    config = AutoRecoveryConfig(failed_ledger_pause_ms=5_000, failed_ledger_pause_max_ms=300_000)
    assert [config.pause_ms(n) for n in (1, 2, 3, 7, 8, 1000)] == [
        5_000,
        10_000,
        20_000,
        300_000,
        300_000,
        300_000,
    ]
