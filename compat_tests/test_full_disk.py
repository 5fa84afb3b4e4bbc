"""A disk that fills up under load, and recovers: what clients see, and that nothing is lost.

The server's data is on an ext4 file system of 300 MB of its own. An idempotent producer writes
until nothing more is taken; then reading, describing and deleting still work, also after SIGKILL
and a start on the full disk; what DeleteRecords gives free comes back, and the producer, which has
been retrying all the while, goes on without an error of its own.
"""

import collections
import contextlib
import itertools
import json
import os
import shutil
import subprocess
import threading
import time

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from harness import figures, paths, servers
from harness.history import CLIENT_SETTINGS, Writer, read_all

SIZE_MB = 300
PARTITIONS = 2
VALUE_SIZE_BYTES = 10_000
JAVA_RECORDS = 20
STUCK_SECONDS = 4
#: On a machine with far more to do than this.
START_SECONDS = 180
#: How often Kafka's own client has to have been refused before it counts as waiting.
JAVA_REFUSALS = 3
SETTINGS = {
    "journalMaxSizeMB": "16",
    "journalMaxBackups": "1",
    "dbStorage_writeCacheMaxSizeMb": "16",
    "flushInterval": "1000",
    "logSizeLimit": str(16 << 20),
    "diskCheckInterval": "500",
    "gcWaitTime": "1000",
    "log.retention.check.interval.ms": "1000",
}


def run(*command):
    subprocess.run(command, check=True, capture_output=True)


@pytest.fixture
def disk(scratch, name):
    if servers.target() == "control":
        pytest.skip("Kafka ends its process when a log directory is full")
    if os.geteuid() != 0 or shutil.which("mkfs.ext4") is None:
        pytest.skip("making and mounting a file system needs root and e2fsprogs")
    folder = scratch / name("full")
    mount_point = folder / "disk"
    mount_point.mkdir(parents=True)
    run("truncate", "-s", f"{SIZE_MB}M", str(folder / "image"))
    run("mkfs.ext4", "-q", "-m0", str(folder / "image"))
    try:
        run("mount", "-o", "loop", str(folder / "image"), str(mount_point))
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no loop devices here: {error.stderr.decode().strip()}")
    yield folder
    for _ in range(50):
        with contextlib.suppress(subprocess.CalledProcessError):
            run("umount", str(mount_point))
            break
        time.sleep(0.1)


def wait_for(condition, timeout_s, what):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


class Probe(threading.Thread):
    """Sends a record now and then, without retries: what an application is told at once."""

    def __init__(self, bootstrap, topic):
        super().__init__(daemon=True)
        self.topic = topic
        self.stopping = threading.Event()
        self.outcomes = []  # (monotonic seconds, error name or "")
        self.producer = Producer(
            {
                **CLIENT_SETTINGS,
                "bootstrap.servers": bootstrap,
                "message.send.max.retries": 0,
                "message.timeout.ms": 5000,
                "linger.ms": 0,
            }
        )

    def run(self):
        while not self.stopping.wait(0.1):
            self.producer.produce(self.topic, b"probe", partition=0, on_delivery=self._note)
            self.producer.poll(0)
        self.producer.flush(10)

    def _note(self, error, _):
        self.outcomes.append((time.monotonic(), error.name() if error else ""))

    def finish(self):
        self.stopping.set()
        self.join(20)

    def taken(self, since):
        return [at for at, name in self.outcomes if not name and at > since]

    def is_full(self, begun=0.0):
        """Refused all the time since some seconds: journals that became superfluous, and what
        could be collected, is used up as well. Of what was refused since `begun`."""
        since = time.monotonic() - STUCK_SECONDS
        return not self.taken(since) and len(self.refused(max(since, begun))) > 5

    def refused(self, since):
        return [at for at, name in self.outcomes if name == "NOT_ENOUGH_REPLICAS" and at > since]


