"""Bookies as processes, Java's and ours, one ZooKeeper below them, and who talks to them.

`Cluster` starts what it is told; `ledger_tool("v3")` is Java's client, `ledger_tool("quire")` ours,
both behind the same commands (java/LedgerTool.java says which). `shell` runs `bookkeeper shell`.
"""

import re
import sys
import time
from pathlib import Path

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from harness import class_archives, paths, tools
from harness.line_tool import LineTool, ToolError
from harness.servers import HOST, Server, free_port
from harness.zookeeper import ZooKeeper

LOG4J = """<Configuration status="WARN"><Appenders>
  <Console name="out" target="SYSTEM_OUT"><PatternLayout pattern="{pattern}%n"/></Console>
</Appenders><Loggers>
  <Root level="{level}"><AppenderRef ref="out"/></Root>
  <Logger name="org.apache.zookeeper" level="WARN"/>
  <Logger name="org.apache.bookkeeper.stats" level="WARN"/>
</Loggers></Configuration>
"""
#: For programs whose speed does not matter: up quickly, and small.
SMALL_JVM = (*class_archives.SMALL_JVM, "-XX:MaxDirectMemorySize=256m")
#: So that a killed bookie's registration is gone soon; ZooKeeper's tick is half a second.
SESSION_TIMEOUT_MS = 3000
ANSWER_TIMEOUT_S = 90.0
#: BKException.Code.BookieHandleNotAvailableException
NO_BOOKIE_HANDLE = -8


def java(
    directory: Path,
    level: str,
    pattern: str,
    jvm: tuple[str, ...] = SMALL_JVM,
    classes: Path | None = None,
) -> list[str]:
    """A JVM with BookKeeper's jars, and `classes` behind them; `directory` has what it logs."""
    directory.mkdir(parents=True, exist_ok=True)
    log = directory / "log4j2.xml"
    log.write_text(LOG4J.format(level=level, pattern=pattern))
    path = f"{paths.jars('bookkeeper')}/*" + (f":{classes}" if classes else "")
    archive = (*class_archives.bookkeeper(), f"-Dlog4j.configurationFile={log}")
    return ["java", *jvm, *archive, "-cp", path]


def compiled_tools() -> Path:
    """The classes of java/."""
    return tools.compiled(paths.COMPAT / "java", f"{paths.jars('bookkeeper')}/*")


