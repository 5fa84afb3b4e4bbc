"""A day of an operator with Kafka's own tools: what they say of us is what they say of the control.

Every tool runs in one JVM (java/kafka/OperatorSession.java), against a server of the session's own.
`control_session_answers.json` holds what the tools said of the control. To write it anew:
QUIRE_COMPAT_TARGET=control QUIRE_COMPAT_RECORD=1 python -m pytest test_operators_session.py
"""

import itertools
import json
import os
import re

import pytest
from harness import kafka_java, paths, servers
from harness.line_tool import LineTool

ANSWERS = paths.COMPAT / "control_session_answers.json"
SESSION = json.loads((paths.COMPAT / "operators_session.json").read_text())
#: Some dozen tools; the machine may have other things to do.
pytestmark = pytest.mark.timeout(600)


def classes():
    """By the name of a script of Kafka's, the class that it starts; as peers/kafka-tool has it."""
    text = (paths.COMPAT / "peers" / "kafka-tool").read_text()
    found = re.findall(r"^(kafka-[a-z0-9-]+)\) class=(\S+) ;;", text, re.M)
    return {name: main.replace("$tools", "org.apache.kafka.tools") for name, main in found}


def normalised(said, server):
    """Without what is another on every run: ports, folders, ids, times, widths of columns."""
    lines = []
    for line in said.splitlines():
        if not line.strip() or re.match(
            r"\s+at |\s+\.\.\. \d+ more|SLF4J|ended$|OperatorSession", line
        ):
            continue
        line = line.replace(server.bootstrap, "HOST:PORT").replace(str(server.port), "PORT")
        line = line.replace(str(server.data_dir), "DATA").replace(str(server.directory), "FOLDER")
        line = re.sub(r"(?<![\w-])[A-Za-z0-9_-]{22}(?![\w-])", "ID", line)
        line = re.sub(r"\b\d{13}\b", "TIME", line)
        line = re.sub(r'"size":\d+', '"size":N', line)
        line = re.sub(r"Epoch: \d+", "Epoch: N", line)
        lines.append(re.sub(r"\s+", " ", line).strip())
    return lines


@pytest.fixture(scope="module")
def own_server(scratch):
    """A server that nobody else has topics or groups on."""
    mine = servers.make_server(scratch / "operators-session").start()
    yield mine
    mine.discard()


@pytest.fixture(scope="module")
def said(own_server, scratch):
    """By command, in their order: its exit code and what it said, normalised."""
    folder = scratch / "operators-session-tools"
    folder.mkdir()
    for name, value in SESSION["files"].items():
        (folder / name).write_text(value if isinstance(value, str) else json.dumps(value))
    command = ["java", *kafka_java.SMALL_JVM, "-cp", kafka_java.class_path(folder)]
    tool = LineTool([*command, "OperatorSession"], folder / "tools.log", "Kafka's tools")
    mains = classes()
    answers = {}
    try:
        for number, line in zip(itertools.count(), SESSION["commands"], strict=False):
            name, *words = line.replace("FILES", str(folder)).split(" ")
            if "--bootstrap-controller" not in words:
                words = ["--bootstrap-server", own_server.bootstrap, *words]
            if name in SESSION["bootstrap_last"]:
                words = [*words[2:], *words[:2]]
            answer = tool.run(main=mains[name], arguments=words)
            told = answer["said"].replace(str(folder), "FILES")
            answers[f"{number}: {line}"] = [answer["code"], *normalised(told, own_server)]
    finally:
        tool.kill()
    return answers


@pytest.fixture(scope="module")
def recorded(said):
    if os.environ.get("QUIRE_COMPAT_RECORD"):
        assert servers.target() == "control", "only the control's answers are worth recording"
        ANSWERS.write_text(json.dumps(said, indent=1, ensure_ascii=False) + "\n")
    return json.loads(ANSWERS.read_text())


def test_the_tools_say_what_they_say_of_the_control(said, recorded):
    """operators_session.json has the differences on purpose, why, and what we say there."""
    assert said.keys() == recorded.keys()
    odd = []
    for key, answer in said.items():
        meant = SESSION["differences"].get(key.partition(": ")[2])
        expected = meant["quire"] if meant and servers.target() == "quire" else recorded[key]
        if sorted(map(str, answer)) != sorted(map(str, expected)):
            odd.append({"command": key, "said": answer, "expected": expected})
    assert odd == [], json.dumps(odd, indent=1, ensure_ascii=False)


def test_each_difference_is_one(recorded):
    """No excuse for what is equal, and each has a reason."""
    by_command = {key.partition(": ")[2]: answer for key, answer in recorded.items()}
    for command, meant in SESSION["differences"].items():
        assert meant["reason"], command
        assert sorted(map(str, meant["quire"])) != sorted(map(str, by_command[command])), command
