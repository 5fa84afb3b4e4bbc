"""Codecs: what Kafka's clients write is read, and no input costs more than its limit says."""

import gzip
import struct
import time
import tracemalloc
from contextlib import suppress

import cramjam
import kafka.codec
import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from wire.kafka.errors import WireError
from wire.kafka.records.compression import (
    LEVELS,
    Compression,
    check_produced,
    compress,
    decompress,
)

CODECS = [each for each in Compression if each is not Compression.NONE]
MIB = 1024 * 1024

OTHERS_WRITE = {
    Compression.GZIP: kafka.codec.gzip_encode,
    Compression.SNAPPY: kafka.codec.snappy_encode,
    Compression.LZ4: kafka.codec.lz4_encode,
    Compression.ZSTD: kafka.codec.zstd_encode,
}
OTHERS_READ = {
    Compression.GZIP: kafka.codec.gzip_decode,
    Compression.SNAPPY: kafka.codec.snappy_decode,
    Compression.LZ4: kafka.codec.lz4_decode,
    Compression.ZSTD: kafka.codec.zstd_decode,
}


@pytest.mark.parametrize("codec", Compression)
@given(data=st.binary(max_size=5000) | st.builds(bytes.__mul__, st.binary(), st.integers(0, 999)))
def test_round_trip(codec, data):
    for given_as in (data, bytearray(data), memoryview(data)):
        assert decompress(codec, compress(codec, given_as), len(data)) == data


@pytest.mark.parametrize("codec", CODECS)
@given(data=st.binary(min_size=1, max_size=3000))
def test_kafka_python_reads_and_writes_the_same(codec, data):
    # zstd without content size, as Java's streams write it, is in the golden vectors.
    assert OTHERS_READ[codec](compress(codec, data)) == data
    assert decompress(codec, OTHERS_WRITE[codec](data), len(data)) == data


@pytest.mark.parametrize("codec", CODECS)
def test_more_than_one_step_and_block(codec):
    data = bytes(range(256)) * 5000 + cramjam.snappy.compress_raw(b"x" * 3 * MIB).read() * 3
    compressed = compress(codec, data)
    assert OTHERS_READ[codec](compressed) == data
    assert decompress(codec, compressed, len(data)) == data


@pytest.mark.parametrize("codec", LEVELS)
def test_levels(codec):
    data = b"".join(b"%d," % (number * number) for number in range(5000))
    levels = LEVELS[codec]
    for level in (levels[0], levels[1], levels[-1]):
        assert decompress(codec, compress(codec, data, level), len(data)) == data
    for level in (levels[0] - 1, levels[-1] + 1):
        with pytest.raises(ValueError, match=f"no compression level {level}"):
            compress(codec, data, level)
    assert len(compress(codec, data, levels[-1])) < len(compress(codec, data, levels[1]))


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.SNAPPY])
def test_no_levels(codec):
    with pytest.raises(ValueError, match="no compression level 1"):
        compress(codec, b"x", 1)


@pytest.mark.parametrize("codec", Compression)
def test_limit_is_exact(codec):
    data = b"ab" * 300_000
    compressed = compress(codec, data)
    assert decompress(codec, compressed, len(data)) == data
    with pytest.raises(WireError, match=f"larger than {len(data) - 1} bytes"):
        decompress(codec, compressed, len(data) - 1)
    with pytest.raises(WireError, match="larger than 0 bytes"):
        decompress(codec, compressed, 0)


def test_names():
    names = ["none", "gzip", "snappy", "lz4", "zstd"]
    assert [Compression.by_name(name) for name in names] == list(Compression)
    for name in ("GZIP", "producer", ""):
        with pytest.raises(ValueError, match=f"unknown compression '{name}'"):
            Compression.by_name(name)


def _zstd_without_content_size(data: bytes) -> bytes:
    stream = zstandard.ZstdCompressor().compressobj()
    return stream.compress(data) + stream.flush()


@pytest.mark.parametrize(
    ("codec", "bomb"),
    [
        (Compression.GZIP, lambda zeros: gzip.compress(zeros)),
        (Compression.LZ4, lambda zeros: lz4.frame.compress(zeros)),
        (Compression.ZSTD, lambda zeros: zstandard.ZstdCompressor().compress(zeros)),
        (Compression.ZSTD, _zstd_without_content_size),
        (Compression.SNAPPY, lambda zeros: cramjam.snappy.compress_raw(zeros).read()),
        (Compression.SNAPPY, lambda zeros: compress(Compression.SNAPPY, zeros)),
        (Compression.SNAPPY, lambda zeros: b"\xff\xff\xff\xff\x0f"),  # claims 4 GiB
    ],
)
def test_bomb_costs_what_the_limit_says(codec, bomb):
    compressed = bomb(bytes(200 * MIB))
    tracemalloc.start()
    started = time.process_time()
    with pytest.raises(WireError, match="larger than"):
        decompress(codec, compressed, MIB)
    elapsed = time.process_time() - started
    peak_size = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # One step of zstd may give 8 MiB (and is joined once); the claim was 200.
    assert peak_size < 20 * MIB
    assert elapsed < 0.5


@pytest.mark.parametrize("codec", CODECS)
def test_empty_input(codec):
    with pytest.raises(WireError, match=f"{codec.name.lower()} data is empty"):
        decompress(codec, b"", MIB)
    assert decompress(codec, compress(codec, b""), 0) == b""