class Bookie(Server):
    """One bookie; `id` is host:port. `start` returns once it is registered."""

    def __init__(self, cluster: "Cluster", number: int, settings: dict[str, str]) -> None:
        super().__init__(cluster.directory / f"{self.name.replace(' ', '-')}-{number}")
        self.cluster = cluster
        self.settings = dict(settings)
        self._is_launching = False

    def java(self) -> list[str]:
        """The JVM of one of Java's."""
        said = (self.directory / "log4j", "WARN", "%d %-5level %logger{1} %msg")
        return java(*said, self.cluster.jvm)

    @property
    def id(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def config(self) -> Path:
        return self.directory / "bk_server.conf"

    def prepare(self) -> None:
        values = {
            "bookiePort": self.port,
            "listeningInterface": "lo",
            "advertisedAddress": HOST,
            "allowLoopback": "true",
            "metadataServiceUri": self.cluster.uri,
            "zkTimeout": SESSION_TIMEOUT_MS,
            "journalDirectory": self.directory / "journal",
            "ledgerDirectories": self.directory / "ledgers",
            "httpServerEnabled": "false",
            **self.settings,
        }
        self.config.write_text("".join(f"{key}={value}\n" for key, value in values.items()))

    def restart(self, **settings: str) -> "Bookie":
        """A clean stop, and a start with these settings changed."""
        assert self.stop() == 0, self.log_tail()
        self.settings |= settings
        self.prepare()
        return self.start()

    def is_ready(self) -> bool:
        # The port is open before the node is there, and clients go by the node.
        return self._is_launching or self.is_serving()

    def is_serving(self) -> bool:
        return self.cluster.is_registered(self.id)

    def launch(self) -> None:
        """Starts the process without waiting: several can start at once."""
        self._is_launching = True
        try:
            Server.start(self)
        finally:
            self._is_launching = False

    def wait_until_ready(self, timeout_s: float = 120) -> None:
        deadline = time.monotonic() + timeout_s
        while not self.is_serving():
            code = self.process.poll()
            if code is not None or time.monotonic() > deadline:
                self.kill()
                words = f"not ready in {timeout_s} s" if code is None else f"ended with {code}"
                raise RuntimeError(f"{self.name} {words} at start:\n{self.log_tail()}")
            time.sleep(0.02)

    def wait_until_forgotten(self) -> None:
        """Until ZooKeeper has nothing of the process that ended."""
        self.cluster.wait_until_gone(self.id)

    def start(self, timeout_s: float = 120) -> "Bookie":
        if self.started_count:
            self.wait_until_forgotten()
        self.launch()
        self.wait_until_ready(timeout_s)
        return self


class JavaBookie(Bookie):
    name = "java bookie"

    def command(self) -> list[str]:
        main = "org.apache.bookkeeper.server.Main"
        return [*self.java(), main, "--conf", str(self.config)]


class QuireBookie(Bookie):
    name = "quire bookie"

    def command(self) -> list[str]:
        return [str(paths.python_script("quire")), "bookie", "--config", str(self.config)]

    def token(self) -> str:
        """Of its pages, while it runs and has some."""
        (path,) = self.directory.rglob("admin.token")
        return path.read_text(encoding="ascii").strip()


class Candidate(Bookie):
    """Who stands for auditor; its vote and its locks last as long as its session."""

    def is_serving(self) -> bool:
        return self.id in self.cluster.auditor_votes()

    def wait_until_forgotten(self) -> None:
        wait_for(lambda: not self.is_serving(), f"{self.id} is still a candidate")


class AutoRecovery(Candidate):
    """Java's auditor and replication worker in a process of their own."""

    name = "autorecovery"

    def command(self) -> list[str]:
        main = "org.apache.bookkeeper.replication.AutoRecoveryMain"
        return [*self.java(), main, "--conf", str(self.config)]


class QuireAutoRecovery(Candidate):
    """Ours, in a process of its own."""

    name = "quire autorecovery"

    def command(self) -> list[str]:
        script = str(paths.python_script("quire"))
        return [script, "autorecovery", "--config", str(self.config)]


class Cluster:
    """Bookies that find each other in one ZooKeeper, which is the cluster's own."""

    def __init__(
        self,
        directory: Path,
        jvm: tuple[str, ...] = SMALL_JVM,
        zookeeper: ZooKeeper | None = None,
        auth_data: list[tuple[str, str]] | None = None,
    ) -> None:
        """`jvm`: options of Java's bookies and clients; `zookeeper`: another than the usual;
        `auth_data`: kazoo's, of whom the nodes belong to."""
        self.directory = directory
        self.jvm = jvm
        self.zookeeper = (zookeeper or ZooKeeper(directory / "zookeeper")).start()
        self.bookies: list[Bookie] = []
        self.tools: list[LedgerTool] = []
        # Connections break when ZooKeeper, or this process, was away for a while.
        again = {"max_tries": -1, "deadline": 30, "max_delay": 1}
        self._kazoo = KazooClient(self.zookeeper.hosts, command_retry=again, auth_data=auth_data)
        self._kazoo.start(60)

    @property
    def uri(self) -> str:
        return f"zk+hierarchical://{self.zookeeper.hosts}/ledgers"

    def start(self, *kinds: type[Bookie], **settings: str) -> list[Bookie]:
        """A bookie of each kind, all at once; the first start makes the tree."""
        if not self.bookies:
            self.make_tree()
        made = [kind(self, len(self.bookies) + n, settings) for n, kind in enumerate(kinds)]
        self.bookies += made
        for bookie in made:
            bookie.launch()
        for bookie in made:
            bookie.wait_until_ready()
        return made

    def bookie(self, bookie_id: str) -> Bookie:
        return next(bookie for bookie in self.bookies if bookie.id == bookie_id)

    def make_tree(self) -> None:
        """Java's: an existing cluster is what ours have to get on with."""
        if self.get("LAYOUT") is None:
            self.shell("initnewcluster")

    def shell(self, *arguments: str, timeout_s: float = 120, code: int | None = 0) -> str:
        """What `bookkeeper shell` says: its own words and what it logs from INFO on."""
        here = self.directory / "shell"
        here.mkdir(parents=True, exist_ok=True)
        config = here / "bk_server.conf"
        if not config.exists():
            # The shell takes itself for the bookie whose configuration it gets.
            lines = {
                "metadataServiceUri": self.uri,
                "allowLoopback": "true",
                "advertisedAddress": HOST,
                "bookiePort": free_port(),
                "journalDirectory": here / "journal",
                "ledgerDirectories": here / "ledgers",
            }
            config.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        main = "org.apache.bookkeeper.bookie.BookieShell"
        jvm = java(here / "log4j", "INFO", "%msg")
        command = [*jvm, main, "-conf", str(config), *arguments]
        return tools.run(command, timeout_s=timeout_s, code=code)

    def ledger_tool(self, client: str, **settings: str) -> "LedgerTool":
        """`client`: v2 or v3 (Java's, of that protocol), or quire. `settings` are the client's."""
        tool = LedgerTool(self, client, settings)
        self.tools.append(tool)
        return tool

    def get(self, path: str) -> bytes | None:
        """The data of a node below /ledgers."""
        try:
            return self._kazoo.retry(self._kazoo.get, f"/ledgers/{path}")[0]
        except NoNodeError:
            return None

    def children(self, path: str) -> list[str]:
        """Names of the nodes below a node below /ledgers; none if it is not there."""
        try:
            return sorted(
                self._kazoo.retry(self._kazoo.get_children, f"/ledgers/{path}".rstrip("/"))
            )
        except NoNodeError:
            return []

    def auditor_votes(self) -> list[str]:
        """The candidates' bookie ids, the auditor first."""
        path = "underreplication/auditorelection"
        names = sorted(self.children(path), key=lambda name: int(name.removeprefix("V_")))
        nodes = [self.get(f"{path}/{name}") for name in names]
        return [re.search(rb'"(.*)"', node)[1].decode() for node in nodes if node is not None]

    def under_replicated(self, below: str = "underreplication/ledgers") -> list[int]:
        """Ids of the ledgers that are marked."""
        found = []
        for name in self.children(below):
            is_mark = name.startswith("urL")
            found += [int(name[3:])] if is_mark else self.under_replicated(f"{below}/{name}")
        return sorted(found)

    def is_registered(self, bookie_id: str) -> bool:
        return bookie_id in self.children("available") + self.children("available/readonly")

    def wait_until_gone(self, bookie_id: str) -> None:
        """A killed bookie's registration lasts as long as its session."""
        wait_for(lambda: not self.is_registered(bookie_id), f"{bookie_id} is still registered")

    def discard(self) -> None:
        for tool in self.tools:
            tool.kill()
        for bookie in self.bookies:
            bookie.kill()
        self._kazoo.stop()
        self._kazoo.close()
        self.zookeeper.discard()
        # Their directories are in this one.
        for bookie in self.bookies:
            bookie.discard()


def wait_for(condition, words: str, timeout_s: float = 60) -> None:
    """Returns once `condition()` is true; AssertionError with `words` if it does not get so."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"{words}, after {timeout_s} s")
        time.sleep(0.05)


class LedgerTool(LineTool):
    """A client in a process of its own. `tool.create(e=3, qw=3, qa=2)` says «create e=3 qw=3 qa=2»
    and returns the answer; ToolError. What comes unasked is in `events`."""

    def __init__(self, cluster: Cluster, client: str, settings: dict[str, str]) -> None:
        words = [f"{key}={value}" for key, value in settings.items()]
        if client == "quire":
            module = paths.COMPAT / "harness" / "ledger_tool.py"
            command = [sys.executable, str(module), cluster.uri, *words]
        else:
            # On standard output there are answers only.
            said = (cluster.directory / "tool-log4j", "ERROR", "%d %logger{1} %msg")
            command = java(*said, cluster.jvm, compiled_tools())
            command += ["LedgerTool", cluster.uri, client, *words]
        log_path = cluster.directory / f"tool-{len(cluster.tools)}.log"
        super().__init__(command, log_path, f"{client} client")
        assert self.started["ready"]

    def line(self, command: str, arguments: dict[str, object]) -> str:
        return " ".join([command, *(f"{key}={_word(value)}" for key, value in arguments.items())])

    def write(
        self,
        count: int,
        size: int,
        *,
        e: int = 3,
        qw: int = 3,
        qa: int = 2,
        window: int = 1000,
        **made,
    ) -> dict:
        """A new ledger with that many entries; its handle is left open. With `window=1` each entry
        tells the bookies that the one before it is confirmed."""
        created = self.create(e=e, qw=qw, qa=qa, **made)
        added = self.append(handle=created["handle"], count=count, size=size, window=window)
        assert added["acked"] == count, added
        assert added["misordered"] == 0, added
        return {**created, **added}

    def read_back(self, ledger: int, size: int, count: int, **opened) -> dict:
        """Opens the ledger (with recovery unless told otherwise), reads all, compares."""
        reader = self.open(ledger=ledger, **opened)
        assert reader["last"] == count - 1, reader
        read = self.read(handle=reader["handle"], first=0, last=count - 1, size=size)
        assert (read["good"], read["bad"]) == (count, []), read
        return reader

    def entries_of(self, ledger: int, bookie: str, last: int) -> dict:
        """Java's `list_entries`, once it sees the bookie, which may just have come back."""
        deadline = time.monotonic() + 60
        while True:
            try:
                return self.list_entries(ledger=ledger, bookie=bookie, last=last)
            except ToolError as error:
                if error.code != NO_BOOKIE_HANDLE or time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def last_acked(self) -> int:
        """What `flood` has told so far."""
        return max((each["entry"] for each in self.events), default=-1)

    def wait_for_bookies(self, count: int) -> None:
        """A client hears of bookies that come a little after they are registered."""

        def are_known() -> bool:
            try:
                made = self.create(e=count, qw=1, qa=1)
            except ToolError:
                return False
            self.close(handle=made["handle"])
            self.delete(ledger=made["ledger"])
            return True

        wait_for(are_known, f"the {self.client} does not see {count} bookies")


def _word(value: object) -> str:
    word = str(value).lower() if isinstance(value, bool) else str(value)
    assert not re.search(r"\s", word), word
    return word
