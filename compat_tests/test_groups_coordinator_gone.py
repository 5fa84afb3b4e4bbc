"""The broker dies that coordinates a consumer, a share and a streams group (KIP-848, 932, 1071);
Java's members go on with those that are left."""

import time

import pytest
from chaos.kafka_writers import LibrdkafkaWriting
from chaos.new_groups import NewGroups
from chaos.streams_counting import StreamsCounting
from chaos.world import Options, World
from harness import figures, servers
from harness.brokers import wait_for
from test_coordinator_gone import OF_GROUP, coordinator

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(servers.target() != "quire", reason="about our own processes"),
    pytest.mark.timeout(400),
]

VICTIM = 3
ALL_RUN = "1:running 2:running 3:running"
#: Since the next coordinator is there: so many commits, and words of the application.
TIMES = 5
WITHIN_S = 120


@pytest.fixture
def world(scratch):
    options = Options(seed=1, minutes=0, scenario="groups", bookies=3, brokers=3, rate=60)
    made = World(scratch / "groups-coordinator-gone", options)
    try:
        made.start()
        # Who makes the group's topic is to know of all three.
        wait_for(lambda: all(each.states() == ALL_RUN for each in made.brokers), 60, ALL_RUN)
        yield made
    finally:
        made.discard()


def is_doing_well(groups, streams, since):
    """All three kinds, with what they have to be told by a coordinator."""
    commits = sum(when > since for each in groups.consumers.commits.values()
                  for when, _ in each.told)  # fmt: skip
    acknowledged = sum(when > since for when in groups.gaps[1].moments)
    counted = sum(when > since for when in streams.gaps[0].moments)
    return min(commits, acknowledged, counted) > TIMES


def test_groups_go_on_with_their_next_coordinator(world):
    first = world.brokers[0]

    def coordinated_by_the_victim(kind):
        return next(name for name in map(f"{kind}-{{}}".format, range(99))
                    if coordinator(first, name, OF_GROUP) == VICTIM)  # fmt: skip

    names = [coordinated_by_the_victim(kind) for kind in ("consumer", "share", "streams")]
    source = LibrdkafkaWriting(world)
    groups = NewGroups(world, source, *names[:2])
    streams = StreamsCounting(world, source, names[2])
    works = (source, groups, streams)
    try:
        for work in works:
            work.start()
        wait_for(lambda: is_doing_well(groups, streams, 0), WITHIN_S, "they do not begin")
        killed_at = time.monotonic()
        world.brokers[VICTIM - 1].kill()
        wait_for(
            lambda: all(coordinator(first, name, OF_GROUP) != VICTIM for name in names),
            WITHIN_S,
            "nobody takes the groups over",
        )
        moved_at = time.monotonic()
        wait_for(lambda: is_doing_well(groups, streams, moved_at), WITHIN_S, "they do not go on")
        figures.add(
            "coordinator killed: consumer, share and streams group go on after"
            f" {time.monotonic() - killed_at:.1f} s, of which {moved_at - killed_at:.1f} s without"
        )
        for work in works:
            work.finish()
        rows = source.read_all()
        wrong = [words for work in works for words in work.check(rows)]
        assert wrong == [], "\n".join([*wrong, groups.describe(), streams.describe()])
    finally:
        for work in works:
            work.close()
