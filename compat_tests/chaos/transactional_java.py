"""The workers and readers of transactional.py by Java's client, all in one process.

It runs java/kafka/ChaosTransactions.java, and speaks version 2 of transactions (KIP-890)."""

import time
from collections import defaultdict

from .java_process import JavaProcess
from .kafka_writers import REQUEST_TIMEOUT_MS
from .transactional_judges import KEYS, OUT_PARTITIONS
from .workloads import Gaps

#: Of the cluster, and so of Java's clients.
TRANSACTION_VERSION = 2
CLIENT_SETTINGS = {
    "request.timeout.ms": str(REQUEST_TIMEOUT_MS),
    "reconnect.backoff.ms": "20",
    "reconnect.backoff.max.ms": "200",
    "metadata.max.age.ms": "2000",
}


class JavaTransactions:
    """`committed`, by partition of the source: the next offset, as far as its worker knows it to be
    committed. `seen`, by topic: all that the reader of committed records saw of it. `counts`: by
    what transactions came to."""

    def __init__(self, world, options: dict[str, object], gaps: dict[int, Gaps]) -> None:
        """`options`: names of topics, sizes and times; `gaps` of the partitions that its workers
        have."""
        self.gaps = gaps
        self.committed = dict.fromkeys(gaps, 0)
        self.counts: dict[str, int] = defaultdict(int)
        self.wrong: list[str] = []
        self.last_failure = ""
        self.started: dict[str, object] = {}
        self.has_ended = self.is_finished = False
        self.options = {
            **options,
            "client": {**CLIENT_SETTINGS, "bootstrap.servers": world.bootstrap},
            "workers": sorted(gaps),
            "out_partitions": OUT_PARTITIONS,
            "keys": KEYS,
        }
        self.seen: dict[str, dict[tuple[int, int], bytes]] = {
            topic: {} for topic in self.options["read"]
        }
        #: By topic and partition: the last offset that its reader saw.
        self.last_seen: dict[tuple[str, int], int] = {}
        self._process = JavaProcess("ChaosTransactions", 0, world, self.options, self._note)

    def _note(self, _number: int, event: dict) -> None:
        kind = event["event"]
        if kind == "seen":
            place = event["partition"], event["offset"]
            self.seen[event["topic"]][place] = event["value"].encode()
            self.last_seen[event["topic"], place[0]] = max(
                self.last_seen.get((event["topic"], place[0]), -1), place[1]
            )
        elif kind == "committed":
            self.committed[event["partition"]] = event["committed"]
            self.counts["committed"] += 1
            self.counts["records"] += event["records"]
            self.gaps[event["partition"]].moments.append(time.monotonic())
        elif kind == "went-back":
            self.committed[event["partition"]] = event["committed"]
        elif kind == "aborted":
            self.counts["aborted"] += 1
        elif kind == "producer":
            self.counts["producers"] += 1
        elif kind == "failed":
            self.counts[event["what"]] += 1
            self.last_failure = event["words"]
        elif kind == "wrong":
            self.wrong.append(f"java: {event['words']}")
        elif kind == "started":
            self.started = event
            if event["transaction_version"] != TRANSACTION_VERSION:
                self.wrong.append(f"java: not of version {TRANSACTION_VERSION}: {event}")
        elif kind == "ended":
            self.has_ended = True

    def look_after(self) -> None:
        code = self._process.process.poll()
        if not self.is_finished and code is not None:
            self.is_finished = True
            self.wrong.append(f"java: ended with {code}: {self._process.log_end()}")

    def finish(self, timeout_s: float) -> None:
        """Its workers end what they have begun."""
        if self.is_finished:
            return
        self.is_finished = True
        self._process.leave()
        if not self._process.has_left(timeout_s):
            self.wrong.append(f"java: does not end: {self._process.log_end()}")
        if not self.has_ended:
            self.wrong.append(f"java: ended without a word: {self._process.log_end()}")

    def close(self) -> None:
        self.is_finished = True
        self._process.kill()
