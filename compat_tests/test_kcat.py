"""kcat of the distribution: librdkafka 2.0.2, our old client (Produce 7, Fetch 11, no ids)."""

import json
import time

import pytest
from harness import tools


@pytest.fixture
def kcat(server):
    def run(*arguments, **options):
        return tools.run(["kcat", "-b", server.bootstrap, *arguments], timeout_s=60, **options)

    return run


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_codecs_keys_and_headers(kcat, topic, codec):
    lines = [f"k{number}:value {number} {'x' * 200}" for number in range(300)]
    kcat(
        *("-t", topic, "-P", "-p", "0", "-K:", "-z", codec, "-H", "origin=kcat", "-H", "n=1"),
        *("-X", "linger.ms=50"),
        input_text="\n".join(lines) + "\n",
    )
    read = kcat("-t", topic, "-C", "-p", "0", "-e", "-q", "-f", "%o %h %k:%s\n").splitlines()
    assert read == [f"{offset} origin=kcat,n=1 {line}" for offset, line in enumerate(lines)]


def test_compressed_batches_are_stored_compressed(kcat, topic, server):
    """An old librdkafka sends plain batches, without a word, if Produce does not start at 0."""
    from harness.raw import Connection

    kcat("-t", topic, "-P", "-p", "0", "-z", "lz4", input_text="y" * 5000 + "\n")
    with Connection(server.port) as connection:
        error, _, records = connection.fetch(topic, 0)
    assert error == "NONE"
    assert records[22] & 7 == 3, "codec bits in the stored batch's attributes: lz4 is 3"
    assert len(records) < 1000


def test_null_and_empty_values(kcat, topic):
    kcat("-t", topic, "-P", "-p", "0", "-K:", "-Z", input_text="gone:\nhere:1\n")
    read = kcat("-t", topic, "-C", "-p", "0", "-e", "-q", "-f", "%k %S\n").split()
    assert read == ["gone", "-1", "here", "1"]


def test_metadata(kcat, topic, server):
    kcat("-t", topic, "-P", input_text="a\n")
    listed = json.loads(kcat("-L", "-J", "-t", topic))
    assert [broker["name"] for broker in listed["brokers"]] == [server.bootstrap]
    ids = {broker["id"] for broker in listed["brokers"]}
    assert listed["controllerid"] in ids
    (mine,) = [row for row in listed["topics"] if row["topic"] == topic]
    assert [row["partition"] for row in mine["partitions"]] == [0, 1, 2, 3]
    for row in mine["partitions"]:
        assert row["leader"] in ids
        assert {replica["id"] for replica in row["replicas"]} <= ids
        assert row["isrs"]


def test_offsets_by_time(kcat, topic):
    kcat("-t", topic, "-P", "-p", "0", input_text="one\ntwo\n")
    time.sleep(0.05)
    between = int(time.time() * 1000)
    time.sleep(0.05)
    kcat("-t", topic, "-P", "-p", "0", input_text="three\nfour\n")

    def query(when):
        return kcat("-Q", "-t", f"{topic}:0:{when}").strip()

    assert query(between) == f"{topic} [0] offset 2"
    assert query(-1) == f"{topic} [0] offset 4"
    assert query(-2) == f"{topic} [0] offset 0"
    assert query(between - 600_000) == f"{topic} [0] offset 0"
    assert query(between + 600_000) == f"{topic} [0] offset -1"
    since = kcat("-t", topic, "-C", "-p", "0", "-o", f"s@{between}", "-e", "-q")
    assert since.split() == ["three", "four"]
    tail = kcat("-t", topic, "-C", "-p", "0", "-o", "-1", "-e", "-q")
    assert tail.split() == ["four"]


def test_balanced_group_commits(kcat, topic, name):
    kcat("-t", topic, "-P", input_text="".join(f"{number}\n" for number in range(100)))
    group = name("group")
    common = (
        "-G",
        group,
        "-q",
        "-X",
        "auto.offset.reset=earliest",
        "-X",
        "session.timeout.ms=6000",
    )
    first = kcat(*common, "-c", "60", topic).split()
    second = kcat(*common, "-c", "40", topic).split()
    assert sorted(map(int, first + second)) == list(range(100))


def test_idempotent_and_acks(kcat, topic):
    kcat(
        *("-t", topic, "-P", "-p", "0", "-X", "enable.idempotence=true"),
        input_text="".join(f"{number}\n" for number in range(1000)),
    )
    kcat("-t", topic, "-P", "-p", "0", "-X", "acks=1", input_text="1000\n")
    kcat("-t", topic, "-P", "-p", "0", "-X", "acks=0", input_text="1001\n")
    read = kcat("-t", topic, "-C", "-p", "0", "-e", "-q", "-X", "isolation.level=read_committed")
    assert [int(line) for line in read.split()] == list(range(1002))


def test_unknown_topic_is_reported(kcat, name):
    missing = name("missing")
    said = kcat(
        "-t", missing, "-C", "-e", "-p", "0", "-X", "allow.auto.create.topics=false", code=1
    )
    assert "Unknown topic or partition" in said
