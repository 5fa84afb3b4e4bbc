"""Topics that are made, written to and deleted again: in the end no bookie has anything of them."""

import threading
import time
from contextlib import suppress

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from .workloads import Workload, holders

PREFIX = "chaos-doomed"
PARTITIONS, RECORDS = 2, 40
PAUSE_S = 1.0
#: Until brokers have deleted the ledgers, and until bookies have collected them, beyond the time
#: that a ledger must be missing for.
FORGOTTEN_WITHIN_S, COLLECTED_WITHIN_S = 180.0, 240.0


class TopicDeleting(Workload):
    """One topic after another. What an operation came to is looked up at the end."""

    name = "deleted topics"
    silent_s = 180.0

    def __init__(self, world) -> None:
        super().__init__(world)
        self.admin = AdminClient({"bootstrap.servers": world.bootstrap, "log_level": 0})
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        #: Which were theirs, as far as that was seen before they were deleted.
        self.ledger_ids: set[int] = set()
        self._looked_at: set[int] = set()
        self.deleted_count = 0
        self.collected_after_s = 0.0

    def start(self) -> None:
        # Nobody waits for its first topic.
        self.gaps[0].moments.append(time.monotonic())
        self.thread.start()

    def _run(self) -> None:
        number = 0
        while not self.stopping.wait(PAUSE_S):
            number += 1
            # What fails is to be expected, and the topic is left to the end.
            with suppress(KafkaException, TimeoutError):
                self._make_and_delete(f"{PREFIX}-{number}")
                self.gaps[0].moments.append(time.monotonic())

    def _make_and_delete(self, topic: str) -> None:
        self.admin.create_topics([NewTopic(topic, PARTITIONS, 3)])[topic].result(30)
        settings = {"bootstrap.servers": self.world.bootstrap, "log_level": 0}
        producer = Producer({**settings, "message.timeout.ms": 20_000})
        for record in range(RECORDS):
            producer.produce(topic, bytes(200), partition=record % PARTITIONS)
        producer.flush(30)
        self._note_ledgers()
        self.admin.delete_topics([topic])[topic].result(30)
        self.deleted_count += 1

    def _note_ledgers(self) -> set[int]:
        """Those of deleted topics that metadata has now."""
        cluster, found = self.world.cluster, set()
        for path, ledger_id in _ledgers(cluster):
            if ledger_id in self._looked_at and ledger_id not in self.ledger_ids:
                continue
            data = cluster.get(path)  # None: deleted meanwhile
            if data is None:
                continue
            # The topic's name is in the custom metadata.
            if PREFIX.encode() in data:
                found.add(ledger_id)
            self._looked_at.add(ledger_id)
        self.ledger_ids |= found
        return found

    def finish(self) -> None:
        self.stopping.set()
        self.thread.join(120)
        self._until(self._delete_the_rest, FORGOTTEN_WITHIN_S, "topics cannot be deleted")

    def close(self) -> None:
        self.stopping.set()

    def _delete_the_rest(self) -> bool:
        left = []
        with suppress(KafkaException, TimeoutError):
            left = [t for t in self.admin.list_topics(timeout=30).topics if t.startswith(PREFIX)]
            for topic, future in self.admin.delete_topics(left).items() if left else ():
                with suppress(KafkaException, TimeoutError):
                    future.result(30)
                    left.remove(topic)
                    self.deleted_count += 1
            return not left
        return False

    def _until(self, condition, timeout_s: float, words: str) -> float:
        started = time.monotonic()
        while not condition():
            if time.monotonic() > started + timeout_s:
                self.wrong.append(f"{self.name}: {words}, after {timeout_s:.0f} s")
                break
            time.sleep(0.5)
        return time.monotonic() - started

    def check(self) -> list[str]:
        """While brokers and bookies run."""
        if not self.ledger_ids:
            self.wrong.append(f"{self.name}: no ledger of one was seen, so nothing was proven")
        self._until(
            lambda: not self._note_ledgers(), FORGOTTEN_WITHIN_S, "metadata still has their ledgers"
        )
        self.collected_after_s = self._until(
            lambda: not self._kept(), COLLECTED_WITHIN_S, f"bookies still have {self._kept()}"
        )
        return list(self.wrong)

    def _kept(self) -> list[dict]:
        told = holders(self.world, sorted(self.ledger_ids)).values()
        return [each for each in told if each["having"] or each["silent"]][:5]

    def describe(self) -> str:
        return (
            f"{self.name}: {self.deleted_count} deleted, {len(self.ledger_ids)} ledgers of theirs "
            f"seen, of which no bookie has anything {self.collected_after_s:.0f} s after metadata "
            f"forgot the last"
        )


def _ledgers(cluster, below: str = "", digits: str = ""):
    """(path below the root, id) of all ledgers of the hierarchical layouts."""
    for name in cluster.children(below):
        path = f"{below}/{name}" if below else name
        if name.startswith("L") and name[1:].isdigit():
            yield path, int(digits + name[1:])
        elif name.isdigit() and len(name) <= 4:
            yield from _ledgers(cluster, path, digits + name)