@pytest.mark.parametrize("write", [compress, lambda codec, data: OTHERS_WRITE[codec](data)])
@pytest.mark.parametrize("codec", CODECS)
def test_cut_short_at_every_byte(codec, write):
    data = b"hello, log " * 4
    compressed = write(codec, data)
    for size in range(len(compressed)):
        try:
            result = decompress(codec, compressed[:size], MIB)
        except WireError:
            continue
        # snappy-java's stream has no end mark: it may end behind any block, here behind none.
        assert (codec, size, result) == (Compression.SNAPPY, 16, b"")


@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.LZ4, Compression.ZSTD])
@pytest.mark.parametrize("tail", [b"\x00", b"x" * 1000, b"another"])
def test_bytes_behind_the_stream(codec, tail):
    compressed = compress(codec, b"data")
    if tail == b"another":
        tail = compressed
    with pytest.raises(
        WireError, match=f"{len(tail)} bytes follow the end .* at byte {len(compressed)}"
    ):
        decompress(codec, compressed + tail, MIB)


def test_snappy_both_framings():
    data = b"librdkafka writes bare blocks " * 2000
    assert decompress(Compression.SNAPPY, cramjam.snappy.compress_raw(data).read(), MIB) == data
    framed = compress(Compression.SNAPPY, data)
    assert framed[:16] == b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"
    assert struct.unpack(">i", framed[16:20])[0] < 32 * 1024


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x82SNAPPY\x00\x00\x00\x00\x01", "header is cut short after 12 bytes"),
        (b"\x82SNAPPY\x00\x00\x00\x00\x02\x00\x00\x00\x02", "needs a reader of version 2"),
        (b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01\x00", "length at byte 16 is cut"),
        (b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01\xff\xff\xff\xff", "claims -1 bytes"),
        (b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01\x00\x00\x00\x00", "claims 0 bytes"),
        (b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01\x00\x00\x00\x09x", "9 bytes, 1 are left"),
    ],
)
def test_snappy_stream_errors(data, message):
    with pytest.raises(WireError, match=message):
        decompress(Compression.SNAPPY, data, MIB)


@pytest.mark.parametrize("codec", CODECS)
@given(data=st.binary(max_size=200))
def test_garbage(codec, data):
    with suppress(WireError):
        assert len(decompress(codec, data, 1000)) <= 1000


@pytest.mark.parametrize("codec", CODECS)
@given(position=st.integers(0, 10_000), mask=st.integers(1, 255), drop=st.booleans())
def test_damaged(codec, position, mask, drop):
    compressed = bytearray(compress(codec, bytes(range(256)) * 20 + bytes(5000)))
    position %= len(compressed)
    if drop:
        del compressed[position]
    else:
        compressed[position] ^= mask
    with suppress(WireError):
        assert len(decompress(codec, compressed, 20_000)) <= 20_000


def test_large_incompressible_input_is_linear():
    """A limited step must not copy all of the input that is left: 64 MiB would take minutes."""
    data = zstandard.ZstdCompressor().compress(b"".join(b"%x" % (n * n) for n in range(400_000)))
    data *= 64 * MIB // len(data) // 4
    for codec in CODECS:
        compressed = compress(codec, data, 1 if codec is Compression.GZIP else None)
        started = time.process_time()
        assert len(decompress(codec, compressed, 64 * MIB)) == len(data)
        assert time.process_time() - started < 2, codec


def _lz4_parts(*parts, **options):
    frame = lz4.frame.LZ4FrameCompressor(block_size=lz4.frame.BLOCKSIZE_MAX64KB, **options)
    return frame.begin() + b"".join(map(frame.compress, parts)) + frame.flush()


def _is_taken(data):
    check_produced(Compression.LZ4, data)
    return decompress(Compression.LZ4, data, MIB)


def test_lz4_is_taken_if_java_reads_it():
    """Lz4BlockInputStream: «Dependent block stream is unsupported», of one block as of many; a
    frame whose writer knew that it has one block only has the bit of independent ones. What was
    taken in before is read all the same."""
    data = bytes(range(256)) * 1000
    for options in ({"block_checksum": True}, {"content_checksum": True}, {}):
        assert _is_taken(_lz4_parts(data, block_linked=False, **options)) == data
        for size in (10, len(data)):
            linked = _lz4_parts(data[:size], block_linked=True, **options)
            with pytest.raises(WireError, match="dependent blocks"):
                _is_taken(linked)
            assert decompress(Compression.LZ4, linked, MIB) == data[:size]
    assert _is_taken(lz4.frame.compress(data, block_linked=False, store_size=True)) == data
    assert _is_taken(lz4.frame.compress(b"short", block_linked=True)) == b"short"
    for codec in CODECS:
        check_produced(codec, compress(codec, data))
        check_produced(codec, OTHERS_WRITE[codec](data))


def test_lz4_with_a_dictionary_or_to_be_skipped_is_not_taken():
    """liblz4 reads a frame that names a dictionary, if no block refers to it."""
    frame = bytearray(compress(Compression.LZ4, b"abc"))
    frame[4] |= 1
    frame[6:7] = bytes(5)  # the dictionary's number, and the header's checksum
    for checksum in range(256):
        frame[10] = checksum
        with suppress(WireError):
            assert decompress(Compression.LZ4, frame, MIB) == b"abc"
            break
    else:
        pytest.fail("liblz4 reads none of them")
    with pytest.raises(WireError, match="dictionary"):
        _is_taken(frame)
    skipped = struct.pack("<II", 0x184D2A50, 3) + b"abc"
    assert decompress(Compression.LZ4, skipped, MIB) == b""
    with pytest.raises(WireError, match="does not begin as a frame"):
        _is_taken(skipped)
