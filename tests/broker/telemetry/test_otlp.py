"""What is read of pushed bytes, and that no bytes do harm."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.telemetry import otlp
from broker.telemetry.otlp import Point, points_of
from tests.broker.telemetry.pushed import (
    fixed,
    gauge,
    histogram,
    label,
    message,
    metrics,
    number,
    text,
    total,
)

RATE = "org.apache.kafka.producer.connection.creation.rate"


def test_gauges_sums_and_histograms():
    data = metrics(
        gauge(RATE, 1.5, label("node.id", text(1, "1"))),
        total("org.apache.kafka.consumer.x-y", -3),
        total("own", 4, temporality=1),
        histogram("took", 3, 0.25),
    )
    assert points_of(data) == [
        Point("kafka_client_producer_connection_creation_rate", (("node_id", "1"),), 1.5),
        Point("kafka_client_consumer_x_y", (), -3.0),
        Point("kafka_client_own", (), 4.0, is_delta=True),
        Point("kafka_client_took_count", (), 3.0),
        Point("kafka_client_took_sum", (), 0.25),
    ]


def test_labels_of_all_kinds():
    data = metrics(
        gauge(
            "m",
            1.0,
            label("truth", number(2, 1)),
            label("whole", number(3, (1 << 64) - 5)),
            label("9th", text(1, "x")),
            label("", message(5, b"")),
        )
    )
    [point] = points_of(data)
    assert dict(point.labels) == {"truth": "true", "whole": "-5", "_9th": "x", "_": ""}


def test_nothing_is_nothing():
    assert points_of(b"") == []
    assert points_of(metrics()) == []


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\x0a\xff", "no end"),
        (b"\x0a\x05abc", "ends behind"),
        (b"\x0b", "wire type 3"),
        (number(1, 3), "no message"),
        (metrics(message(2, text(1, "n" * 201))), "201 bytes"),
        (metrics(message(2, message(1, b"\xff"))), "utf-8"),
        (metrics(gauge("m", 1.0, *[label(f"l{n}", b"") for n in range(11)])), "10 labels"),
        (b"\xff" * 11, "no end"),
    ],
)
def test_what_is_wrong_is_told(data, words):
    with pytest.raises(ValueError, match=words):
        points_of(data)


def test_there_are_not_too_many_points(monkeypatch):
    monkeypatch.setattr(otlp, "POINTS_MAX", 2)
    assert len(points_of(metrics(gauge("a", 1), gauge("b", 1)))) == 2
    with pytest.raises(ValueError, match="more than 2"):
        points_of(metrics(gauge("a", 1), gauge("b", 1), gauge("c", 1)))


WHOLE = metrics(gauge(RATE, 1.5, label("a", text(1, "1"))), total("x", 3), fixed(9, 1))


@given(st.binary(max_size=60), st.integers(0, len(WHOLE)), st.integers(0, 30))
def test_any_bytes_are_points_or_a_value_error(noise, position, cut):
    with contextlib.suppress(ValueError):
        points_of(WHOLE[:position] + noise + WHOLE[position + cut :])
