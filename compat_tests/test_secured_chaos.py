"""A cluster all of whose links are secured, while its brokers and bookies are killed, stopped and
frozen: nothing that was acknowledged or committed is lost, and nobody is ever let in without a
login. Minutes long, so a part of `make test-long`: QUIRE_SECURED_SECONDS says how long."""

import os
import random
import threading
import time

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from harness import figures, servers
from harness.brokers import wait_for
from harness.history import Watcher, Writer, check, read_all
from harness.secured import PASSWORDS, SecuredCluster

SECONDS = float(os.environ.get("QUIRE_SECURED_SECONDS", "0"))
pytestmark = [
    pytest.mark.skipif(servers.target() != "quire", reason="about our own processes"),
    pytest.mark.skipif(not SECONDS, reason="a part of make test-long"),
    pytest.mark.timeout(SECONDS + 600),
]

PARTITIONS = 6


@pytest.fixture(scope="module")
def cluster(scratch):
    made = SecuredCluster(
        scratch / "secured-chaos",
        **{
            "connections.max.reauth.ms": "10000",
            "auto.leader.rebalance.enable": "true",
            "leader.imbalance.check.interval.seconds": "5",
            "transaction.state.log.num.partitions": "6",
        },
    )
    try:
        made.start(brokers=3, bookies=4)
        made.wait_until_all_run()
        yield made
    finally:
        made.discard()


class Transactions(threading.Thread):
    """Transactions over all partitions, one in three aborted; who failed begins anew."""

    def __init__(self, settings, topic):
        super().__init__(name="transactions", daemon=True)
        self.settings, self.topic = settings, topic
        self.stopping = threading.Event()
        self.committed, self.aborted, self.unknown = [], [], []
        self.producer = None

    def run(self):
        number = 0
        while not self.stopping.is_set():
            number += 1
            values = [f"{number} {partition}".encode() for partition in range(PARTITIONS)]
            is_kept = number % 3 != 0
            try:
                if self.producer is None:
                    self.producer = Producer(self.settings)
                    self.producer.init_transactions(60)
                self.producer.begin_transaction()
                for partition, value in enumerate(values):
                    self.producer.produce(self.topic, value, partition=partition)
                if is_kept:
                    self.producer.commit_transaction(60)
                else:
                    self.producer.abort_transaction(60)
            except (KafkaException, BufferError):
                # The next one's init_transactions ends what is open.
                self.unknown += values
                self.producer = None
                time.sleep(0.5)
            else:
                (self.committed if is_kept else self.aborted).extend(values)
            time.sleep(0.1)


def strike(cluster, dice):
    """One fault, and its end; its name."""
    kind = dice.choice(["broker killed", "broker stopped", "broker frozen", "bookie killed"])
    if kind == "bookie killed":
        bookie = dice.choice(cluster.storage.bookies)
        bookie.kill()
        time.sleep(dice.uniform(0, 4))
        bookie.start()
        return kind
    broker = dice.choice(cluster.brokers)
    if kind == "broker frozen":
        broker.freeze()
        time.sleep(dice.uniform(1, 8))
        broker.thaw()
        return kind
    if kind == "broker killed":
        broker.kill()
    else:
        assert broker.stop() == 0
    time.sleep(dice.uniform(0, 4))
    broker.start()
    return kind


def test_nothing_is_lost_while_everything_breaks(cluster):
    seed = random.randrange(1 << 30)
    dice = random.Random(seed)
    admin = AdminClient(cluster.client("admin", log_level=0))
    topics = [NewTopic(name, PARTITIONS, 3) for name in ("plain", "transactions")]
    for made in admin.create_topics(topics).values():
        made.result(60)
    secured = cluster.client("admin")
    writer = Writer(cluster.bootstrap, "plain", PARTITIONS, settings=secured)
    watcher = Watcher(cluster.bootstrap, "plain", PARTITIONS, settings=secured)
    transactions = Transactions(
        {**secured, "transactional.id": "t", "transaction.timeout.ms": 20_000, "log_level": 0},
        "transactions",
    )
    for each in (writer, watcher, transactions):
        each.start()
    ends = time.monotonic() + SECONDS
    struck = []
    while time.monotonic() < ends:
        struck.append(strike(cluster, dice))
        before = len(writer.acked)
        wait_for(lambda before=before: len(writer.acked) > before + 20, 120, writer.state())
    transactions.stopping.set()
    transactions.join(180)
    assert not transactions.is_alive()
    writer.finish()
    cluster.wait_until_all_run()
    rows = read_all(cluster.bootstrap, "plain", PARTITIONS, settings=secured)
    watcher.finish()
    wrong = check(writer, watcher, rows)
    last = Producer({**secured, "transactional.id": "t"})
    last.init_transactions(60)  # ends what was left open
    read = read_all(
        cluster.bootstrap, "transactions", PARTITIONS, "read_committed", settings=secured
    )
    values = [value for row in read.values() for _, value in row]
    lost = set(transactions.committed) - set(values)
    shown = set(values) & set(transactions.aborted)
    wrong += [f"committed and not there: {sorted(lost)[:5]}"] if lost else []
    wrong += [f"aborted and there: {sorted(shown)[:5]}"] if shown else []
    wrong += ["twice"] if len(values) != len(set(values)) else []
    figures.add(
        f"secured: seed {seed}, {len(struck)} faults, {len(writer.acked)} records acked,"
        f" {len(transactions.committed)} committed, {len(wrong)} wrong"
    )
    assert wrong == [], seed
    logs = "".join(each.log_tail(1 << 24) for each in cluster.brokers)
    for password in PASSWORDS.values():
        assert password not in logs
    assert transactions.committed
