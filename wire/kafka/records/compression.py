"""The five codecs of record batches, with the output limit enforced while decompressing.

Owner of the state: nobody; every call makes its own codec objects. zstandard's are not
thread-safe, and making one costs 8 us, little beside a batch that is worth decompressing.

Invariants:
- `decompress` never holds more than `size_max` bytes of output plus one step (at most 8 MiB, and
  only for zstd), however large the claim in the input's own header is;
- one stream per batch: bytes after the end of a gzip, lz4 or zstd stream (a second member or
  frame included) are an error, for clients differ in what they make of them;
- whatever the input is, the only exceptions for bad data are WireErrors.

Formats, as Kafka's Java client writes and reads them (CompressionType, KIP-390 for the levels):
gzip is RFC 1952; lz4 is the frame format with independent blocks of 64 KiB; zstd is one frame;
snappy is snappy-java's stream (magic, two versions, then blocks with a 4-byte length each), while
librdkafka and others write one bare snappy block: both are read, the former is written.
"""

import struct
import zlib
from collections.abc import Callable, Sequence
from enum import IntEnum

import cramjam
import lz4.frame
import zstandard

from wire.buffers import Buffer
from wire.kafka.errors import WireError


class SizeLimitError(WireError):
    """More comes out than whoever asked would take."""


