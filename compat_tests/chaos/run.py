"""One run: start, break and mend in random order, mend all, wait until all write again, judge."""

import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from harness.bookkeeper import Bookie
from harness.servers import Server
from kazoo.exceptions import KazooException

from . import checkers, tables
from .catalogue import kinds
from .kafka_groups import GroupReading, JavaGroup, LibrdkafkaGroup
from .kafka_writers import JavaWriting, KcatWriting, LibrdkafkaWriting, TopicWorkload
from .nemeses import Nemesis
from .new_groups import NewGroups
from .streams_counting import StreamsCounting
from .tables import Strike
from .topic_deleting import TopicDeleting
from .transactional import TransactionalWriting
from .workloads import LedgerWriting, Workload
from .world import Options, World

#: All must write again so soon after a fault, or for the first time: on a machine with much else to
#: do, where a JVM takes half a minute to start.
HEALED_WITHIN_S, STARTED_WITHIN_S = 120.0, 240.0
PAUSE_S = (0.3, 2.5)
BOOKIE_STARTS_S = 4.0
HOLD_PART = 0.55
STOPPED_WITHIN_S = 60.0
TWO_AT_A_TIME = 0.4


@dataclass
class Report:
    """What came of a run."""

    options: Options
    strikes: list[Strike] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    #: The longest stall of each fault in `strikes`, by workload, in ms.
    stalls_ms: list[dict[str, float]] = field(default_factory=list)


