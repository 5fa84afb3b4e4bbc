"""docs/operators-guide.md: the commands of its sections about clusters are run, in the order of the
page, on one machine. (That all its other commands exist is checked by tests/quire/test_guide.py.)

What stands for other machines has its folders, ports and names replaced; between the sections is
done what their text presumes (a broker's machine that is gone, a disk that is empty).
"""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import time

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from harness import paths, servers, tools
from harness.servers import HOST, die_with_parent, free_port

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(servers.target() != "quire", reason="our own page"),
]

PAGE = paths.ROOT / "docs" / "operators-guide.md"
#: The sections that are followed: the others are about one server, or about another cluster.
SECTIONS = {
    "On one machine, for trying it out and for tests",
    "On several machines",
    "Look at a cluster",
    "Remove a bookie or a broker",
    "Replace a disk",
    "Upgrade",
    "Move leaders and partitions",
    "Repair lost copies",
    "A partition is stuck",
    "Ledgers are not repaired",
}
QUIRE = str(paths.python_script("quire"))
VALUES = [b"%d" % n for n in range(100)]
DIRECTORY = "/srv/quire-cluster"
#: Auto-recovery runs, and may still be making the copies that a killed bookie has missed. Who
#: has no time for two seconds does not answer.
EVENTUALLY = ("quire ledger check", "quire cluster why orders-0")
PAGES = "http://127.0.0.1:9600"
#: Exit codes that are no failures: a question whose answer is «there are problems».
CODES = {"quire cluster status": (0, 1), "quire bookie repair-report": (0, 1)}


def commands():
    """(section, command), from indented lines and the first column of tables."""
    section, found = "", []
    for line in PAGE.read_text().splitlines():
        if heading := re.match(r"##+ (.*)", line):
            section = heading[1]
        if section not in SECTIONS:
            continue
        indented = re.match(r"    ((?:quire|kafka-\S+|export) .*)", line)
        table = re.match(r"\| `(quire [^`]*)`", line)
        if match := indented or table:
            found.append((section, match[1].partition("#")[0].strip()))
    return found


def wait_for(condition, timeout_s, what):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, what() if callable(what) else what
        time.sleep(0.1)


class Machine:
    """Where the page is followed."""

    def __init__(self, directory):
        self.directory = directory
        self.cluster = directory / "cluster"
        self.environment = dict(os.environ)
        self.running = []
        self.done = []
        self.up = None

    def background(self, words, ready, name):
        output = self.directory / f"{name}.out"
        with output.open("w") as out:
            process = subprocess.Popen(
                words, cwd=self.directory, env=self.environment,
                stdout=out, stderr=out, preexec_fn=die_with_parent,
            )  # fmt: skip
        self.running.append(process)
        wait_for(
            lambda: re.search(ready, output.read_text(), re.M) or process.poll() is not None,
            120,
            f"{name}: no «{ready}»",
        )
        assert process.poll() is None, output.read_text()
        return process, output

    def end(self, process):
        process.send_signal(signal.SIGTERM)
        assert process.wait(90) == 0

    def run(self, command):
        self.done.append(command)
        words = shlex.split(command.replace(DIRECTORY, str(self.cluster)))
        codes = next((codes for text, codes in CODES.items() if command.startswith(text)), (0,))
        done = None

        def is_done():
            nonlocal done
            done = subprocess.run(
                [QUIRE, *words[1:]], cwd=self.directory, env=self.environment,
                capture_output=True, text=True, timeout=180, check=False,
            )  # fmt: skip
            return done.returncode in codes or not command.startswith(EVENTUALLY)

        wait_for(is_done, 120, lambda: f"{command}\n{done.stdout}{done.stderr}")
        assert done.returncode in codes, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout

    def fact(self, name):
        return re.search(rf"^{name} +(\S+)", self.said.read_text(), re.M)[1]

    def healthy(self):
        """Waits for it: who looks between the two registrations of a bookie that is started anew
        marks the ledgers that name it, and a worker takes that back."""

        def is_healthy():
            words = [QUIRE, "cluster", "status", "--json"]
            done = subprocess.run(
                words, env=self.environment, capture_output=True, text=True, timeout=60, check=False
            )
            self.status = done.stdout + done.stderr
            return done.returncode == 0

        wait_for(is_healthy, 120, lambda: self.status)

    def kafka(self, command):
        self.done.append(command)
        name, *arguments = shlex.split(command.replace("…", self.fact("brokers"), 1))
        arguments = ["orders" if each == "…" else each for each in arguments]
        arguments = [str(self.directory / "plan.json") if each == "plan.json" else each
                     for each in arguments]  # fmt: skip
        return tools.java(name, *arguments)


@pytest.fixture
def machine(tmp_path):
    made = Machine(tmp_path)
    yield made
    for process in reversed(made.running):
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def start_cluster(machine, command):
    machine.done.append(command)
    words = shlex.split(command.replace(DIRECTORY, str(machine.cluster)))
    words += ["--listen-from", str(free_port(3))]
    machine.up, machine.said = machine.background([QUIRE, *words[1:]], r"^ready ", "up")
    machine.environment["QUIRE_METADATA_SERVICE_URI"] = machine.fact("metadata")
    admin = AdminClient({"bootstrap.servers": machine.fact("brokers")})
    admin.create_topics([NewTopic("orders", 3, 3)])["orders"].result(60)
    producer = Producer({"bootstrap.servers": machine.fact("brokers")})
    failed = []
    for value in VALUES:
        producer.produce("orders", value, on_delivery=lambda e, _: e and failed.append(e))
    assert producer.flush(60) == 0
    assert failed == []


