"""An operator's session with Kafka's tools: quotas, features, client metrics, and what is refused.

`control_admin_answers.json` holds what the same commands said of the control. To write it anew:
QUIRE_COMPAT_TARGET=control QUIRE_COMPAT_RECORD=1 python -m pytest compat_tests/test_admin_tools.py
"""

import json
import os
import re

import pytest
from harness import paths, servers, tools

ANSWERS = paths.COMPAT / "control_admin_answers.json"
#: A JVM each; the machine may have other things to do.
pytestmark = pytest.mark.timeout(900)

LIMITS = "producer_byte_rate=1000000000,consumer_byte_rate=2000000000,request_percentage=15000"
SESSIONS = {
    "quotas": [
        f"kafka-configs --entity-type clients --entity-name c --alter --add-config {LIMITS}",
        "kafka-configs --entity-type clients --entity-name c --describe",
        "kafka-configs --entity-type users --entity-name u --entity-type clients --entity-default"
        " --alter --add-config controller_mutation_rate=2.5",
        "kafka-configs --entity-type users --entity-name u --entity-type clients --entity-default"
        " --describe",
        "kafka-configs --entity-type users --entity-default --alter --add-config"
        " request_percentage=20000",
        "kafka-configs --entity-type users --entity-default --describe",
        "kafka-configs --entity-type ips --entity-name 10.1.2.3 --alter --add-config"
        " connection_creation_rate=7",
        "kafka-configs --entity-type ips --describe",
        "kafka-configs --entity-type clients --entity-name c --alter --delete-config"
        " producer_byte_rate,consumer_byte_rate,request_percentage",
        "kafka-configs --entity-type clients --describe",
        "kafka-configs --entity-type users --entity-default --alter --delete-config"
        " request_percentage",
        "kafka-configs --entity-type users --entity-name u --describe",
    ],
    "features": [
        "kafka-features upgrade --feature transaction.version=2",
        "kafka-features downgrade --feature transaction.version=1",
        "kafka-features describe",
        "kafka-features upgrade --feature transaction.version=9",
        "kafka-features upgrade --feature nope=1",
        "kafka-features disable --feature transaction.version",
        "kafka-features describe",
        "kafka-features upgrade --feature transaction.version=2",
        "kafka-features downgrade --feature transaction.version=1 --dry-run",
    ],
    "client metrics": [
        "kafka-client-metrics --alter --name all --metrics * --interval 60000",
        "kafka-client-metrics --describe --name all",
        "kafka-client-metrics --list",
        "kafka-client-metrics --delete --name all",
        "kafka-client-metrics --list",
    ],
}
#: Of what is not there quire alone is asked: the control has an authorizer, and KRaft.
REFUSED = {
    "kafka-acls --list": "SecurityDisabledException: No Authorizer is configured on the broker",
    "kafka-metadata-quorum describe --status": "There is no Raft quorum",
    "DelegationTokenCommand --command-config /dev/null --describe": "Delegation Token requests are"
    " not allowed on PLAINTEXT",
}


def said_by(output):
    """What the tool said of its own accord, in an order of its own; only of features of both."""
    lines = []
    for line in output.splitlines():
        if not line.strip() or "SLF4J" in line or re.match(r"\s+at |\[\d{4}-", line):
            continue
        if line.startswith("Feature: "):
            if not line.startswith("Feature: transaction.version"):
                continue
            line = re.sub(r"Epoch: \d+", "Epoch: N", line)
        # A set of a map's entries, in the order of hashes.
        head, found, settings = line.partition(" are ")
        if found:
            line = head + found + ", ".join(sorted(settings.split(", ")))
        lines.append(line.rstrip())
    return sorted(lines)


@pytest.fixture(scope="module")
def recorded():
    """The control's answers; recorded anew, and written at the end, if asked."""
    if not os.environ.get("QUIRE_COMPAT_RECORD"):
        yield json.loads(ANSWERS.read_text())
        return
    assert servers.target() == "control", "only the control's answers are worth recording"
    answers = {}
    yield answers
    ANSWERS.write_text(json.dumps(answers, indent=1, ensure_ascii=False) + "\n")


def run(server, command, **options):
    name, *arguments = command.split(" ")
    return tools.java(name, "--bootstrap-server", server.bootstrap, *arguments, **options)


@pytest.mark.parametrize("session", SESSIONS)
def test_tools_say_what_they_say_of_the_control(session, server, recorded):
    for number, command in enumerate(SESSIONS[session]):
        said = said_by(run(server, command, code=None))
        key = f"{session} {number}: {command}"
        if os.environ.get("QUIRE_COMPAT_RECORD"):
            recorded[key] = said
        assert said == recorded[key], key


@pytest.mark.skipif(servers.target() == "control", reason="it has what is refused here")
@pytest.mark.parametrize("command", REFUSED)
def test_what_is_not_there_is_told(command, server):
    assert REFUSED[command] in run(server, command, code=None)


@pytest.mark.skipif(servers.target() == "control", reason="its page of metrics is another one")
def test_a_client_s_metrics_are_asked_for(server, topic):
    """A producer of Kafka's learns its subscription, and pushes at its end at the latest."""
    run(server, "kafka-client-metrics --alter --name now --metrics * --interval 100")
    try:
        said = tools.java(
            *("kafka-producer-perf-test", "--topic", topic, "--num-records", "2000"),
            *("--throughput", "1000", "--record-size", "100"),
            *("--producer-props", f"bootstrap.servers={server.bootstrap}"),
        )
    finally:
        run(server, "kafka-client-metrics --delete --name now")
    assert "2000 records sent" in said
    assert "handler_failed" not in server.log_tail(1 << 20)
    assert "bad_request" not in server.log_tail(1 << 20)
