"""What security costs: handshakes per second, MB/s over TLS beside plain bytes, and ACLs.

    python -m bench.tls [--servers kafka,quire] [--seconds 5] [--count 200000] [--acls 0,1000,10000]

One server at a time, on this machine, with a PLAINTEXT and an SSL listener and a key of RSA with
2048 bits. Handshakes are whole ones, nothing is resumed, by two processes one after another each;
MB/s are librdkafka's, of 1 kB records, acks=all, and of a consumer that reads them from the start.
ACLs: with an authorizer and so many ACLs, of other topics, beside the one that lets the client
write; 0 is without an authorizer.
"""

import argparse
import multiprocessing
import shutil
import ssl
import subprocess
import tempfile
import time
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from bench.peers import free_port
from bench.servers import HOST, Kafka, Quire, Server

RECORD = b"x" * 1000
TOPIC = "t"
PARTITIONS = 4
TIMEOUT_SECONDS = 120
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
ACLS_AT_ONCE = 500


def certificates(folder: Path) -> tuple[Path, Path]:
    """(key and certificate in one file, the same certificate as the authority)."""
    key, certificate, both = folder / "key", folder / "certificate.pem", folder / "server.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
         "-subj", "/CN=bench", "-addext", "subjectAltName=IP:127.0.0.1",
         "-keyout", str(key), "-out", str(certificate)],
        check=True, capture_output=True,
    )  # fmt: skip
    both.write_bytes(key.read_bytes() + certificate.read_bytes())
    both.chmod(0o600)
    return both, certificate


def settings_of(server: Server, tls_port: int, store: Path, *, has_acls: bool) -> list[str]:
    listeners = f"PLAINTEXT://{server.bootstrap},SSL://{HOST}:{tls_port}"
    found = [
        f"advertised.listeners={listeners}",
        "ssl.keystore.type=PEM",
        f"ssl.keystore.location={store}",
    ]
    if has_acls:
        found += [f"authorizer.class.name={AUTHORIZER}", "super.users=User:CN=nobody"]
        found.append("allow.everyone.if.no.acl.found=true")
    if isinstance(server, Kafka):
        listeners += f",CONTROLLER://{HOST}:{server.controller_port}"
        protocols = "PLAINTEXT:PLAINTEXT,SSL:SSL,CONTROLLER:PLAINTEXT"
        found.append(f"listener.security.protocol.map={protocols}")
    return [*found, f"listeners={listeners}"]


class SecuredQuire(Quire):
    """Settings in a file, as `listeners` and `--listen` exclude each other."""

    lines: tuple[str, ...] = ()

    def prepare(self) -> None:
        (self.directory / "server.properties").write_text("\n".join(self.lines) + "\n")

    def command(self) -> list[str]:
        words = super().command()
        at = words.index("--listen")
        return [*words[:at], *words[at + 2 :], "--config", "server.properties"]


def started(kind: str, directory: Path, store: Path, *, has_acls: bool) -> tuple[Server, int]:
    server: Kafka | SecuredQuire
    server = Kafka(directory) if kind == "kafka" else SecuredQuire(directory)
    tls_port = free_port()
    lines = tuple(settings_of(server, tls_port, store, has_acls=has_acls))
    if isinstance(server, Kafka):
        server.settings = lines
    else:
        server.lines = lines
    server.start()
    return server, tls_port


def shake(port: int, ca: Path, seconds: float, counts: "multiprocessing.Queue[int]") -> None:
    import socket

    context = ssl.create_default_context(cafile=str(ca))
    count, ends = 0, time.perf_counter() + seconds
    while time.perf_counter() < ends:
        with (
            socket.create_connection((HOST, port), TIMEOUT_SECONDS) as below,
            context.wrap_socket(below, server_hostname=HOST),
        ):
            count += 1
    counts.put(count)


def handshakes(port: int, ca: Path, seconds: float) -> float:
    counts: multiprocessing.Queue[int] = multiprocessing.Queue()
    clients = [
        multiprocessing.Process(target=shake, args=(port, ca, seconds, counts)) for _ in range(2)
    ]
    for one in clients:
        one.start()
    total = sum(counts.get() for _ in clients)
    for one in clients:
        one.join()
    return total / seconds


