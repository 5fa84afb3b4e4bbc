"""Network namespaces: one for the run itself with its clients, one for each server that wants one,
and in the middle a hub that all packets between them cross. The hub drops or delays what goes from
one to another, each way for itself. Nothing in here can reach, or be reached from, the machine's
own network.

The hub drops by routing rules (`blackhole`), so that the kernel needs no packet filter; it delays
by sending through delay.py, as most kernels have no netem.
"""

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from harness.servers import die_with_parent

#: Set in the process that runs inside: the name of its namespace.
INSIDE = "QUIRE_CHAOS_NAMESPACE"
RUN_NUMBER = 250
DROP_PREFERENCE, DELAY_PREFERENCE = 100, 200
#: Of the hub: where what is to be delayed goes.
DELAY_TABLE, DELAY_DEVICE = 77, "qdelay"


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


def why_not() -> str | None:
    """Why there are no namespaces here; None if there are."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "there is no `ip` (iproute2)"
    name = f"quire-probe-{os.getpid()}"
    done = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if done.returncode:
        return f"no network namespaces here: {done.stderr.strip()}"
    try:
        ip("-n", name, "link", "set", "lo", "up")
        rule = ["rule", "add", "pref", "100", "from", "10.77.1.2", "blackhole"]
        done = subprocess.run(
            ["ip", "-n", name, *rule], capture_output=True, text=True, check=False
        )
        return f"no routing rules here: {done.stderr.strip()}" if done.returncode else None
    finally:
        ip("netns", "del", name)


def has_delay() -> bool:
    """Whether lines can be made slow here."""
    try:
        os.close(os.open("/dev/net/tun", os.O_RDWR))
    except OSError:
        return False
    return True


def enter(arguments: list[str]) -> int:
    """Runs this program again inside a new namespace; its exit code. A SIGTERM ends that first."""
    hub = Hub(f"quire-chaos-{os.getpid()}")
    hub.make()
    try:
        inside = hub.attach(RUN_NUMBER)
        command = inside.command([sys.executable, "-m", "compat_tests.chaos", *arguments])
        process = subprocess.Popen(
            command, env={**os.environ, INSIDE: hub.name}, preexec_fn=die_with_parent
        )
        signal.signal(signal.SIGTERM, lambda *_: process.terminate())
        while True:
            with contextlib.suppress(KeyboardInterrupt):  # it got that too
                return process.wait()
    finally:
        hub.remove()


@dataclass
class Hub:
    """`name` is its namespace's; the others' begin with it."""

    name: str
    _delayer: subprocess.Popen | None = None
    #: How many want a rule: the kernel takes each once.
    _rules: Counter = field(default_factory=Counter)

    @staticmethod
    def outside() -> "Hub":
        """The one that the namespace of this process hangs on."""
        return Hub(os.environ[INSIDE])

    def make(self) -> None:
        ip("netns", "add", self.name)
        ip("-n", self.name, "link", "set", "lo", "up")
        switches = "ip_forward", "conf/all/rp_filter", "conf/default/rp_filter"
        for switch, value in zip(switches, "100", strict=True):
            self._write(f"/proc/sys/net/ipv4/{switch}", value)

    def _write(self, path: str, value: str) -> None:
        words = ["ip", "netns", "exec", self.name, "sh", "-c", f"echo {value} > {path}"]
        subprocess.run(words, check=True, capture_output=True)

    def attach(self, number: int) -> "Namespace":
        """A new namespace with the number's address; the default route is through here."""
        made = Namespace(self, number)
        ip("netns", "add", made.name)
        ip("link", "add", made.outer, "netns", self.name, "type", "veth",
           "peer", "name", made.inner, "netns", made.name)  # fmt: skip
        ip("-n", self.name, "addr", "add", f"{made.gateway}/24", "dev", made.outer)
        ip("-n", self.name, "link", "set", made.outer, "up")
        ip("-n", made.name, "addr", "add", f"{made.address}/24", "dev", made.inner)
        ip("-n", made.name, "link", "set", made.inner, "up")
        ip("-n", made.name, "link", "set", "lo", "up")
        ip("-n", made.name, "route", "add", "default", "via", made.gateway)
        return made

    def rule(self, verb: str, preference: int, way: tuple[str, str], action: list[str]) -> None:
        """Add or delete; `way`: addresses (from, to), «all» for any."""
        if way.count("all") == 1:
            # Beside one «from A to B» the kernel takes «from A to all» for the same, but for the
            # preference.
            preference += 1
        words = "pref", str(preference), "from", way[0], "to", way[1], *action
        before = self._rules[words]
        self._rules[words] += 1 if verb == "add" else -1
        if 0 in (before, self._rules[words]):
            ip("-n", self.name, "rule", verb, *words)

    def delayer(self) -> subprocess.Popen:
        """Its standard input takes «milliseconds jitter loss-percent», for what comes from now."""
        if self._delayer is None:
            ip("-n", self.name, "tuntap", "add", "mode", "tun", "name", DELAY_DEVICE)
            ip("-n", self.name, "link", "set", DELAY_DEVICE, "up")
            self._write(f"/proc/sys/net/ipv4/conf/{DELAY_DEVICE}/rp_filter", "0")
            script = str(Path(__file__).with_name("delay.py"))
            self._delayer = subprocess.Popen(
                ["ip", "netns", "exec", self.name, sys.executable, script, DELAY_DEVICE],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                preexec_fn=die_with_parent,
            )
            assert self._delayer.stdout.readline() == "ready\n"
            route = ["default", "dev", DELAY_DEVICE, "table", str(DELAY_TABLE)]
            ip("-n", self.name, "route", "add", *route)
            # A packet that comes out of the device is not to go in again.
            back = ["iif", DELAY_DEVICE, "lookup", "main"]
            self.rule("add", DELAY_PREFERENCE - 1, ("all", "all"), back)
        return self._delayer

    def end_delayer(self) -> None:
        if self._delayer is not None:
            self._delayer.kill()
            self._delayer.wait()
            for pipe in (self._delayer.stdin, self._delayer.stdout):
                pipe.close()

    def remove(self) -> None:
        """All that hang on it too."""
        listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
        for line in listed.stdout.splitlines():
            name = line.split()[0]
            if name == self.name or name.startswith(f"{self.name}-"):
                subprocess.run(["ip", "netns", "del", name], check=False)


