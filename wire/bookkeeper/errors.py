"""What BookKeeper's bytes can be wrong with.

`WireError` is the one of all our protocols: bytes that no correct peer sends; the connection that
gets one logs it and closes. Records of the metadata store raise
`ledger_metadata.MetadataFormatError` instead, as no peer is to blame there.
"""

from __future__ import annotations

from wire.kafka.errors import EncodeError, WireError

__all__ = ["EncodeError", "FrameTooLargeError", "UnsupportedVersionError", "WireError"]


class FrameTooLargeError(WireError):
    """A frame announces a size that is not allowed; names both."""


class UnsupportedVersionError(WireError):
    """A well-formed request of a protocol version that is not spoken. `answer` is a whole frame
    that tells the peer so (EBADVERSION), to be sent before the connection is closed."""

    def __init__(self, message: str, answer: bytes) -> None:
        super().__init__(message)
        self.answer = answer
