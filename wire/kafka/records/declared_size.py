"""How much comes out of compressed records, by what their format says before anything is made.

For whoever plans work and memory by it. A batch of 100 kB may become 100 kB or a thousand times
that; only its own format tells them apart in less time than it takes to decompress them.

    gzip    the last four bytes: the size, modulo 2**32. May be a lie, which only decompression
            finds
    snappy  each block begins with its size
    lz4     so many blocks, of a size that the frame's header bounds
    zstd    so many blocks; those that are compressed become 128 KiB at most

Of the last three, data of up to BLOCKS_MAX blocks cannot become more than what is told here; of
more blocks the rest is taken to be as dense as those, and twice that is told.

Owner of the state: nobody. Nothing here says whether data can be decompressed: what is damaged is
told to be as large as it is up to the damage.
"""

import cramjam
import zstandard

from wire.buffers import Buffer
from wire.kafka.records.compression import XERIAL_MAGIC, Compression

#: Blocks that are looked at, some 10 us: of snappy-java's 512 KiB, of lz4's in Java 1 MiB.
BLOCKS_MAX = 16

#: snappy-java's stream: its magic and two versions.
_XERIAL_HEADER_SIZE = len(XERIAL_MAGIC) + 8
#: An lz4 frame's header: magic, flags, block size, checksum; then blocks behind their length.
_LZ4_HEADER_SIZE = 7
_LZ4_FLAGS = 4
_LZ4_BLOCK_SIZE = 5
_LZ4_HAS_CONTENT_SIZE = 0x08
_LZ4_HAS_BLOCK_CHECKSUMS = 0x10
_LZ4_NOT_COMPRESSED = 0x8000_0000
#: One more byte of a match's length stands for so many.
_LZ4_RATIO_MAX = 255
#: A zstd block: three bytes, of which the lowest bit says that it is the last, two the type.
_ZSTD_BLOCK_HEADER_SIZE = 3
_ZSTD_BLOCK_SIZE_MAX = 128 << 10
_ZSTD_RUN = 1
_ZSTD_COMPRESSED = 2


def declared_size(codec: Compression, data: Buffer) -> int:
    """Bytes that come out of `data`, or that hardly more come out than.

    Never raises for what the data says; of data that is no such format 0, or what is told up to
    where it ceases to be."""
    view = memoryview(data)
    if codec is Compression.NONE:
        return len(view)
    if codec is Compression.GZIP:
        return int.from_bytes(view[-4:], "little")
    if codec is Compression.SNAPPY:
        return _snappy_size(view)
    return _lz4_size(view) if codec is Compression.LZ4 else _zstd_size(view)


def _extrapolated(size: int, position: int, data: memoryview) -> int:
    """As much for each byte behind `position` as for those before, and that twice."""
    if position >= len(data):
        return size
    return size * len(data) // position * 2


def _snappy_size(data: memoryview) -> int:
    if data[: len(XERIAL_MAGIC)] != XERIAL_MAGIC:
        return _snappy_block_size(data)
    size = 0
    position = _XERIAL_HEADER_SIZE
    for _ in range(BLOCKS_MAX):
        start = position + 4
        if start >= len(data):
            return size
        size += _snappy_block_size(data[start:])
        position = start + int.from_bytes(data[position:start])
    return _extrapolated(size, position, data)


def _snappy_block_size(block: memoryview) -> int:
    try:
        size: int = cramjam.snappy.decompress_raw_len(block[:5])
    except cramjam.DecompressionError:
        return 0
    return size


def _lz4_size(data: memoryview) -> int:
    if len(data) <= _LZ4_HEADER_SIZE:
        return 0
    flags = data[_LZ4_FLAGS]
    # 4 to 7 stand for 64 KiB to 4 MiB, each for four times the one before; others are refused.
    block_size_max = 1 << (8 + 2 * (data[_LZ4_BLOCK_SIZE] >> 4 & 0x07))
    rest_size = 4 if flags & _LZ4_HAS_BLOCK_CHECKSUMS else 0
    position = _LZ4_HEADER_SIZE + (8 if flags & _LZ4_HAS_CONTENT_SIZE else 0)
    size = 0
    for _ in range(BLOCKS_MAX):
        length = int.from_bytes(data[position : position + 4], "little")
        if not length:  # the end's mark, or nothing is left
            return size
        if length & _LZ4_NOT_COMPRESSED:
            length ^= _LZ4_NOT_COMPRESSED
            size += length
        else:
            size += min(block_size_max, length * _LZ4_RATIO_MAX)
        position += 4 + length + rest_size
    return _extrapolated(size, position, data)


def _zstd_size(data: memoryview) -> int:
    try:
        position = zstandard.frame_header_size(data)
    except zstandard.ZstdError:
        return 0
    size = 0
    for _ in range(BLOCKS_MAX):
        start = position + _ZSTD_BLOCK_HEADER_SIZE
        if start > len(data):
            return size
        header = int.from_bytes(data[position:start], "little")
        kind, length = header >> 1 & 0x03, header >> 3
        size += _ZSTD_BLOCK_SIZE_MAX if kind == _ZSTD_COMPRESSED else length
        if header & 1:
            return size
        position = start + (1 if kind == _ZSTD_RUN else length)
    return _extrapolated(size, position, data)
