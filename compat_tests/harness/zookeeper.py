"""A real ZooKeeper on loopback: one server, with TLS if it is asked for, that can be killed,
frozen and started again on the same data; or three, of which one can lag behind the others."""

import shutil
import socket
import subprocess
import time
from pathlib import Path

from harness import class_archives, paths
from harness.servers import HOST, Server, free_port
from harness.slow_proxy import SlowProxy

#: Messages of the server from WARN on; logback is what the jars log through.
LOGBACK = """<configuration>
  <appender name="out" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d %-5level %logger{20} %msg%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="out"/></root>
</configuration>
"""


class ZooKeeper(Server):
    """`ZooKeeper(directory).start()`; `hosts` is what clients connect to. `settings` go to zoo.cfg.
    With `tls` there is a second port (`secure_hosts`), `ca_file`, and a client's certificate."""

    name = "zookeeper"

    def __init__(
        self, directory: Path, settings: dict[str, str] | None = None, *, tls: bool = False
    ) -> None:
        super().__init__(directory)
        self.settings = settings or {}
        #: Where it listens.
        self.host = HOST
        self.tls = tls
        self.secure_port = free_port() if tls else 0
        self.ca_file = directory / "ca.pem"
        self.client_file = directory / "client.pem"
        self.client_key_file = directory / "client.key"

    @property
    def hosts(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def secure_hosts(self) -> str:
        return f"{HOST}:{self.secure_port}"

    def prepare(self) -> None:
        (self.directory / "logback.xml").write_text(LOGBACK)
        self.data_dir.mkdir(exist_ok=True)
        config = {
            "dataDir": self.data_dir,
            "clientPort": self.port,
            "clientPortAddress": self.host,
            "tickTime": 500,
            "minSessionTimeout": 1000,
            "maxClientCnxns": 0,
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "*",
        }
        if self.tls:
            self._make_certificates()
            config |= {
                "secureClientPort": self.secure_port,
                "secureClientPortAddress": HOST,
                "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
                "ssl.keyStore.location": self.directory / "server.pem",
                "ssl.keyStore.type": "PEM",
                "ssl.trustStore.location": self.ca_file,
                "ssl.trustStore.type": "PEM",
                "ssl.clientAuth": "none",
            }
        config |= self.settings
        lines = "".join(f"{key}={value}\n" for key, value in config.items())
        (self.directory / "zoo.cfg").write_text(lines)

    def command(self) -> list[str]:
        command = ["java", "-Xmx256m", "-XX:+UseSerialGC", *class_archives.zookeeper()]
        command += [f"-Dlogback.configurationFile={self.directory / 'logback.xml'}"]
        command += ["-cp", f"{paths.jars('zookeeper')}/*"]
        command += ["org.apache.zookeeper.server.quorum.QuorumPeerMain"]
        return [*command, str(self.directory / "zoo.cfg")]

    def is_ready(self) -> bool:
        if self.tls:
            # It listens on that port last.
            try:
                socket.create_connection((HOST, self.secure_port), 5).close()
            except OSError:
                return False
        return self.say("ruok") == "imok"

    def say(self, word: str) -> str:
        """The answer to a four-letter word; empty if nobody answers."""
        answer = b""
        try:
            with socket.create_connection((self.host, self.port), 5) as connection:
                connection.sendall(word.encode())
                while part := connection.recv(65536):
                    answer += part
        except OSError:
            return ""
        return answer.decode()

    def _make_certificates(self) -> None:
        """A CA; server.pem (key, certificate, CA) for 127.0.0.1; a client's key and certificate."""
        here = self.directory

        def openssl(*arguments: str) -> None:
            subprocess.run(["openssl", *arguments], cwd=here, check=True, capture_output=True)

        openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "ca.key", "-out",
                "ca.pem", "-days", "30", "-subj", "/CN=quire-test-ca",
                "-addext", "keyUsage=critical,keyCertSign,cRLSign")  # fmt: skip
        (here / "san").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
        for name in ("server", "client"):
            openssl("req", "-newkey", "rsa:2048", "-nodes", "-keyout", f"{name}.key", "-out",
                    f"{name}.csr", "-subj", f"/CN={name}")  # fmt: skip
            openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key",
                    "-CAcreateserial", "-out", f"{name}.crt", "-days", "30",
                    "-extfile", "san")  # fmt: skip
        parts = [here / "server.key", here / "server.crt", here / "ca.pem"]
        (here / "server.pem").write_text("".join(part.read_text() for part in parts))
        shutil.copy(here / "client.crt", self.client_file)