def on_another_machine(machine, command):
    """With the example of a running one as the configuration, and places of its own."""
    machine.done.append(command)
    kind = shlex.split(command)[1]
    example = {"bookie": "bookie-1", "autorecovery": "bookie-1", "broker": "broker-1"}[kind]
    name = "server.properties" if kind == "broker" else "bk_server.conf"
    text = (machine.cluster / example / name).read_text()
    folder = machine.directory / f"other-{kind}-{len(machine.done)}"
    folder.mkdir()
    lines = []
    for line in text.splitlines():
        key, _, value = line.partition("=")
        value = value.replace(str(machine.cluster / example), str(folder))
        if key in ("bookiePort", "httpServerPort", "prometheusStatsHttpPort"):
            value = str(free_port())
        elif key == "bookieId":
            value = f"other-{len(machine.done)}"
        elif key == "node.id":
            value = "9"
        elif key in ("listeners", "advertised.listeners"):
            value = re.sub(r":\d+", f":{free_port()}", value)
        lines.append(f"{key}={value}" if key and not key.startswith("#") else line)
    (folder / name).write_text("\n".join(lines) + "\n")
    command = command.replace(name, str(folder / name))
    command = re.sub(r"127\.0\.0\.1:\d+", lambda _: f"{HOST}:{free_port()}", command)
    ready = "autorecovery_started" if kind == "autorecovery" else "^ready "
    words = [QUIRE, *shlex.split(command)[1:]]
    process, _ = machine.background(words, ready, folder.name)
    return process, dict(line.split("=", 1) for line in lines if "=" in line)


def extra_bookie(machine):
    """One that ran and is gone; its name."""
    process, values = on_another_machine(machine, "quire bookie --config bk_server.conf")
    machine.done.pop()
    machine.end(process)
    return values.get("bookieId") or f"{HOST}:{values['bookiePort']}"


def wipe(machine, name):
    """Its disk: what it keeps, not its settings."""
    for path in (machine.cluster / name).iterdir():
        if path.is_dir():
            shutil.rmtree(path)


def follow(machine, command):
    first = " ".join(command.split()[:2])
    if first == "quire cluster" and command.split()[2] == "up":
        start_cluster(machine, command)
    elif command.startswith("export"):
        machine.done.append(command)
        name, _, value = command.removeprefix("export ").partition("=")
        ours = machine.environment[name]
        assert re.sub(r":\d+/", ":/", ours) == re.sub(r":\d+/", ":/", value)
    elif first in ("quire bookie", "quire autorecovery", "quire broker") and "--config" in command:
        process, _ = on_another_machine(machine, command)
        machine.end(process)
    elif command.startswith("kafka-"):
        machine.kafka(command)
    elif PAGES in command:
        machine.run(command.replace(PAGES, pages_of(machine, 1)))
        machine.done[-1] = command
    elif "HOST:PORT" in command:
        machine.run(command.replace("HOST:PORT", extra_bookie(machine)))
        machine.done[-1] = command
    else:
        machine.run(command.replace("TOPIC-PARTITION", "orders-0").replace("[TOPIC]", "orders"))
        machine.done[-1] = command


@pytest.mark.timeout(900)
def test_every_command_about_clusters(machine):
    listed = commands()
    assert {section for section, _ in listed} == SECTIONS
    plan = [{"topic": "orders", "partition": n, "replicas": [2, 1, 3]} for n in range(3)]
    (machine.directory / "plan.json").write_text(json.dumps({"version": 1, "partitions": plan}))
    has_new_disk = False
    for section, command in listed:
        if section == "Replace a disk" and not has_new_disk:
            has_new_disk = True
            # Four bookies again, and the third one's disk is empty.
            wipe(machine, "bookie-4")
            machine.run(f"quire cluster start bookie-4 --directory {DIRECTORY}")
            machine.done.pop()
            wait_for(
                lambda: mode_of(machine, "bookie-4") == "writable", 60, "bookie-4 is not there"
            )
            machine.run(f"quire cluster stop bookie-3 --directory {DIRECTORY}")
            machine.done.pop()
            wipe(machine, "bookie-3")
        if command.startswith("kafka-cluster unregister"):
            machine.run(f"quire cluster stop broker-3 --directory {DIRECTORY}")
            machine.done.pop()
        follow(machine, command)
        if "cluster start broker-1" in command:
            remove_strangers(machine)
            machine.healthy()
    assert machine.done == [command for _, command in listed]
    remove_strangers(machine)
    machine.healthy()
    consumer = Consumer(
        {"bootstrap.servers": machine.fact("brokers"), "group.id": "g",
         "auto.offset.reset": "earliest"}
    )  # fmt: skip
    consumer.subscribe(["orders"])
    found = []
    deadline = time.monotonic() + 90
    while len(found) < len(VALUES):
        assert time.monotonic() < deadline, len(found)
        found += [each.value() for each in consumer.consume(100, 1) if each.error() is None]
    consumer.close()
    assert sorted(found) == sorted(VALUES)
    machine.end(machine.up)


def pages_of(machine, broker):
    return next(row["pages"] for row in rows(machine, "brokers") if row["broker"] == broker)


def bookies(machine):
    return rows(machine, "bookies")


def rows(machine, what):
    done = subprocess.run(
        [QUIRE, "cluster", what, "--json"],
        env=machine.environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    return json.loads(done.stdout)


def mode_of(machine, bookie):
    return next((row["mode"] for row in bookies(machine) if row["bookie"] == bookie), None)


def remove_strangers(machine):
    """The bookies of «other machines» ran for a moment only: their cookies go."""
    for row in bookies(machine):
        if row["bookie"].startswith("other-") and row["mode"] == "unavailable":
            machine.run(f"quire bookie decommission {row['bookie']}")
            machine.done.pop()
