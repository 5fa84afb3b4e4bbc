"""`quire standalone --processes N`: brokers as processes that share one bookie.

Real clients, real processes, SIGKILL. Figures are closing lines.
"""

import os
import re
import signal
import socket
import subprocess
import threading
import time
import urllib.request
from collections import Counter
from contextlib import suppress

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicCollection
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
)
from harness import figures, paths, raw, servers
from harness.children import children_of, is_gone, wait_for
from harness.history import Watcher, Writer, check, read_all

pytestmark = [
    pytest.mark.skipif(servers.target() != "quire", reason="about our own processes"),
    pytest.mark.timeout(300),
]

PARTITIONS = 6
LOGIN = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "broker",
    "sasl.password": "broker-secret-of-a-test",
}
JAAS = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    'username="broker" password="broker-secret-of-a-test" '
    'user_broker="broker-secret-of-a-test";'
)


class ProcessesServer(servers.QuireServer):
    """Process i listens on `port + i`."""

    processes = 2

    def __init__(self, directory, settings=None):
        super().__init__(directory, settings)
        self.port = servers.free_port(4)
        self.metrics_port = servers.free_port(4)

    def command(self):
        options = ["--processes", str(self.processes)]
        options += ["--metrics", f"127.0.0.1:{self.metrics_port}"]
        return [*super().command(), *options]

    def child_pids(self):
        """By name: the brokers that run now."""
        return children_of(self.process.pid)

    def restart(self, processes):
        self.processes = processes
        self.start()


class SecuredServer(ProcessesServer):
    """Where it listens is in its settings: --listen is for listeners without a login."""

    def command(self):
        command = [str(paths.python_script("quire")), "standalone", "--processes", "2"]
        command += ["--data-dir", str(self.data_dir)]
        for key, value in self.settings.items():
            command += ["--set", f"{key}={value}"]
        return command


@pytest.fixture
def server(scratch, name):
    one = ProcessesServer(scratch / name("processes"))
    one.start()
    yield one
    one.discard()


def create(server, topic, partitions=PARTITIONS):
    admin = AdminClient({"bootstrap.servers": server.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(topic, partitions)])[topic].result(60)


def leaders(server, topic):
    """How many partitions each broker leads."""
    admin = AdminClient({"bootstrap.servers": server.bootstrap, "log_level": 0})
    described = admin.describe_topics(TopicCollection([topic]))[topic].result(60)
    return Counter(one.leader.id for one in described.partitions if one.leader is not None)


def load(server, topic):
    writer = Writer(server.bootstrap, topic, PARTITIONS)
    watcher = Watcher(server.bootstrap, topic, PARTITIONS)
    writer.start()
    watcher.start()
    wait_for(lambda: len(writer.acked) > 500, 60, "no load")
    return writer, watcher


def go_on(writer, timeout_s=90):
    acked = len(writer.acked)
    wait_for(lambda: len(writer.acked) > acked + 500, timeout_s, writer.state())


def finish(server, topic, writer, watcher):
    """What was sent is there, once and in order."""
    assert writer.finish() == 0
    watcher.finish()
    rows = read_all(server.bootstrap, topic, PARTITIONS)
    assert check(writer, watcher, rows)[:20] == []
    assert len(writer.acked) == writer.sent_count == sum(map(len, rows.values()))


def test_groups_and_transactions_over_two_processes(server, topic):
    create(server, topic)
    assert leaders(server, topic) == {0: PARTITIONS // 2, 1: PARTITIONS // 2}
    producer = Producer(
        {"bootstrap.servers": server.bootstrap, "transactional.id": topic, "log_level": 0}
    )
    producer.init_transactions(60)
    for outcome in (producer.abort_transaction, producer.commit_transaction):
        producer.begin_transaction()
        for number in range(60):
            value = f"{outcome.__name__} {number}".encode()
            producer.produce(topic, value, partition=number % PARTITIONS)
        producer.flush(60)
        outcome(60)
    members = [
        Consumer(
            {
                "bootstrap.servers": server.bootstrap,
                "group.id": topic,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "log_level": 0,
            }
        )
        for _ in range(2)
    ]
    for member in members:
        member.subscribe([topic])
    values, deadline = [], time.monotonic() + 60
    while len(values) < 60 and time.monotonic() < deadline:
        for member in members:
            values += [one.value() for one in member.consume(100, 0.2) if one.error() is None]
    for member in members:
        member.close()
    assert sorted(values) == sorted(b"commit_transaction %d" % n for n in range(60))
    for port in (server.metrics_port, server.metrics_port + 1):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as page:
            assert b"kafka_" in page.read()


def test_a_killed_child_is_taken_over_and_comes_back(server, topic):
    create(server, topic)
    writer, watcher = load(server, topic)
    (pid,) = server.child_pids().values()
    killed_at = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: leaders(server, topic) == {0: PARTITIONS}, 60, "nobody took over")
    taken_s = time.monotonic() - killed_at
    go_on(writer)
    wait_for(lambda: list(server.child_pids().values()) not in ([], [pid]), 60, "not restarted")
    wait_for(lambda: answers(server.port + 1), 60, "it does not listen")
    back_s = time.monotonic() - killed_at
    go_on(writer)
    finish(server, topic, writer, watcher)
    figures.add(
        f"SIGKILL of a broker process: its partitions led by the other within {taken_s:.2f} s, "
        f"the process back within {back_s:.2f} s; {writer.sent_count} records, none wrong"
    )
    assert server.stop() == 0


