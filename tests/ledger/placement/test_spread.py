"""Racks, regions, weights and quarantine: against the rules, stated as plainly as can be."""

import random
from itertools import permutations

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.bookie_watcher import BookieWatcher
from ledger.config import LedgerClientConfig
from ledger.health import BookieHealth
from ledger.placement import (
    Candidate,
    RandomPlacement,
    SpreadPlacement,
    SpreadRules,
    TooFewBookiesError,
)
from ledger.placement.candidates import CandidateSource
from ledger.placement.quarantine import QuarantinePlacement
from ledger.placement.topology import (
    DefaultTopology,
    ScriptTopology,
    TableTopology,
    TopologyError,
    parse_table,
)
from ledger.placement.weights import weights_of
from metadata.memory import MemoryStore
from wire.bookkeeper.records import BookieServiceInfo, Endpoint, encode_service_info


def _write_quorums(ensemble, write_quorum_size):
    size = len(ensemble)
    return [[ensemble[(s + i) % size] for i in range(write_quorum_size)] for s in range(size)]


def _is_spread(ensemble, write_quorum_size, locations, count):
    return all(
        len({locations[bookie] for bookie in quorum}) >= min(count, write_quorum_size)
        for quorum in _write_quorums(ensemble, write_quorum_size)
    )


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_racks_are_spread_whenever_they_can_be(data):
    """Brute force knows whether there is a way; if so it is found, if not it is refused, or the
    best that can be had is taken."""
    count = data.draw(st.integers(1, 6))
    racks = data.draw(st.lists(st.sampled_from(["/r/1", "/r/2", "/r/3"]), min_size=count,
                               max_size=count))  # fmt: skip
    locations = dict(zip("abcdef", racks, strict=False))
    candidates = [Candidate(bookie, rack) for bookie, rack in locations.items()]
    ensemble_size = data.draw(st.integers(1, min(4, count)))
    write_quorum_size = data.draw(st.integers(1, ensemble_size))
    min_racks = data.draw(st.integers(1, 3))
    is_possible = any(
        _is_spread(chosen, write_quorum_size, locations, min_racks)
        for chosen in permutations(locations, ensemble_size)
    )
    rng = random.Random(data.draw(st.integers(0, 99)))
    sizes = (ensemble_size, write_quorum_size, 1)
    loose = SpreadPlacement(lambda: candidates, rng, SpreadRules(min_racks))
    chosen = trio.run(loose.new_ensemble, *sizes)
    assert len(set(chosen)) == ensemble_size
    assert _is_spread(chosen, write_quorum_size, locations, min_racks) or not is_possible
    strict = SpreadPlacement(lambda: candidates, rng, SpreadRules(min_racks, enforce_racks=True))
    if is_possible:
        chosen = trio.run(strict.new_ensemble, *sizes)
        assert _is_spread(chosen, write_quorum_size, locations, min_racks)
    else:
        with pytest.raises(TooFewBookiesError, match="racks"):
            trio.run(strict.new_ensemble, *sizes)


async def test_more_racks_than_needed_are_used():
    candidates = [Candidate(f"{rack}{n}", f"/r/{rack}") for rack in "abc" for n in range(5)]
    placement = SpreadPlacement(lambda: candidates, random.Random(1))
    for _ in range(50):
        assert {bookie[0] for bookie in await placement.new_ensemble(3, 3, 2)} == set("abc")


async def test_a_replacement_keeps_the_racks_apart():
    candidates = [Candidate(f"{rack}{n}", f"/r/{rack}") for rack in "ab" for n in range(3)]
    placement = SpreadPlacement(
        lambda: candidates, random.Random(1), SpreadRules(enforce_racks=True)
    )
    for _ in range(20):
        ensemble = await placement.replace(("a0", "b0"), {1}, 2, 2, {"b0", "b1"})
        assert ensemble == ("a0", "b2")
    with pytest.raises(TooFewBookiesError, match="2 racks"):
        await placement.replace(("a0", "b0"), {1}, 2, 2, {"b0", "b1", "b2"})
    loose = SpreadPlacement(lambda: candidates, random.Random(1))
    assert (await loose.replace(("a0", "b0"), {1}, 2, 2, {"b1", "b2"}))[1] in ("a1", "a2")
    # A bookie that nobody knows any more is somewhere, too.
    assert (await loose.replace(("gone", "b0"), {1}, 2, 2, ()))[0] == "gone"


