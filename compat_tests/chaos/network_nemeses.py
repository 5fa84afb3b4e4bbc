"""What breaks the lines between servers, and to the clients; needs namespaces (network.py)."""

from .nemeses import BookieNemesis, Nemesis, OurBookieNemesis
from .network import Obstacle


class CutBookie(OurBookieNemesis):
    """Both ways; whoever has a connection is not told."""

    name = "bookie cut off"
    hold_s = (0.5, 9.0)
    weight = 4

    def strike(self) -> None:
        self.obstacle = self.victim.namespace.cut()

    def mend(self) -> None:
        self.obstacle.remove()


class ThrottleBookie(OurBookieNemesis):
    """A slow line that drops what does not fit."""

    name = "bookie slow line"
    hold_s = (1.0, 6.0)

    def strike(self) -> None:
        self.victim.namespace.throttle(self.rng.choice([64, 256, 1024]))

    def mend(self) -> None:
        self.victim.namespace.clear()


class DelayBookie(OurBookieNemesis):
    name = "bookie delay and loss"
    needs_delay = True
    hold_s = (1.0, 6.0)

    def strike(self) -> None:
        delay_ms, loss_percent = self.rng.choice([5, 50, 200]), self.rng.choice([0, 5, 20])
        self.obstacle = self.victim.namespace.delay(delay_ms, delay_ms // 2, loss_percent)

    def mend(self) -> None:
        self.obstacle.remove()


class ResetBookie(OurBookieNemesis):
    """All its connections end with a reset."""

    name = "bookie's connections reset"
    hold_s = (0.0, 0.1)

    def strike(self) -> None:
        self.victim.namespace.reset()

    def mend(self) -> None:
        """The strike is the whole of it."""


class BrokerLineNemesis(Nemesis):
    """Between a broker and `PEERS`: zookeeper, bookies, clients, or all of them."""

    PEERS = ""
    hold_s = (0.5, 9.0)

    def victims(self) -> list[object]:
        return list(self.world.brokers)

    def addresses(self) -> list[str] | None:
        servers = {
            "zookeeper": [self.world.cluster.zookeeper],
            "bookies": list(self.world.bookies),
        }.get(self.PEERS, [])
        if self.PEERS == "clients":
            return [self.world.clients.address]
        return [server.namespace.address for server in servers] or None

    def mend(self) -> None:
        self.obstacle.remove()

    obstacle: Obstacle


class CutBroker(BrokerLineNemesis):
    DIRECTION = "both"

    def strike(self) -> None:
        self.obstacle = self.victim.namespace.cut(self.addresses(), self.DIRECTION)


class DelayBroker(BrokerLineNemesis):
    needs_delay = True
    hold_s = (2.0, 8.0)

    def strike(self) -> None:
        delay_ms, loss_percent = self.rng.choice([10, 50, 150]), self.rng.choice([0, 0, 5])
        addresses = self.addresses()
        self.obstacle = self.victim.namespace.delay(
            delay_ms, delay_ms // 2, loss_percent, addresses
        )


class ResetBroker(BrokerLineNemesis):
    name = "broker's connections reset"
    hold_s = (0.0, 0.1)

    def strike(self) -> None:
        self.victim.namespace.reset()

    def mend(self) -> None:
        """The strike is the whole of it."""


def _made(base: type[Nemesis], name: str, weight: int = 2, **values: object) -> type[Nemesis]:
    return type(base.__name__, (base,), {"name": name, "weight": weight, **values})


#: What is cut: both ways, and each way alone.
_WAYS = {"both": "", "out": ", only what it sends", "in": ", only what it should get"}
BROKER_KINDS: list[type[Nemesis]] = [
    *(
        _made(CutBroker, f"broker cut from {words}{how}", 1, PEERS=peers, DIRECTION=direction)
        for peers, words in (
            ("zookeeper", "ZooKeeper"),
            ("bookies", "bookies"),
            ("clients", "clients"),
            ("all", "all"),
        )
        for direction, how in _WAYS.items()
        if peers != "all" or direction == "both"
    ),
    *(
        _made(DelayBroker, f"broker's line to {words} slow", PEERS=peers)
        for peers, words in (
            ("zookeeper", "ZooKeeper"),
            ("bookies", "bookies"),
            ("clients", "clients"),
        )
    ),
    ResetBroker,
]
BOOKIE_KINDS: list[type[BookieNemesis]] = [CutBookie, ThrottleBookie, DelayBookie, ResetBookie]
