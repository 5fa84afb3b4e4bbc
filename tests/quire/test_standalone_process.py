"""`quire standalone` as an operator meets it: a process, its exit codes, its data directory."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

QUIRE = Path(sys.executable).parent / "quire"
SMALL = ("--set", "num.partitions=1", "--set", "group.initial.rebalance.delay.ms=0")
TIMEOUT_SECONDS = 60


@pytest.fixture
def start(tmp_path):
    """start(*arguments) -> a process; killed at the end of the test if it is still there."""
    processes = []

    def run(*arguments, directory="data"):
        command = [str(QUIRE), "standalone", "--listen", "127.0.0.1:0"]
        command += ["--data-dir", str(tmp_path / directory), *SMALL, *arguments]
        processes.append(
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
        return processes[-1]

    yield run
    for process in processes:
        process.kill()
        process.communicate()


def address_of(process):
    line = process.stdout.readline()
    assert line.startswith("ready listen="), line + process.stderr.read()
    return line.removeprefix("ready listen=").strip()


def produce(address, values):
    failed = []
    producer = Producer({"bootstrap.servers": address, "log_level": 0})
    for value in values:
        producer.produce("t", value, on_delivery=lambda error, _: error and failed.append(error))
    assert producer.flush(TIMEOUT_SECONDS) == 0
    assert failed == []


def consume(address, count):
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "g",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    consumer.subscribe(["t"])
    values = []
    while len(values) < count:
        messages = consumer.consume(count - len(values), TIMEOUT_SECONDS)
        assert messages, f"{len(values)} of {count}"
        assert all(message.error() is None for message in messages)
        values += [message.value() for message in messages]
    consumer.close()
    return values


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_what_was_acknowledged_is_there_after_a_restart(start, end):
    values = [b"%d" % number for number in range(500)]
    process = start()
    produce(address_of(process), values)
    process.send_signal(end)
    assert process.wait(TIMEOUT_SECONDS) == (0 if end == signal.SIGTERM else -end)

    process = start()
    address = address_of(process)
    produce(address, [b"after"])
    assert consume(address, 501) == [*values, b"after"]
    process.terminate()
    _, errors = process.communicate(timeout=TIMEOUT_SECONDS)
    assert process.returncode == 0, errors
    assert "level=error" not in errors
    assert "Traceback" not in errors
    assert " event=loop_turns " in errors, "of its loop it tells when it stops"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--set", "num.partition=1"), "num.partitions"),  # names the nearest right one
        (("--set", "num.partitions=many"), "num.partitions"),
        (("--set", "authorizer.class.name=x.Y"), "no other class can be asked than"),
        (("--set", "ssl.provider=BC"), "ssl.provider cannot be kept: this part of TLS is not"),
        (
            ("--set", "listeners=SASL_SSL://127.0.0.1:0"),
            "GSSAPI (Kerberos), for listener SASL_SSL, is not",
        ),
    ],
)
def test_a_wrong_setting_is_exit_code_2(start, arguments, message):
    process = start(*arguments)
    _, errors = process.communicate(timeout=TIMEOUT_SECONDS)
    assert process.returncode == 2, errors
    assert message in errors
    assert "Traceback" not in errors


@pytest.mark.slow
def test_one_server_for_a_data_directory_and_one_for_an_address(start):
    address = address_of(start())
    second = start()
    _, errors = second.communicate(timeout=TIMEOUT_SECONDS)
    assert second.returncode == 1
    assert "in use by another server" in errors
    assert "Traceback" not in errors

    third = start("--listen", address, directory="other")
    _, errors = third.communicate(timeout=TIMEOUT_SECONDS)
    assert third.returncode == 1
    assert "Address already in use" in errors
    assert "Traceback" not in errors


@pytest.mark.slow
def test_metrics_are_served(start):
    with socket.socket() as kept:  # bound, so that nobody else is given the port meanwhile
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind(("127.0.0.1", 0))
        port = kept.getsockname()[1]
        process = start("--metrics", f"127.0.0.1:{port}")
        address = address_of(process)
    produce(address, [b"x"] * 10)
    with socket.create_connection(("127.0.0.1", port), 10) as scraper:
        scraper.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        scraper.shutdown(socket.SHUT_WR)
        text = b"".join(iter(lambda: scraper.recv(65536), b"")).decode()
    assert 'kafka_log_log_logendoffset{partition="0",topic="t"} 10.0' in text
    assert 'kafka_network_requestmetrics_requests_total{request="Produce"} ' in text


@pytest.mark.slow
def test_the_configuration_file_and_what_wins(start, tmp_path):
    path = tmp_path / "server.properties"
    path.write_text("log.retention.hours = 1\nnonsense.setting = 1\n")
    process = start("--config", str(path))
    _, errors = process.communicate(timeout=TIMEOUT_SECONDS)
    assert process.returncode == 2
    assert "nonsense.setting" in errors
    os.remove(path)