def answers(port):
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def test_a_killed_parent_takes_its_children_along(server, topic):
    create(server, topic)
    writer, watcher = load(server, topic)
    pids = server.child_pids()
    assert list(pids) == ["broker-1"]
    server.kill()
    wait_for(lambda: all(map(is_gone, pids.values())), 5, "orphans")
    server.start()
    half = PARTITIONS // 2
    wait_for(lambda: leaders(server, topic) == {0: half, 1: half}, 60, "leaders did not come back")
    # No child ruled before the first process was there, so nothing was taken from anybody.
    log = server.log_since_start()
    assert re.findall(r"event=controller_elected node_id=(\d+)", log) == ["0"]
    assert "event=assignments_changed" not in log
    go_on(writer)
    finish(server, topic, writer, watcher)
    assert server.stop() == 0


def test_any_number_of_processes_finds_the_data_again(server, topic):
    """And a clean stop leaves no process, and nothing to replay."""
    create(server, topic)
    writer, watcher = load(server, topic)
    for count in (1, 3, 2, 1):
        pids = server.child_pids()
        # A start with fewer processes may change assignments; the stop is not to.
        before = len(server.log_since_start())
        assert server.stop() == 0
        assert "event=assignments_changed" not in server.log_since_start()[before:]
        assert all(map(is_gone, pids.values()))
        assert not list(server.data_dir.glob("*.sock"))
        server.restart(count)
        log = server.log_since_start()
        assert "event=replayed groups=0 records=0" in log
        assert set(re.findall(r"event=controller_elected node_id=(\d+)", log)) <= {"0"}
        # Even are those of all topics together: there may be offsets of groups.
        everybody = set(range(count))
        wait_for(lambda all_=everybody: set(leaders(server, topic)) == all_, 60, "not spread")
        go_on(writer)
    finish(server, topic, writer, watcher)
    assert server.stop() == 0


