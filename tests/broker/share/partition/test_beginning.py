"""share.auto.offset.reset: where a share partition begins."""

from types import SimpleNamespace

import pytest

from broker.share.partition.beginning import beginning, duration_ms


@pytest.mark.parametrize(
    ("text", "ms"),
    [("PT1H", 3_600_000), ("P1DT2M", 86_520_000), ("PT0.5S", 500), ("PT1.0015S", 1001)],
)
def test_durations(text, ms):
    assert duration_ms(text) == ms


def test_no_duration():
    with pytest.raises(ValueError, match="is no duration"):
        duration_ms("1h")


@pytest.mark.parametrize(
    ("reset", "offset"),
    [
        *(("latest", 9), ("earliest", 2), ("by_duration:PT1S", 5), ("by_duration:PT0.1S", 9)),
        (f"by_duration:P{'9' * 18}D", 5),
    ],
)
async def test_beginning(reset, offset):
    async def offset_for_timestamp(timestamp_ms):
        return (5, timestamp_ms) if timestamp_ms <= 9_000 else None

    reader = SimpleNamespace(offset_for_timestamp=offset_for_timestamp)
    log = SimpleNamespace(log_start_offset=2, high_watermark=9, reader=reader)
    assert await beginning(log, reset, 10_000) == offset