class Ensemble:
    """Three servers that elect a leader; `hosts` names all."""

    def __init__(self, directory: Path) -> None:
        self.servers: list[ZooKeeper] = []
        #: Of each server: where followers connect to it while it leads, and where it votes.
        self.peers = {n: (free_port(), free_port()) for n in (1, 2, 3)}
        for n in (1, 2, 3):
            server = ZooKeeper(directory / str(n), self.settings(n))
            server.name = f"zookeeper {n}"
            server.data_dir.mkdir(parents=True)
            (server.data_dir / "myid").write_text(f"{n}\n")
            self.servers.append(server)
        self.hosts = ",".join(server.hosts for server in self.servers)

    def settings(self, number: int) -> dict[str, str]:
        """Of server `number`, beside a single server's."""
        peers = {
            f"server.{n}": f"{HOST}:{quorum}:{vote}" for n, (quorum, vote) in self.peers.items()
        }
        return {**peers, "initLimit": "20", "syncLimit": "5", "maxSessionTimeout": "120000"}

    def start(self) -> "Ensemble":
        # «ruok» is answered before there is a leader.
        for server in self.servers:
            server.start()
        self.wait_for_leader()
        return self

    def wait_for_leader(self, timeout_s: float = 120) -> ZooKeeper:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            for server in self.servers:
                if server.process is not None and "Mode: leader" in server.say("srvr"):
                    return server
            time.sleep(0.05)
        raise RuntimeError("no leader")

    def discard(self) -> None:
        for server in self.servers:
            server.discard()


class LaggingEnsemble(Ensemble):
    """The first server's lines to a leader are long: what the leader tells it comes `lag_ms` late,
    in order, and no connection breaks. So it serves reads of what was true `lag_ms` ago, as
    ZooKeeper's followers may. It is the one with the lowest number, so that it leads only if
    the others are gone or have less; then nobody lags.

    Clients of the first server: `lagging_hosts`; of the two others: `hosts`. Whoever changes
    something by way of the first server waits for `lag_ms`, and to connect takes as long.
    """

    def __init__(self, directory: Path, lag_ms: float = 2000) -> None:
        self.lines: list[SlowProxy] = []
        super().__init__(directory)
        self.lagging_hosts = self.servers[0].hosts
        self.hosts = ",".join(server.hosts for server in self.servers[1:])
        self.lag_ms = lag_ms

    def settings(self, number: int) -> dict[str, str]:
        # Ticks of half a second: to begin takes a follower that lags four words of the leader.
        settings = {**super().settings(number), "initLimit": "60", "syncLimit": "30"}
        if number > 1:
            return settings
        for n in (2, 3):
            quorum, vote = self.peers[n]
            line = SlowProxy((HOST, quorum), answers_only=True)
            self.lines.append(line)
            settings[f"server.{n}"] = f"{HOST}:{line.port}:{vote}"
        return settings

    @property
    def lag_ms(self) -> float:
        return self.lines[0].delay_ms

    @lag_ms.setter
    def lag_ms(self, value: float) -> None:
        for line in self.lines:
            line.delay_ms = value

    def wait_for_follower(self, timeout_s: float = 120) -> None:
        """Until the one that lags serves; it takes a few times its lag."""
        deadline = time.monotonic() + timeout_s
        while "Mode: follower" not in self.servers[0].say("srvr"):
            if time.monotonic() > deadline:
                raise RuntimeError(f"it does not follow:\n{self.servers[0].log_tail()}")
            time.sleep(0.05)

    def start(self) -> "LaggingEnsemble":
        # To begin takes some words there and back.
        lag_ms, self.lag_ms = self.lag_ms, 0
        super().start()
        self.wait_for_follower()
        self.lag_ms = lag_ms
        return self

    def discard(self) -> None:
        super().discard()
        for line in self.lines:
            line.close()