async def test_read_only_bookies_are_not_written_to():
    candidates = [Candidate("a"), Candidate("b", is_writable=False)]
    placement = SpreadPlacement(lambda: candidates, random.Random(1))
    assert await placement.new_ensemble(1, 1, 1) == ("a",)
    with pytest.raises(TooFewBookiesError, match="2 bookies are needed, 1"):
        await placement.new_ensemble(2, 2, 1)


def _in_regions(counts):
    return [
        Candidate(f"{region}{n}", f"/{region}/rack{n % 2}")
        for region, count in counts.items()
        for n in range(count)
    ]


async def test_regions_share_an_ensemble_evenly():
    placement = SpreadPlacement(
        lambda: _in_regions({"x": 9, "y": 3, "z": 3}), random.Random(3), SpreadRules(min_regions=2)
    )
    for _ in range(30):
        ensemble = await placement.new_ensemble(6, 3, 3)
        regions = [bookie[0] for bookie in ensemble]
        assert sorted(regions) == list("xxyyzz")
        assert all(len(set(quorum)) >= 2 for quorum in _write_quorums(regions, 3))


async def test_regions_are_a_must():
    candidates = _in_regions({"x": 5, "y": 1})
    rules = SpreadRules(min_regions=2)
    placement = SpreadPlacement(lambda: candidates, random.Random(3), rules)
    for _ in range(20):
        assert "y0" in await placement.new_ensemble(2, 2, 2)
    with pytest.raises(TooFewBookiesError, match="2 regions"):
        await placement.new_ensemble(5, 2, 2)  # y0 cannot be in every write quorum
    with pytest.raises(TooFewBookiesError, match="ack quorum of 2 of 3"):
        await placement.new_ensemble(3, 3, 2)  # both acks might come from x
    with pytest.raises(TooFewBookiesError, match="2 regions"):
        await placement.replace(("x0", "y0"), {1}, 2, 2, ())
    # With one region left there is no choice.
    only = SpreadPlacement(lambda: _in_regions({"x": 3}), random.Random(3), rules)
    assert len(await only.new_ensemble(2, 2, 2)) == 2


async def test_only_the_named_regions_are_written_to():
    rules = SpreadRules(min_regions=2, regions=("/x", "/z"))
    placement = SpreadPlacement(
        lambda: _in_regions({"x": 3, "y": 9, "z": 3}), random.Random(3), rules
    )
    for _ in range(20):
        assert {bookie[0] for bookie in await placement.new_ensemble(2, 2, 2)} == {"x", "z"}


def test_weights_are_free_bytes_within_limits():
    def told(*sizes):
        return [Candidate(str(n), free_bytes=size) for n, size in enumerate(sizes)]

    assert weights_of(told(10, 20, 30), 3) == {"0": 10, "1": 20, "2": 30}
    assert weights_of(told(10, 20, 300), 3) == {"0": 10, "1": 20, "2": 60}
    assert weights_of(told(10, 20, 300), 0)["2"] == 300
    assert weights_of(told(10, None, 20, 0), 3) == {"0": 10, "1": 10, "2": 20, "3": 10}
    assert weights_of(told(None, None), 3) == {}


async def test_free_space_decides_how_often():
    candidates = [Candidate("a", free_bytes=100), Candidate("b", free_bytes=300),
                  Candidate("c", free_bytes=200)]  # fmt: skip
    counts = dict.fromkeys("abc", 0)
    placement = SpreadPlacement(lambda: candidates, random.Random(1), SpreadRules(is_weighted=True))
    for _ in range(3_000):
        counts[(await placement.new_ensemble(1, 1, 1))[0]] += 1
    assert 400 < counts["a"] < 600
    assert 1400 < counts["b"] < 1600


def test_a_table_of_racks(tmp_path):
    text = "# hosts\nhost1=/r1/a\n\n host2 = /r1/b/ # far\nhost3 /r2/c\n"
    expected = {"host1": "/r1/a", "host2": "/r1/b", "host3": "/r2/c"}
    assert parse_table(text, "t") == expected
    for bad in ("host1=", "host1", "host1=r1/a", "host1=/r1//a", "=/r1/a", "a b c"):
        with pytest.raises(TopologyError, match=r"racks\.txt, line 2"):
            parse_table(f"host0=/r/a\n{bad}", "racks.txt")


