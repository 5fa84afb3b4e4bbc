"""Bytes that Kafka 4.3's own classes wrote, and what was put into them."""

import warnings
from pathlib import Path

import pytest

with warnings.catch_warnings():
    # kafka-python reads its schemas by a deprecated function when it is imported.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.record  # noqa: F401

_VECTORS = Path(__file__).parent / "vectors" / "kafka_4_3.txt"


@pytest.fixture(scope="session")
def vectors() -> dict[str, bytes]:
    """name -> bytes, as MemoryRecordsBuilder and the generated message classes gave them."""
    lines = _VECTORS.read_text().splitlines()
    return {name: bytes.fromhex(data) for name, data in (line.split() for line in lines)}