def read_some(bootstrap, topic, partition, offset):
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "some"})
    consumer.assign([TopicPartition(topic, partition, offset)])
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if message := consumer.poll(1):
                if message.error() is not None:
                    raise KafkaException(message.error())
                return message.value()
        return None
    finally:
        consumer.close()


def check(writer, rows):
    wrong = list(writer.failed)
    at = {(partition, offset): value for partition, row in rows.items() for offset, value in row}
    starts = {partition: row[0][0] for partition, row in rows.items()}
    for number, (partition, offset) in writer.acked.items():
        if offset >= starts[partition] and at.get((partition, offset)) != writer.value(number):
            wrong.append(f"record {number}, acknowledged at {partition}, {offset}, is not there")
    for partition, row in rows.items():
        offsets = [offset for offset, _ in row]
        if offsets != list(range(offsets[0], offsets[0] + len(offsets))):
            wrong.append(f"partition {partition}: offsets have holes")
        numbers = [int(value.rstrip(b".")) for _, value in row]
        if any(after <= before for before, after in itertools.pairwise(numbers)):
            wrong.append(f"partition {partition}: twice, or out of order")
    return wrong


def delete_up_to(admin, topic, share):
    """DeleteRecords up to a share of each partition; raises what the server answers."""
    asked = {}
    for partition in range(PARTITIONS):
        consumer = Consumer({"bootstrap.servers": admin.bootstrap, "group.id": "ends"})
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), 60)
        consumer.close()
        asked[partition] = TopicPartition(topic, partition, low + int((high - low) * share))
    futures = admin.client.delete_records(list(asked.values()))
    return [future.result(60).low_watermark for future in futures.values()]


class Admin:
    def __init__(self, bootstrap):
        self.bootstrap = bootstrap
        self.client = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})


def make_topics(admin, *names):
    config = {"segment.bytes": str(8 << 20)}
    new = [NewTopic(name, PARTITIONS, 1, config=config) for name in names]
    for future in admin.client.create_topics(new).values():
        future.result(60)


class JavaProducer(threading.Thread):
    """Kafka's own client: it has to keep trying until there is space."""

    def __init__(self, folder, bootstrap, topic):
        super().__init__(daemon=True)
        properties = folder / "java.properties"
        # The tool's own default is not to try again; the client's is to, for two minutes.
        properties.write_text(f"retries={(1 << 31) - 1}\ndelivery.timeout.ms={(1 << 31) - 1}\n")
        # Refusals are logged as warnings.
        command = ["java", "-Xmx128m", "-Dlog4j2.level=WARN", "-cp", f"{paths.jars('kafka')}/*"]
        command += ["org.apache.kafka.tools.VerifiableProducer", "--bootstrap-server", bootstrap]
        command += ["--topic", topic, "--max-messages", str(JAVA_RECORDS), "--acks", "-1"]
        command += ["--command-config", str(properties)]
        self.started_at = time.monotonic()
        self.refusals = 0
        self.outcomes = collections.Counter()
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def run(self):
        with self.process.stdout as lines:
            for line in lines:
                if "NOT_ENOUGH_REPLICAS" in line:
                    self.refusals += 1
                elif line.startswith("{"):
                    name = json.loads(line)["name"]
                    if name.startswith("producer_send"):
                        self.outcomes[name] += 1

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.join(20)


def waiting_java_producer(folder, bootstrap, topic, probe, writer):
    """One that was refused and is still trying. One that got through is no proof of anything if
    others got through as well: compaction had given some space back. Then there is another try."""
    deadline = time.monotonic() + 180
    while True:
        acked = len(writer.acked)
        java = JavaProducer(folder, bootstrap, topic)
        java.start()
        while java.refusals < JAVA_REFUSALS:
            if java.process.poll() is not None:
                java.join(20)
                # The writer always has something to send, the probe only now and then.
                taken = probe.taken(java.started_at) or len(writer.acked) > acked
                assert java.process.returncode == 0, f"the Java client gave up: {java.outcomes}"
                assert taken, f"only the Java client got through: {java.outcomes}"
                break
            if time.monotonic() > deadline:
                java.kill()
                pytest.fail("the Java client was neither refused nor served")
            time.sleep(0.02)
        else:
            return java


