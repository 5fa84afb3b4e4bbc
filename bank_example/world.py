"""The processes of the example: who runs, who is started again, who is killed."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from bank_example.bank import TOPIC

TELLERS = ("teller-1", "teller-2")
#: Of those who share a PostgreSQL, if there is one.
SHARING = ("teller-3", "teller-4")
START_SECONDS = 60
LOOK_SECONDS = 0.2


def commands(folder, listen, postgres):
    """name -> what runs it."""
    quire = str(Path(sys.executable).parent / "quire")
    server = [quire, "standalone", "--listen", listen, "--data-dir", str(folder / "data")]
    teller = [sys.executable, "-m", "bank_example", "teller", "--listen", listen]
    own = {name: [*teller, "--database", str(folder / f"{name}.db")] for name in TELLERS}
    shared = {name: [*teller, "--postgres", postgres] for name in SHARING} if postgres else {}
    return {"server": server, **own, **shared}


class World:
    def __init__(self, folder, listen, postgres=None):
        self._folder, self._listen = folder, listen
        self._commands = commands(folder, listen, postgres)
        self._running = {}

    def start(self, name):
        with (self._folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(self._commands[name], stdout=log, stderr=log)
        self._running[name] = process
        part = self._folder / f"{name}.pid.part"
        part.write_text(str(process.pid))
        part.rename(self._folder / f"{name}.pid")

    def run(self, seconds):
        """Until it is over, or interrupted; 0 seconds: for ever."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for left in self._folder.glob(
            "*.pid"
        ):  # of one that was killed; others may have the numbers
            left.unlink()
        until = time.monotonic() + seconds if seconds else float("inf")
        try:
            self.start("server")
            make_topic(self._listen)
            for name in self._commands:
                if name != "server":
                    self.start(name)
            print("running", flush=True)
            while time.monotonic() < until:
                for name, process in list(self._running.items()):
                    if process.poll() is not None:
                        print(f"{name} ended with {process.returncode}: again", flush=True)
                        self.start(name)
                time.sleep(LOOK_SECONDS)
        finally:
            for name in reversed(self._running):
                self._running[name].kill()
                self._running[name].wait()
                (self._folder / f"{name}.pid").unlink(missing_ok=True)


def make_topic(listen):
    """Once the server answers; the topic of an earlier run stays."""
    until = time.monotonic() + START_SECONDS
    configs = {"quire.locks": "required", "retention.ms": "-1"}
    while True:
        admin = AdminClient({"bootstrap.servers": listen})
        try:
            if TOPIC not in admin.list_topics(timeout=5).topics:
                admin.create_topics([NewTopic(TOPIC, 1, config=configs)])[TOPIC].result(30)
            return
        except KafkaException:
            if time.monotonic() > until:
                raise


def kill_some(folder, seconds, between):
    """One of the processes, chosen at random, every `between` seconds or so. How many times."""
    until, count = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        time.sleep(random.uniform(0.5, 1.5) * between)
        try:
            chosen = random.choice(sorted(folder.glob("*.pid")))
            os.kill(int(chosen.read_text()), signal.SIGKILL)
        except (IndexError, FileNotFoundError, ProcessLookupError):
            continue
        print(f"killed {chosen.stem}", flush=True)
        count += 1
    return count