def test_what_cannot_be_is_refused(tmp_path):
    port = servers.free_port(4)

    def refusal(*options):
        command = [str(paths.python_script("quire")), "standalone", "--data-dir", str(tmp_path)]
        done = subprocess.run(
            [*command, "--processes", "2", *options],
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        return done.returncode, done.stderr

    code, told = refusal("--bookies", "2")
    assert (code, "not with --bookies 2" in told) == (2, True), told
    listeners = f"A://127.0.0.1:{port},B://127.0.0.1:{port + 1}"
    code, told = refusal(
        *("--set", f"listeners={listeners}", "--set", "inter.broker.listener.name=A"),
        *("--set", "listener.security.protocol.map=A:PLAINTEXT,B:PLAINTEXT"),
    )
    assert (code, "leave 1 port free after each" in told) == (2, True), told
    with socket.create_server(("127.0.0.1", port + 1)):
        code, told = refusal("--listen", f"127.0.0.1:{port}")
    assert (code, f"127.0.0.1:{port + 1}, for process 2" in told) == (1, True), told
    code, told = refusal("--listen", "127.0.0.1:65535")
    assert (code, "there is no port 65536" in told) == (2, True), told


def terminate_until_gone(pid):
    """Also while the process ends, when nobody waits for signals any more."""
    with suppress(ProcessLookupError):
        while True:
            os.kill(pid, signal.SIGTERM)
            time.sleep(0.001)


def test_who_is_stopped_by_others_too_ends_in_order_and_the_next_start_moves_nothing(server, topic):
    """A service manager sends SIGTERM to each process of a service, and the first one to its own.
    A broker that is to be given nothing looks uneven, and is an operator's wish."""
    entry = ConfigEntry("cordoned.log.dirs", "*", incremental_operation=AlterConfigOpType.SET)
    cordoned = ConfigResource(ConfigResource.Type.BROKER, "1", incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": server.bootstrap, "log_level": 0})
    admin.incremental_alter_configs([cordoned])[cordoned].result(60)
    both_know = "0:running 1:cordoned"
    wait_for(lambda: server.log_since_start().count(both_know) == 2, 60, "it is not cordoned")
    create(server, topic)
    assert leaders(server, topic) == {0: PARTITIONS}
    for _ in range(3):
        producer = Producer({"bootstrap.servers": server.bootstrap, "log_level": 0})
        for number in range(60):
            producer.produce(topic, b"%d" % number, partition=number % PARTITIONS)
        assert producer.flush(60) == 0
        before = len(server.log_since_start())
        (pid,) = server.child_pids().values()
        others = threading.Thread(target=terminate_until_gone, args=(pid,))
        others.start()
        assert server.stop() == 0
        others.join()
        log = server.log_since_start()[before:]
        codes = re.findall(r"event=broker_(?:stopped|died) broker=broker-1 .*code=(-?\d+)", log)
        assert codes == ["0"], log
        server.restart(2)
        assert "event=partitions_spread" not in server.log_since_start()
        assert leaders(server, topic) == {0: PARTITIONS}
    assert sum(map(len, read_all(server.bootstrap, topic, PARTITIONS).values())) == 180


def ask_until(over, port, told):
    """Adds brokers and controller to `told`, as often as that can be asked until `over`."""
    while not over.is_set():
        try:
            with raw.Connection(port) as connection:
                answer = connection.call(raw.METADATA, 1, raw.array())
        except (OSError, raw.Closed):
            time.sleep(0.001)
            continue
        brokers = []
        for _ in range(answer.number("i")):
            brokers.append(answer.number("i"))
            answer.string()
            answer.number("i")
            answer.string()
        told.append((tuple(brokers), answer.number("i")))


def test_no_client_is_told_of_no_broker_while_they_start(server):
    """What librdkafka's admin client, say, believes for a minute."""
    for _ in range(3):
        assert server.stop() == 0
        over, told = threading.Event(), {0: [], 1: []}
        threads = [
            threading.Thread(target=ask_until, args=(over, server.port + index, answers_))
            for index, answers_ in told.items()
        ]
        for thread in threads:
            thread.start()
        try:
            server.restart(2)
            # The main process is ready when the other is registered, which serves a moment later.
            wait_for(lambda told=told: all(told.values()), 60, "one of them answers nobody")
        finally:
            over.set()
            for thread in threads:
                thread.join()
        for index, answers_ in told.items():
            assert all(index in brokers for brokers, _ in answers_), set(answers_)
            assert all(controller in brokers for brokers, controller in answers_), set(answers_)
    assert server.stop() == 0


def secured_settings(server, *, between_brokers):
    at = f"SASL_PLAINTEXT://127.0.0.1:{server.port}"
    settings = {
        "listeners": at,
        "advertised.listeners": at,
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": JAAS,
        "security.inter.broker.protocol": "SASL_PLAINTEXT",
    }
    if between_brokers:
        settings["sasl.mechanism.inter.broker.protocol"] = "PLAIN"
    return settings


def test_every_process_asks_who_is_there(scratch, name, topic):
    one = SecuredServer(scratch / name("secured"))
    one.settings |= secured_settings(one, between_brokers=True)
    try:
        one.start()
        for port in (one.port, one.port + 1):
            address = {"bootstrap.servers": f"127.0.0.1:{port}", "log_level": 0}
            with pytest.raises(KafkaException):
                AdminClient(address).list_topics(timeout=3)
            with pytest.raises(KafkaException):
                AdminClient({**address, **LOGIN, "sasl.password": "x"}).list_topics(timeout=3)
            assert len(AdminClient({**address, **LOGIN}).list_topics(timeout=60).brokers) == 2
        admin = AdminClient({"bootstrap.servers": one.bootstrap, "log_level": 0, **LOGIN})
        admin.create_topics([NewTopic(topic, PARTITIONS)])[topic].result(60)
        producer = Producer(
            {
                "bootstrap.servers": one.bootstrap,
                "transactional.id": topic,
                "log_level": 0,
                **LOGIN,
            }
        )
        producer.init_transactions(60)
        producer.begin_transaction()
        for number in range(60):
            producer.produce(topic, b"%d" % number, partition=number % PARTITIONS)
        producer.commit_transaction(60)
        rows = read_all(one.bootstrap, topic, PARTITIONS, "read_committed", settings=LOGIN)
        assert sum(map(len, rows.values())) == 60
        modes = [path.stat().st_mode & 0o777 for path in one.data_dir.glob("*.sock")]
        modes.append((one.data_dir / "broker-1" / "server.properties").stat().st_mode & 0o777)
        assert modes == [0o600] * 3
        assert one.stop() == 0
        assert not re.search("broker-secret", one.log_tail(1 << 20))
    finally:
        one.discard()


def test_brokers_that_could_not_log_in_at_each_other_do_not_start(scratch, name):
    one = SecuredServer(scratch / name("refused"))
    one.settings |= secured_settings(one, between_brokers=False)
    try:
        with pytest.raises(RuntimeError, match=r"sasl\.mechanism\.inter\.broker\.protocol"):
            one.start()
    finally:
        one.discard()
