from wire.buffers import Buffer
from wire.kafka.records.walk import Span, Whole

def walk(
    data: Buffer,
    count: int,
    base_timestamp: int,
    earliest: int,
    latest: int,
    wants_keys: bool,
    /,
) -> tuple[int, int, int, int, int, int, tuple[int, ...], int]: ...
def spans(
    data: Buffer, position: int, count: int, bytes_max: int, /
) -> tuple[int, int, list[Span]]: ...
def whole_batch(batch: Buffer, count_max: int, /) -> Whole | None: ...
