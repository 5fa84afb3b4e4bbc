"""At which level the broker compresses a topic's batches (KIP-390). Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.cluster.config import TopicConfig

#: compression.lz4.level's default stands for lz4's fast compressor, all other levels for its high
#: one (`Lz4Compression`).
_LZ4_FAST = 9


def compression_level(config: TopicConfig) -> int | None:
    """Of the codec that compression.type names; None: it has no levels, or its default."""
    if config.compression_type == "gzip":
        return config.compression_gzip_level
    if config.compression_type == "zstd":
        return config.compression_zstd_level
    if config.compression_type == "lz4" and config.compression_lz4_level != _LZ4_FAST:
        return config.compression_lz4_level
    return None
