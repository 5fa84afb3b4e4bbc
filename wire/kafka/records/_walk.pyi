from wire.buffers import Buffer

def walk(
    data: Buffer,
    count: int,
    base_timestamp: int,
    earliest: int,
    latest: int,
    wants_keys: bool,
    /,
) -> tuple[int, int, int, int, int, int, tuple[int, ...]]: ...