class Compression(IntEnum):
    """Bits 0-2 of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @classmethod
    def by_name(cls, name: str) -> "Compression":
        """The codec of a name as configurations have it («zstd»); ValueError if there is none."""
        try:
            return _BY_NAME[name]
        except KeyError:
            raise ValueError(f"unknown compression {name!r}") from None


_BY_NAME = {codec.name.lower(): codec for codec in Compression}

#: How many bytes one call into a streaming decompressor may give.
STEP_SIZE_MAX = 256 * 1024

XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = XERIAL_MAGIC + struct.pack(">ii", 1, 1)  # version, oldest compatible version
_XERIAL_COMPATIBLE_OFFSET = len(XERIAL_MAGIC) + 4
_XERIAL_BLOCK_SIZE = 32 * 1024  # snappy-java's default; Kafka's producers use it
_INT32 = struct.Struct(">i")

# A zstd block of 4 bytes can stand for 128 KiB (a run of one byte), and no kind of block is
# denser: this bounds what a slice of input can give before the output is looked at again.
_ZSTD_OUTPUT_PER_INPUT_MAX = 128 * 1024 // 4
_ZSTD_SLICE_SIZE_MIN = 256

#: What Kafka lets compression.<codec>.level be (KIP-390). -1 is gzip's own default.
LEVELS: dict[Compression, Sequence[int]] = {
    Compression.GZIP: (-1, *range(1, 10)),
    Compression.LZ4: range(1, 18),
    Compression.ZSTD: range(-131072, 23),
}


def compress(codec: Compression, data: Buffer, level: int | None = None) -> bytes:
    """`data` in the format that Kafka's clients read.

    `level` is None for the codec's default and outside LEVELS a ValueError: it comes from a
    topic's configuration, not from a peer. NONE and SNAPPY have no levels.
    """
    if level is not None and level not in LEVELS.get(codec, ()):
        raise ValueError(f"{codec.name.lower()} has no compression level {level}")
    if codec is Compression.NONE:
        return bytes(data)
    if codec is Compression.GZIP:
        return zlib.compress(data, zlib.Z_DEFAULT_COMPRESSION if level is None else level, 31)
    if codec is Compression.SNAPPY:
        return _snappy_compress(data)
    if codec is Compression.LZ4:
        compressed: bytes = lz4.frame.compress(
            data,
            compression_level=0 if level is None else level,
            block_size=lz4.frame.BLOCKSIZE_MAX64KB,
            block_linked=False,  # Java's reader refuses dependent blocks
            store_size=False,
        )
        return compressed
    assert codec is Compression.ZSTD
    return zstandard.ZstdCompressor(level=3 if level is None else level).compress(data)


def decompress(codec: Compression, data: Buffer, size_max: int) -> bytes:
    """The uncompressed bytes.

    SizeLimitError if they are more than `size_max`; WireError if `data` is empty, cut short,
    followed by other bytes, or not of this codec at all.
    """
    assert size_max >= 0
    if codec is Compression.NONE:
        if len(data) > size_max:
            raise _too_large(codec, size_max)
        return bytes(data)
    if len(data) == 0:
        raise WireError(f"{codec.name.lower()} data is empty")
    try:
        return _DECOMPRESSORS[codec](memoryview(data), size_max)
    except WireError as error:
        # Else what was made by then would live in its frames, as long as the error does.
        error.__context__ = None
        raise error.with_traceback(None)  # noqa: B904 - the same error


def _too_large(codec: Compression, size_max: int) -> SizeLimitError:
    return SizeLimitError(f"{codec.name.lower()} data is larger than {size_max} bytes decompressed")


def _bad(codec: Compression, error: Exception) -> WireError:
    return WireError(f"not {codec.name.lower()} data, or damaged: {error}")


def _check_end(codec: Compression, ended: bool, size: int, trailing_size: int) -> None:
    if not ended:
        raise WireError(f"{codec.name.lower()} data is cut short after {size} bytes")
    if trailing_size:
        raise WireError(
            f"{trailing_size} bytes follow the end of the {codec.name.lower()} data"
            f" at byte {size - trailing_size}"
        )


def _gzip_decompress(data: memoryview, size_max: int) -> bytes:
    stream = zlib.decompressobj(wbits=31)
    pieces: list[bytes] = []
    total_size = position = 0
    while True:
        # Sliced, for what a limited step leaves of its input is copied by zlib.
        end = position + STEP_SIZE_MAX
        try:
            # One byte more than is allowed tells «too large» from «exactly at the limit».
            limit = min(STEP_SIZE_MAX, size_max - total_size + 1)
            piece = stream.decompress(data[position:end], limit)
        except zlib.error as error:
            raise _bad(Compression.GZIP, error) from None
        read_size = min(end, len(data)) - position - len(stream.unconsumed_tail)
        position += read_size
        total_size += len(piece)
        if total_size > size_max:
            raise _too_large(Compression.GZIP, size_max)
        pieces.append(piece)
        if stream.eof or not (piece or read_size):
            break
    trailing_size = len(data) - position + len(stream.unused_data)
    _check_end(Compression.GZIP, stream.eof, len(data), trailing_size)
    return b"".join(pieces)


def _lz4_decompress(data: memoryview, size_max: int) -> bytes:
    # Not LZ4FrameDecompressor: it copies all of the input that is left at every limited step.
    context = lz4.frame.create_decompression_context()
    pieces: list[bytes] = []
    total_size = position = 0
    while True:
        try:
            piece, read_size, ended = lz4.frame.decompress_chunk(
                context, data[position:], max_length=min(STEP_SIZE_MAX, size_max - total_size + 1)
            )
        except (RuntimeError, ValueError) as error:
            raise _bad(Compression.LZ4, error) from None
        position += read_size
        total_size += len(piece)
        if total_size > size_max:
            raise _too_large(Compression.LZ4, size_max)
        pieces.append(piece)
        if ended or not (piece or read_size):
            break
    _check_end(Compression.LZ4, ended, len(data), len(data) - position)
    return b"".join(pieces)


def _zstd_decompress(data: memoryview, size_max: int) -> bytes:
    try:
        if zstandard.frame_content_size(data) > size_max:  # -1 if the frame does not tell
            raise _too_large(Compression.ZSTD, size_max)
        stream = zstandard.ZstdDecompressor().decompressobj()
        pieces: list[bytes] = []
        total_size = position = 0
        while position < len(data) and not stream.eof:
            slice_size = (size_max - total_size) // _ZSTD_OUTPUT_PER_INPUT_MAX
            end = position + max(slice_size, _ZSTD_SLICE_SIZE_MIN)
            piece = stream.decompress(data[position:end])
            position = min(end, len(data))
            total_size += len(piece)
            if total_size > size_max:
                raise _too_large(Compression.ZSTD, size_max)
            pieces.append(piece)
    except zstandard.ZstdError as error:
        raise _bad(Compression.ZSTD, error) from None
    trailing_size = len(data) - position + len(stream.unused_data)
    _check_end(Compression.ZSTD, stream.eof, len(data), trailing_size)
    return b"".join(pieces)


def _snappy_compress(data: Buffer) -> bytes:
    view = memoryview(data)
    pieces: list[Buffer] = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK_SIZE):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_SIZE]))
        pieces.append(_INT32.pack(len(block)))
        pieces.append(block)
    return b"".join(pieces)


def _snappy_decompress(data: memoryview, size_max: int) -> bytes:
    if data[: len(XERIAL_MAGIC)] == XERIAL_MAGIC:
        return b"".join(_xerial_blocks(data, size_max))
    return _snappy_block(data, size_max, size_max)


def _xerial_blocks(data: memoryview, size_max: int) -> list[bytes]:
    """The blocks of a snappy-java stream, decompressed."""
    if len(data) < len(_XERIAL_HEADER):
        raise WireError(f"snappy stream header is cut short after {len(data)} bytes")
    compatible_version = _INT32.unpack_from(data, _XERIAL_COMPATIBLE_OFFSET)[0]
    if compatible_version > 1:
        raise WireError(f"snappy stream needs a reader of version {compatible_version}, not 1")
    blocks: list[bytes] = []
    remaining_size = size_max
    position = len(_XERIAL_HEADER)
    while position < len(data):
        if position + 4 > len(data):
            raise WireError(f"snappy block length at byte {position} is cut short")
        block_size: int = _INT32.unpack_from(data, position)[0]
        position += 4
        if block_size <= 0 or block_size > len(data) - position:
            raise WireError(
                f"snappy block at byte {position} claims {block_size} bytes,"
                f" {len(data) - position} are left"
            )
        block = _snappy_block(data[position : position + block_size], remaining_size, size_max)
        blocks.append(block)
        remaining_size -= len(block)
        position += block_size
    return blocks


def _snappy_block(block: memoryview, allowed_size: int, size_max: int) -> bytes:
    """One bare block. Its first bytes say how long it is; the decoder holds it to that."""
    try:
        if cramjam.snappy.decompress_raw_len(block) > allowed_size:
            raise _too_large(Compression.SNAPPY, size_max)
        return bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as error:
        raise _bad(Compression.SNAPPY, error) from None


_DECOMPRESSORS: dict[Compression, Callable[[memoryview, int], bytes]] = {
    Compression.GZIP: _gzip_decompress,
    Compression.SNAPPY: _snappy_decompress,
    Compression.LZ4: _lz4_decompress,
    Compression.ZSTD: _zstd_decompress,
}
