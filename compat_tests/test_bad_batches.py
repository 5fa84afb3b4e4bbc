"""Batches that lie, answered with exactly the error codes of Apache Kafka.

control_answers.json holds what the control answered to the very same bytes. To write it anew:
QUIRE_COMPAT_TARGET=control QUIRE_COMPAT_RECORD=1 python -m pytest compat_tests/test_bad_batches.py
"""

import json
import os
import time

import pytest
from harness import paths, servers
from harness.bad_batches import CASES, TOPIC_CONFIGS, agrees, answer_to
from harness.raw import Closed, Connection, batch, record

ANSWERS = paths.COMPAT / "control_answers.json"


#: Where quire refuses on purpose what the control takes, or says it in another way: why.
DEVIATIONS = {
    "record offsets out of step": "Kafka rewrites records; here a batch is stored as it came",
    "record offsets twice the same": "Kafka rewrites records; here a batch is stored as it came",
    "append time set by the client": "Kafka resets it; here only the broker may set it",
    "producer id without epoch": "no producer sends it, and it could not be deduplicated",
    "duplicate of one too old": "a sure duplicate: producers take that for success, not for a gap",
}


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


@pytest.mark.parametrize("case", CASES)
def test_answer_is_the_controls(case, server, topic, recorded):
    if servers.target() == "quire" and case in DEVIATIONS:
        with Connection(server.port) as connection:
            assert connection.create_topic(topic, 1, TOPIC_CONFIGS[case]) == 0
            assert answer_to(case, server.port, topic)["error"] != "NONE", DEVIATIONS[case]
            before = connection.end_offset(topic)
            after = connection.produce(topic, batch([b"after"]))
            assert (after.error, after.base_offset) == ("NONE", before)
        return
    with Connection(server.port) as connection:
        assert connection.create_topic(topic, 1, TOPIC_CONFIGS[case]) == 0
        # Metadata of a new topic takes a moment to reach every part of a broker.
        deadline = time.monotonic() + 10
        while connection.fetch(topic, 0)[0] != "NONE" and time.monotonic() < deadline:
            time.sleep(0.02)
        answer = answer_to(case, server.port, topic)
        if os.environ.get("QUIRE_COMPAT_RECORD"):
            recorded[case] = answer
        assert agrees(answer, recorded[case]), f"{answer}\nthe control: {recorded[case]}"
        # The partition still works, and starts where the answer says.
        key = b"k" if "compact" in case else None
        after = connection.produce(topic, batch([b"after"], key=key))
        assert (after.error, after.base_offset) == ("NONE", answer["end_offset"])


@pytest.mark.parametrize(
    "delta_ms",
    [0, 1 << 33, 1 << 36, 1 << 40],
)
def test_timestamps_of_a_batch_may_be_far_apart(server, topic, delta_ms):
    """A record's timestamp delta is 64 bits, unlike its other varints: 34 years fit in a batch."""
    with Connection(server.port) as connection:
        assert connection.create_topic(topic) == 0
        body = record(0, b"a") + record(1, b"b", time_delta=delta_ms)
        one = batch([b"a", b"b"], body=body, timestamp_ms=1, max_timestamp_ms=1 + delta_ms)
        deadline = time.monotonic() + 10
        while connection.fetch(topic, 0)[0] != "NONE" and time.monotonic() < deadline:
            time.sleep(0.02)
        answer = connection.produce(topic, one)
        assert (answer.error, answer.base_offset) == ("NONE", 0), answer
        assert connection.end_offset(topic) == 2


def test_null_records_are_answered_or_hung_up_on(server, topic):
    """The control does neither, so there is nothing to compare with; waiting for ever is wrong."""
    if servers.target() == "control":
        pytest.skip("the control never answers")
    with Connection(server.port) as connection:
        assert connection.create_topic(topic) == 0
        try:
            answer = connection.produce(topic, None)
        except Closed:
            return
        assert answer.error != "NONE"
        assert connection.end_offset(topic) == 0


def test_every_recorded_case_is_still_a_case(recorded):
    assert list(recorded) == list(CASES)