async def test_topologies(tmp_path):
    default = "/default-region/default-rack"
    assert await DefaultTopology().locations(["a", "b"]) == [default] * 2
    path = tmp_path / "racks.txt"
    with pytest.raises(TopologyError, match=r"racks\.txt"):
        await TableTopology(str(path)).locations(["a"])
    path.write_text("a=/r/1")
    assert await TableTopology(str(path)).locations(["a", "b"]) == ["/r/1", default]
    script = tmp_path / "racks.sh"
    script.write_text('#!/bin/sh\nfor host in "$@"; do echo /r/$host; done\n')
    script.chmod(0o755)
    assert await ScriptTopology(str(script)).locations(["a", "b"]) == ["/r/a", "/r/b"]
    hosts = [f"h{n}" for n in range(230)]
    assert (await ScriptTopology(str(script)).locations(hosts))[-1] == "/r/h229"
    script.write_text("#!/bin/sh\necho /r/1\n")
    with pytest.raises(TopologyError, match="1 locations for 2 hosts"):
        await ScriptTopology(str(script)).locations(["a", "b"])
    script.write_text("#!/bin/sh\nexit 3\n")
    with pytest.raises(TopologyError, match=r"racks\.sh"):
        await ScriptTopology(str(script)).locations(["a"])


def _health(**config):
    now = [0.0]
    return BookieHealth(LedgerClientConfig(**config), lambda: now[0]), now


def test_health_counts_errors_in_intervals():
    health, now = _health(bookie_error_threshold=3, bookie_error_interval_ms=1_000)
    health.erred("a")
    health.erred("a")
    now[0] = 2.0
    health.erred("a")
    health.erred("a")
    assert health.quarantined == set()
    health.erred("a")
    assert health.quarantined == {"a"}
    now[0] = 1_801.9
    assert health.quarantined == {"a"}
    now[0] = 1_802.1
    assert health.quarantined == set()


def test_reads_go_to_others_first_for_a_while():
    health, now = _health(bookie_rest_ms=1_000)
    assert health.in_order(["a", "b", "c"]) == ["a", "b", "c"]
    health.erred("a")
    assert health.in_order(["a", "b", "c"]) == ["b", "c", "a"]
    now[0] = 1.1
    assert health.in_order(["a", "b", "c"]) == ["a", "b", "c"]
    health.erred("a")
    health.came("a")
    assert health.in_order(["a", "b", "c"]) == ["a", "b", "c"]


async def test_quarantine_holds_while_there_are_others():
    health, now = _health(bookie_rest_ms=1_000)
    placement = QuarantinePlacement(
        RandomPlacement(lambda: ["a", "b", "c"], random.Random(1)), health
    )
    assert await placement.replace(("a", "b"), {0}, 2, 2, {"a"}) == ("c", "b")
    assert health.quarantined == {"a"}
    for _ in range(10):
        assert "a" not in await placement.new_ensemble(2, 2, 2)
    # A new ledger takes it rather than not be; a replacement only when it has rested.
    assert "a" in await placement.new_ensemble(3, 3, 3)
    with pytest.raises(TooFewBookiesError):
        await placement.replace(("c", "b"), {0}, 2, 2, {"c"})
    now[0] = 1.1
    assert await placement.replace(("c", "b"), {0}, 2, 2, {"c"}) == ("a", "b")
    health.came("a")
    assert "a" not in health.quarantined


async def test_candidates_follow_the_bookies(nursery, world, tmp_path):
    store = MemoryStore(world.store.tree)
    table = tmp_path / "racks.txt"
    table.write_text("host-a=/r/1\nhost-b=/r/2")
    watcher = BookieWatcher(store)
    arrivals = []
    watcher.on_arrival(arrivals.append)

    async def register(bookie, parent="/ledgers/available"):
        info = BookieServiceInfo((Endpoint("bookie", f"host-{bookie}", 3181),))
        path = f"{parent}/{bookie}"
        await store.create(path, encode_service_info(info), ephemeral=True, make_parents=True)

    await register("a")
    await nursery.start(watcher.run)
    source = CandidateSource(
        watcher, TableTopology(str(table)), world.bookies, info_retry_seconds=0.01
    )
    await nursery.start(source.run)
    await register("b")
    await register("c", "/ledgers/available/readonly")
    world.bookies.free_bytes["b"] = 77
    expected = [
        Candidate("a", "/r/1", True, 500),
        Candidate("b", "/r/2", True, 77),
        Candidate("c", "/default-region/default-rack", False, None),
    ]
    with trio.fail_after(5):
        while source.snapshot() != expected:
            await trio.sleep(0.01)
    assert arrivals == ["a", "b"]