def produced(client: dict[str, object], count: int) -> float:
    """MB/s."""
    producer = Producer({**client, "acks": "all", "linger.ms": 5})
    failed: list[object] = []
    start = time.perf_counter()
    for index in range(count):
        while True:
            try:
                producer.produce(
                    TOPIC, RECORD, partition=index % PARTITIONS,
                    on_delivery=lambda error, _: error and failed.append(error),
                )  # fmt: skip
                break
            except BufferError:
                producer.poll(0.01)
    left = producer.flush(TIMEOUT_SECONDS)
    if left or failed:
        raise RuntimeError(f"{left} unsent, {len(failed)} failed, the first {failed[:1]}")
    return count * len(RECORD) / (time.perf_counter() - start) / 1e6


def consumed(client: dict[str, object], count: int) -> float:
    """MB/s."""
    consumer = Consumer({**client, "group.id": "g", "enable.auto.commit": False})
    consumer.assign([TopicPartition(TOPIC, number, 0) for number in range(PARTITIONS)])
    start, seen = time.perf_counter(), 0
    while seen < count:
        if time.perf_counter() - start > TIMEOUT_SECONDS:
            raise RuntimeError(f"{seen} of {count} records came")
        seen += sum(each.error() is None for each in consumer.consume(5000, 0.5))
    seconds = time.perf_counter() - start
    consumer.close()
    return count * len(RECORD) / seconds / 1e6


def make_acls(admin: AdminClient, count: int) -> None:
    made = [
        AclBinding(
            ResourceType.TOPIC, f"other-{number}", ResourcePatternType.LITERAL,
            f"User:u{number % 100}", "*", AclOperation.READ, AclPermissionType.ALLOW,
        )
        for number in range(count)
    ]  # fmt: skip
    for at in range(0, count, ACLS_AT_ONCE):
        for each in admin.create_acls(made[at : at + ACLS_AT_ONCE]).values():
            each.result(TIMEOUT_SECONDS)


def over_tls(kind: str, folder: Path, seconds: float, count: int) -> None:
    store, ca = certificates(folder)
    server, port = started(kind, folder / kind, store, has_acls=False)
    try:
        plain: dict[str, object] = {"bootstrap.servers": server.bootstrap}
        secured: dict[str, object] = {
            "bootstrap.servers": f"{HOST}:{port}",
            "security.protocol": "SSL",
            "ssl.ca.location": str(ca),
        }
        admin = AdminClient(plain)
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(TIMEOUT_SECONDS)
        produced(plain, count // 10)
        print(f"{kind}: {handshakes(port, ca, seconds):.0f} handshakes/s", flush=True)
        for name, client in (("plain", plain), ("TLS", secured)):
            written, read = produced(client, count), consumed(client, count)
            print(f"{kind}: {name}: produce {written:.1f} MB/s, fetch {read:.1f} MB/s", flush=True)
    finally:
        server.discard()


def with_acls(kind: str, folder: Path, acls: int, count: int) -> None:
    store, _ = certificates(folder)
    server, _ = started(kind, folder / f"{kind}-{acls}", store, has_acls=acls > 0)
    try:
        client: dict[str, object] = {"bootstrap.servers": server.bootstrap}
        admin = AdminClient(client)
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(TIMEOUT_SECONDS)
        make_acls(admin, acls)
        produced(client, count // 10)
        print(f"{kind}: {acls} ACLs: produce {produced(client, count):.1f} MB/s", flush=True)
    finally:
        server.discard()


def main() -> None:
    parser = argparse.ArgumentParser(description="What security costs.")
    parser.add_argument("--servers", default="kafka,quire")
    parser.add_argument("--seconds", type=float, default=5.0, help="of handshakes")
    parser.add_argument("--count", type=int, default=200_000, help="records of 1 kB")
    parser.add_argument("--acls", default="0,1000,10000")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="quire-bench-"))
    try:
        for kind in options.servers.split(","):
            over_tls(kind, folder, options.seconds, options.count)
            for acls in filter(None, options.acls.split(",")):
                with_acls(kind, folder, int(acls), options.count)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