def tell(server):
    """The log is deleted with the server, and says more than what a client saw of it."""
    code = None if server.process is None else server.process.poll()
    print(f"the server's exit code: {code}; its log:\n{server.log_tail(60_000)}")


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("killed", [False, True], ids=["running", "killed"])
def test_full_and_back(disk, topic, killed):
    server = servers.make_server(disk / "server", SETTINGS)  # its log is on another disk
    server.data_dir = disk / "disk" / "data"
    server.start(START_SECONDS)
    admin = Admin(server.bootstrap)
    java = None
    try:
        make_topics(admin, topic, f"{topic}-probe", f"{topic}-gone", f"{topic}-java")
        # However long it takes on a busy machine: the server is to give it no error, and a time-out
        # of its own would be one.
        patient = {"message.timeout.ms": 0}
        writer = Writer(server.bootstrap, topic, PARTITIONS, VALUE_SIZE_BYTES, patient)
        writer.producer.produce(f"{topic}-gone", bytes(100_000))
        probe = Probe(server.bootstrap, f"{topic}-probe")
        started = time.monotonic()
        writer.start()
        probe.start()
        wait_for(probe.is_full, 180, "the disk does not fill")
        full_at = probe.refused(0)[0]
        acked_full = len(writer.acked)
        usage = shutil.disk_usage(disk / "disk")
        if killed:
            for _ in range(2):
                server.kill()
                server.start(START_SECONDS)
                up_at = time.monotonic()
                wait_for(lambda up_at=up_at: probe.is_full(up_at), 120, "not served, or not full")
        java = waiting_java_producer(disk, server.bootstrap, f"{topic}-java", probe, writer)
        assert java.process.poll() is None, "the Java client gave up"
        writer.stopping.set()  # what it has queued by now is what it has to bring home
        # Everything but writing goes on.
        assert read_some(server.bootstrap, topic, 0, 0) == writer.value(0)
        assert topic in admin.client.list_topics(timeout=20).topics
        admin.client.delete_topics([f"{topic}-gone"])[f"{topic}-gone"].result(60)
        deleted_at = time.monotonic()
        low = delete_up_to(admin, topic, 0.7)
        assert all(offset > 0 for offset in low)
        assert writer.finish(180) == 0, f"the producer does not go on\n{server.log_tail(60000)}"
        assert len(writer.acked) == writer.sent_count > acked_full
        wait_for(lambda: probe.taken(deleted_at), 90, "a second producer is not served")
        writable_at = probe.taken(deleted_at)[0]
        probe.finish()
        java.join(120)
        assert java.outcomes == {"producer_send_success": JAVA_RECORDS}
        rows = read_all(server.bootstrap, topic, PARTITIONS, timeout_s=180)
        assert check(writer, rows)[:10] == []
        if killed:
            server.kill()
            server.start(START_SECONDS)
            rows = read_all(server.bootstrap, topic, PARTITIONS, timeout_s=180)
            assert check(writer, rows)[:10] == []
        kinds = collections.Counter(name for _, name in probe.outcomes if name)
        figures.add(
            f"full disk ({'SIGKILL twice while full' if killed else 'running'}): {SIZE_MB} MB, "
            f"first refusal after {full_at - started:.1f} s, full at "
            f"{usage.used / usage.total:.1%}, {acked_full} records acknowledged by then; "
            f"writable {writable_at - deleted_at:.1f} s after DeleteRecords, "
            f"{len(writer.acked)} acknowledged in the end, none lost or doubled; "
            f"a producer without retries saw {dict(kinds)}"
        )
    except BaseException:
        tell(server)
        raise
    finally:
        server.discard()
        if java is not None:
            java.kill()