class Run:
    def __init__(
        self, directory: Path, options: Options, say: Callable[[str], None] = print
    ) -> None:
        self.options = options
        self.rng = random.Random(options.seed)
        self.say = say
        self.world = World(directory, options)
        self.report = Report(options)
        self.workloads: list[Workload] = []
        self.active: list[tuple[Nemesis, Strike, float]] = []
        self.started = 0.0
        #: By id: when.
        self.mended_bookies: dict[str, float] = {}

    def __call__(self) -> Report:
        try:
            self.world.start()
            self._start_workloads()
            self._wait_until_all_write("at the start", STARTED_WITHIN_S)
            self.started = time.monotonic()
            self.break_things()
            self.judge()
        finally:
            for work in self.workloads:
                work.close()
            self.world.discard()
        return self.report

    def _start_workloads(self) -> None:
        writers: list[Workload] = []
        if self.options.scenario == "bookies":
            writers.append(LedgerWriting(self.world))
        if self.options.scenario == "transactions":
            writers.append(TransactionalWriting(self.world))
        elif self.world.brokers:
            writers.append(LibrdkafkaWriting(self.world))
        if self.options.is_lagging and self.world.brokers:
            writers.append(TopicDeleting(self.world))
        if self.options.scenario == "cluster":
            java = JavaWriting(self.world)
            groups = [LibrdkafkaGroup(self.world, writers[-1]), JavaGroup(self.world, java)]
            writers += [java, KcatWriting(self.world), *groups]
        if self.options.scenario == "groups":
            source = writers[0]
            writers += [NewGroups(self.world, source), StreamsCounting(self.world, source)]
        for work in writers:
            self.workloads.append(work)
            work.start()

    def break_things(self) -> None:
        chosen, self.report.notes = kinds(self.world)
        for note in self.report.notes:
            self.say(f"left out: {note}")
        if self.options.faults:
            self._break_in_order({kind.name: kind for kind in chosen})
        else:
            self._break_at_random(chosen)
        self.mend_until(0, time.monotonic())
        self._wait_until_all_write("after the last fault")

    def _break_in_order(self, chosen: dict[str, type[Nemesis]]) -> None:
        """All are at work again before the next."""
        for name in self.options.faults:
            if name not in chosen:
                self.report.wrong.append(f"{name}: cannot be had here; there are {list(chosen)}")
                continue
            self.strike(chosen[name](self.world, self.workloads, self.rng))
            self.mend_until(0, time.monotonic() + tables.AFTER_S)
            self._wait_until_all_write(f"after {name}")

    def _break_at_random(self, chosen: list[type[Nemesis]]) -> None:
        until = self.started + self.options.minutes * 60
        weights = [kind.weight for kind in chosen]
        while time.monotonic() < until or len(self.report.strikes) < self.options.strikes_min:
            (kind,) = self.rng.choices(chosen, weights)
            nemesis = kind(self.world, self.workloads, self.rng)
            self.strike(nemesis)
            # Sometimes two at a time; else all are at work again before the next.
            limit = 1 if self.rng.random() < TWO_AT_A_TIME else 0
            self.mend_until(limit, time.monotonic() + self.rng.uniform(*PAUSE_S))
            if limit == 0:
                self._wait_until_all_write(f"after {nemesis.name}")

    def _struck(self) -> list[object]:
        return [victim for nemesis, _, _ in self.active for victim in nemesis.struck]

    def _has_zookeeper(self, struck: list[object]) -> bool:
        return any(server in struck for server in self.world.zookeepers)

    def strike(self, nemesis: Nemesis) -> None:
        taken = self._struck()
        bookies = sum(victim in self.world.bookies for victim in taken)
        # One that starts takes no entries yet.
        bookies += sum(
            since > time.monotonic() - BOOKIE_STARTS_S for since in self.mended_bookies.values()
        )
        free = [each for each in nemesis.victims() if each not in taken]
        if not free or (
            free[0] in self.world.bookies
            and bookies >= self.options.struck_max
            and not self.options.faults
        ):
            return
        if self._has_zookeeper(taken) and isinstance(free[0], LedgerWriting):
            return  # a recovery waits for ZooKeeper, and this thread is to mend it
        nemesis.victim = self.rng.choice(free)
        if any(each in taken for each in nemesis.struck):
            return
        victim = getattr(nemesis.victim, "id", None) or nemesis.victim.name
        now = time.monotonic()
        strike = Strike(nemesis.name, victim, now, now)
        self.report.strikes.append(strike)
        self.say(f"{now - self.started:6.1f} s: {nemesis.name} ({victim})")
        nemesis.strike()
        least_s, most_s = nemesis.hold_s
        # In order, and always the same: longer than a session.
        hold_s = HOLD_PART * most_s if self.options.faults else self.rng.uniform(least_s, most_s)
        self.active.append((nemesis, strike, time.monotonic() + hold_s))

    def mend_until(self, limit: int, until: float) -> None:
        """Mends what is due; returns when at most `limit` are unmended, not before `until`."""
        while len(self.active) > limit or time.monotonic() < until:
            for item in list(self.active):
                nemesis, strike, due = item
                if time.monotonic() >= due and nemesis.may_mend:
                    self.active.remove(item)
                    nemesis.mend()
                    strike.until = time.monotonic()
                    if nemesis.victim in self.world.bookies:
                        self.mended_bookies[strike.victim] = strike.until
                    self.report.wrong += nemesis.wrong
            self._look_after_processes()
            time.sleep(0.02)

    def _look_after_processes(self) -> None:
        struck = self._struck()
        if self._has_zookeeper(struck):
            return  # nothing starts without it
        self._start_again([*self.world.cluster.bookies, *self.world.brokers], struck)
        for work in self.workloads:
            work.look_after(struck, self.say)

    def _judge_copies(self) -> None:
        for broker in self.world.brokers:
            # Whose open ledgers are closed by that.
            try:
                code = broker.stop(STOPPED_WITHIN_S)
            except RuntimeError as error:
                code = error
            if code:
                self.report.wrong.append(f"{broker.id}: ended with {code} when it was stopped")
        self.world.check_often()
        told, wrong = checkers.check_copies(
            self.world.uri, lambda: self._start_again(self.world.cluster.bookies, [])
        )
        self.report.wrong += wrong
        self.report.lines.append(told)

    def _start_again(self, servers: Sequence[Server], struck: list[object]) -> None:
        """As an operator's supervisor would, what ended."""
        for server in servers:
            if server in struck:
                continue
            if server.process is not None and server.process.poll() is not None:
                code = server.process.returncode
                words = server.log_tail(2000).strip().rpartition("\n")[2]
                where = server.directory.name
                self.say(f"{where} ended with {code} and is started again: {words}")
                server.kill()
            if server.process is None:
                with suppress(RuntimeError):
                    server.launch()

    def _wait_until_all_write(self, when: str, timeout_s: float = HEALED_WITHIN_S) -> None:
        started = time.monotonic()
        while not all(work.is_writing() for work in self.workloads):
            self._look_after_processes()
            if time.monotonic() - started > timeout_s:
                silent = [work for work in self.workloads if not work.is_writing()]
                names = [work.name for work in silent]
                self.report.wrong.append(f"{names}: no acks within {timeout_s:.0f} s {when}")
                for work in silent:
                    self.say(f"{work.name}: {work.state()}")
                return
            time.sleep(0.05)

    def _wait_until_ready(self, bookie: Bookie) -> None:
        for _ in range(20):
            self._look_after_processes()
            # It may end once more for what came before, and a session have been lost long ago.
            with suppress(KazooException, RuntimeError):
                if bookie.process is not None:
                    bookie.wait_until_ready()
                    return
            time.sleep(0.2)
        self.report.wrong.append(f"{bookie.id} is not back:\n{bookie.log_tail(2000)}")

    def judge(self) -> None:
        # Writers first: what reads waits for all that was written.
        for work in self.workloads:
            work.finish()
        for bookie in self.world.bookies:
            self._wait_until_ready(bookie)
        topics = [work for work in self.workloads if isinstance(work, TopicWorkload)]
        rows = {work.name: work.read_all() for work in topics}
        self.report.wrong += checkers.check_topics(topics, rows)
        for work in self.workloads:
            if isinstance(work, LedgerWriting):
                found = work.verify()
                self.report.wrong += checkers.check_ledgers(work, found)
                self.report.lines += tables.describe_ledgers(work, found)
            elif isinstance(work, TopicWorkload):
                self.report.wrong += work.check(rows[work.name])
                self.report.lines.append(tables.describe_topic(work, rows[work.name]))
            elif isinstance(work, GroupReading | NewGroups | StreamsCounting):
                self.report.wrong += work.check(rows[work.source.name])
                self.report.lines.append(work.describe())
            elif isinstance(work, TopicDeleting | TransactionalWriting):
                self.report.wrong += work.check()
                self.report.lines.append(work.describe())
            self.report.lines.append(tables.describe_gaps(work, self.started))
        if self.world.sectors_lost:
            lost = ", ".join(f"{n} of {end}" for end, n in self.world.sectors_lost.most_common(8))
            self.report.lines.append(f"sectors lost with power: {lost}")
        if self.world.recovery is not None:
            self._judge_copies()
        self.report.stalls_ms = tables.stalls_ms(self.report.strikes, self.workloads)
        self.report.lines += tables.strikes_table(self.report.strikes, self.workloads)