@dataclass
class Obstacle:
    """Between two sets of addresses, on the ways given; `remove` takes it away."""

    hub: Hub
    ways: list[tuple[str, str]]
    preference: int
    action: list[str]
    is_there: bool = field(default=False, init=False)

    def put(self) -> "Obstacle":
        for way in self.ways:
            self.hub.rule("add", self.preference, way, self.action)
        self.is_there = True
        return self

    def remove(self) -> None:
        if self.is_there:
            self.is_there = False
            for way in self.ways:
                self.hub.rule("del", self.preference, way, self.action)


def ways(here: list[str], there: list[str], direction: str) -> list[tuple[str, str]]:
    """`direction`, seen from `here`: both, out (what it sends is lost), in (what it should get)."""
    out = list(itertools.product(here, there))
    back = [(to, sender) for sender, to in out]
    return {"both": out + back, "out": out, "in": back}[direction]


@dataclass
class Namespace:
    """Number n's address is 10.77.n.2, and the hub's towards it 10.77.n.1."""

    hub: Hub
    number: int

    @property
    def name(self) -> str:
        return f"{self.hub.name}-{self.number}"

    @property
    def outer(self) -> str:
        """The name of the hub's end."""
        return f"qo{self.number}"

    @property
    def inner(self) -> str:
        return f"qi{self.number}"

    @property
    def address(self) -> str:
        return f"10.77.{self.number}.2"

    @property
    def gateway(self) -> str:
        return f"10.77.{self.number}.1"

    @property
    def settings(self) -> dict[str, str]:
        """Of the bookie that lives there."""
        return {"listeningInterface": self.inner, "advertisedAddress": self.address}

    def command(self, command: list[str]) -> list[str]:
        return ["ip", "netns", "exec", self.name, *command]

    def forget_what_was_closed(self) -> None:
        """What lies unsent in a connection that was closed is not sent any more. As Linux has it
        that is tried for a minute yet, so that a request arrives which its client has given up, and
        behind a cut of 7 s comes when the client is in its next transaction."""
        switch = "/proc/sys/net/ipv4/tcp_orphan_retries"
        words = self.command(["sh", "-c", f"echo 1 > {switch}"])
        subprocess.run(words, check=True, capture_output=True)

    def cut(self, peers: list[str] | None = None, direction: str = "both") -> Obstacle:
        """Nothing gets through to those (default: to anybody), and nobody is told."""
        chosen = ways([self.address], peers or ["all"], direction)
        return Obstacle(self.hub, chosen, DROP_PREFERENCE, ["blackhole"]).put()

    def delay(
        self,
        milliseconds: int,
        jitter_ms: int,
        loss_percent: int,
        peers: list[str] | None = None,
    ) -> Obstacle:
        """What it sends to them and they to it comes so late, or never."""
        delayer = self.hub.delayer()
        delayer.stdin.write(f"{milliseconds} {jitter_ms} {loss_percent}\n")
        delayer.stdin.flush()
        chosen = ways([self.address], peers or ["all"], "both")
        return Obstacle(self.hub, chosen, DELAY_PREFERENCE, ["lookup", str(DELAY_TABLE)]).put()

    def throttle(self, kilobits: int) -> None:
        """What is sent there comes late, and is dropped when too much waits."""
        rate = ["rate", f"{kilobits}kbit", "burst", "16k", "latency", "400ms"]
        words = ["qdisc", "replace", "dev", self.outer, "root", "tbf", *rate]
        subprocess.run(["tc", "-n", self.hub.name, *words], check=True)

    def clear(self) -> None:
        words = ["qdisc", "del", "dev", self.outer, "root"]
        subprocess.run(["tc", "-n", self.hub.name, *words], check=False)

    def reset(self) -> None:
        """Every connection of it ends with a reset."""
        subprocess.run(
            self.command(["ss", "--kill", "--tcp", "state", "established"]),
            check=False,
            capture_output=True,
        )

    def remove(self) -> None:
        subprocess.run(["ip", "netns", "del", self.name], check=False)
