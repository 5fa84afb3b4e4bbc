"""What befalls brokers and members of groups, as far as signals go."""

import threading
import time
from collections.abc import Iterator
from contextlib import suppress

from .kafka_groups import GroupReading
from .nemeses import Nemesis, launch
from .new_groups import NewGroups
from .streams_counting import StreamsCounting

STOP_WITHIN_S = 40


class BrokerNemesis(Nemesis):
    def victims(self) -> list[object]:
        return list(self.world.brokers)


class KillBroker(BrokerNemesis):
    name = "broker SIGKILL"
    hold_s = (0.3, 8.0)
    weight = 4

    def strike(self) -> None:
        self.victim.kill()

    def mend(self) -> None:
        launch(self.victim)


class FreezeBroker(BrokerNemesis):
    """Longer than its session lasts, or not."""

    name = "broker SIGSTOP"
    hold_s = (0.5, 8.0)
    weight = 4

    def strike(self) -> None:
        self.victim.freeze()

    def mend(self) -> None:
        self.victim.thaw()


class StopBroker(BrokerNemesis):
    """SIGTERM: it hands its partitions over before it ends."""

    name = "broker stopped and started"
    hold_s = (0.0, 1.0)

    def strike(self) -> None:
        self.steps = self._restart()
        self.is_done = False

    def _restart(self) -> Iterator[None]:
        """Yields while it would wait. Only the stop is on a thread: what a thread starts ends with
        that thread."""
        for broker in self.struck:
            stopping = threading.Thread(target=self._stop, args=[broker], daemon=True)
            stopping.start()
            while stopping.is_alive():
                yield
            launch(broker)
            until = time.monotonic() + STOP_WITHIN_S
            while broker.process is not None and broker.process.poll() is None:
                if broker.is_serving() or time.monotonic() > until:
                    break
                yield

    def _stop(self, broker) -> None:
        if broker.process is not None:
            # What it waits for may be broken too; then it is killed.
            with suppress(RuntimeError):
                broker.stop(STOP_WITHIN_S)

    @property
    def may_mend(self) -> bool:
        self.is_done = self.is_done or next(self.steps, self) is self
        return self.is_done

    def mend(self) -> None:
        """It is running again."""


class RollBrokers(StopBroker):
    """All of them, one after another."""

    name = "rolling restart of all brokers"
    weight = 1

    @property
    def struck(self) -> list[object]:
        return list(self.world.brokers)

    def victims(self) -> list[object]:
        return list(self.world.brokers)[:1]


class ReplaceMember(Nemesis):
    """A member of a group leaves or is killed, another comes."""

    name = "group member replaced"
    hold_s = (0.0, 0.1)

    def victims(self) -> list[object]:
        return [
            each
            for each in self.workloads
            if isinstance(each, GroupReading | NewGroups | StreamsCounting)
        ]

    def strike(self) -> None:
        self.victim.replace_member()

    def mend(self) -> None:
        """The strike is the whole of it."""


BROKER_KINDS: list[type[Nemesis]] = [KillBroker, FreezeBroker, StopBroker, RollBrokers]
