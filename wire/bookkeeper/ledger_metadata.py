"""LedgerMetadata: what the metadata store keeps of one ledger, in BookKeeper's own formats.

`BookieMetadataFormatVersion\\t<version>\\n` and then, by version: 3 (written since BookKeeper 4.9,
and by us) a length-delimited protobuf LedgerMetadataFormat; 2 the same message as protobuf text;
1 lines of text (LedgerMetadataSerDe.java, DataFormats.proto; docs/formats.md).

The password is stored in clear, as BookKeeper does.
"""

from __future__ import annotations

from dataclasses import field, replace
from enum import IntEnum
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from wire.bookkeeper.entry import INVALID_ENTRY_ID, DigestType
from wire.bookkeeper.protobuf_schema import Message, message_classes
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

_VERSION_PREFIX = b"BookieMetadataFormatVersion\t"
_IN_RECOVERY_V1 = -102

#: (first entry id, bookie ids in ensemble order)
Segment = tuple[int, tuple[str, ...]]


class MetadataFormatError(ValueError):
    """Bytes that are no ledger metadata, or metadata that contradicts itself."""


class LedgerState(IntEnum):
    OPEN = 1
    IN_RECOVERY = 2
    CLOSED = 3


@dataclass(slots=True, frozen=True)
class LedgerMetadata:
    """`last_entry_id` and `length` (payload bytes) mean something only when CLOSED; before that
    they are -1 and 0. `digest_type` and `password` are None where old metadata does not say.
    `ctoken` serves to recognise one's own create after a lost reply; 0 after any rewrite."""

    ensemble_size: int
    write_quorum_size: int
    ack_quorum_size: int
    segments: tuple[Segment, ...]
    state: LedgerState = LedgerState.OPEN
    last_entry_id: int = INVALID_ENTRY_ID
    length: int = 0
    digest_type: DigestType | None = DigestType.CRC32C
    password: bytes | None = b""
    custom_metadata: Mapping[str, bytes] = field(default_factory=dict)
    ctime_ms: int | None = None
    ctoken: int = 0

    @property
    def is_closed(self) -> bool:
        return self.state is LedgerState.CLOSED

    @property
    def last_segment(self) -> Segment:
        return self.segments[-1]

    def ensemble_at(self, entry_id: int) -> tuple[str, ...]:
        """The bookies of the segment that `entry_id` is (or would be) in."""
        for first_entry_id, bookies in reversed(self.segments):
            if first_entry_id <= entry_id:
                return bookies
        raise ValueError(f"entry {entry_id} is before the first segment")

    def with_segment(self, first_entry_id: int, bookies: tuple[str, ...]) -> LedgerMetadata:
        """With the last segment replaced, or one appended (invariant W4). ValueError if
        `first_entry_id` is before the last segment's, which would rewrite history."""
        last_first_entry_id = self.segments[-1][0]
        if first_entry_id < last_first_entry_id:
            raise ValueError(
                f"a segment from entry {first_entry_id} is before the last one, which starts at "
                f"{last_first_entry_id}"
            )
        kept = self.segments[:-1] if first_entry_id == last_first_entry_id else self.segments
        return replace(self, segments=(*kept, (first_entry_id, bookies)))

    def closed_at(self, last_entry_id: int, length: int) -> LedgerMetadata:
        return replace(self, state=LedgerState.CLOSED, last_entry_id=last_entry_id, length=length)

    def validate(self) -> None:
        """MetadataFormatError if the fields contradict each other."""
        sizes = (self.ensemble_size, self.write_quorum_size, self.ack_quorum_size)
        if not sizes[0] >= sizes[1] >= sizes[2] >= 1:
            raise MetadataFormatError(
                "ensemble, write quorum and ack quorum must fall and be at least 1: "
                f"{sizes[0]}/{sizes[1]}/{sizes[2]}"
            )
        if not self.segments:
            raise MetadataFormatError("there is no segment")
        previous = -1
        for first_entry_id, bookies in self.segments:
            if first_entry_id <= previous:
                raise MetadataFormatError(
                    f"segment at entry {first_entry_id} follows one at entry {previous}"
                )
            previous = first_entry_id
            if len(bookies) != self.ensemble_size:
                raise MetadataFormatError(
                    f"segment at entry {first_entry_id} has {len(bookies)} bookies, "
                    f"ensemble size is {self.ensemble_size}"
                )
        if self.last_entry_id < INVALID_ENTRY_ID or self.length < 0:
            raise MetadataFormatError(
                f"last entry {self.last_entry_id} or length {self.length} is negative"
            )


def serialize(metadata: LedgerMetadata) -> bytes:
    """Format version 3."""
    metadata.validate()
    message = _Format()
    message.quorumSize = metadata.write_quorum_size
    message.ensembleSize = metadata.ensemble_size
    message.ackQuorumSize = metadata.ack_quorum_size
    message.length = metadata.length
    message.lastEntryId = metadata.last_entry_id if metadata.is_closed else INVALID_ENTRY_ID
    message.state = metadata.state
    for first_entry_id, bookies in metadata.segments:
        segment = message.segment.add()
        segment.firstEntryId = first_entry_id
        segment.ensembleMember.extend(bookies)
    if metadata.digest_type is not None:
        message.digestType = metadata.digest_type
    if metadata.password is not None:
        message.password = metadata.password
    if metadata.ctime_ms is not None:
        message.ctime = metadata.ctime_ms
    for key, value in metadata.custom_metadata.items():
        entry = message.customMetadata.add()
        entry.key = key
        entry.value = value
    message.cToken = metadata.ctoken
    payload: bytes = message.SerializeToString()
    return _VERSION_PREFIX + b"3\n" + _varint(len(payload)) + payload


def parse(data: bytes) -> LedgerMetadata:
    """Versions 1, 2 and 3; MetadataFormatError tells what is wrong."""
    end = data.find(b"\n", 0, len(_VERSION_PREFIX) + 12)
    if not data.startswith(_VERSION_PREFIX) or end < 0:
        raise MetadataFormatError(f"no version line in front: {bytes(data[:40])!r}")
    version = data[len(_VERSION_PREFIX) : end]
    payload = data[end + 1 :]
    match version:
        case b"3":
            metadata = _from_message(_parse_delimited(payload))
        case b"2":
            metadata = _from_message(_parse_text(payload))
        case b"1":
            metadata = _parse_v1(payload)
        case _:
            raise MetadataFormatError(f"version {bytes(version)!r} is not 1, 2 or 3")
    metadata.validate()
    return metadata


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _parse_delimited(payload: bytes) -> Message:
    size = shift = 0
    for byte in payload[:5]:
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    else:
        raise MetadataFormatError("the size in front of the message is cut or too large")
    body = payload[shift // 7 :][:size]
    if len(body) != size:
        raise MetadataFormatError(f"the message has {len(body)} of {size} bytes")
    message = _Format()
    try:
        message.ParseFromString(bytes(body))
    except DecodeError as error:
        raise MetadataFormatError(f"not a LedgerMetadataFormat message: {error}") from error
    return message


def _parse_text(payload: bytes) -> Message:
    message = _Format()
    from google.protobuf import text_format  # slow to import, and only format 2 needs it

    try:
        text_format.Parse(bytes(payload).decode("utf-8"), message)
    except (text_format.ParseError, UnicodeDecodeError, ValueError) as error:
        raise MetadataFormatError(f"not a LedgerMetadataFormat text: {error}") from error
    return message


def _from_message(message: Message) -> LedgerMetadata:
    missing = message.FindInitializationErrors()
    if missing:
        raise MetadataFormatError(f"fields are missing: {', '.join(missing)}")
    state = LedgerState(message.state)
    return LedgerMetadata(
        ensemble_size=message.ensembleSize,
        write_quorum_size=message.quorumSize,
        ack_quorum_size=(
            message.ackQuorumSize if message.HasField("ackQuorumSize") else message.quorumSize
        ),
        segments=tuple(
            (segment.firstEntryId, tuple(segment.ensembleMember)) for segment in message.segment
        ),
        state=state,
        last_entry_id=(
            message.lastEntryId
            if state is LedgerState.CLOSED and message.HasField("lastEntryId")
            else INVALID_ENTRY_ID
        ),
        length=message.length,
        digest_type=DigestType(message.digestType) if message.HasField("digestType") else None,
        password=message.password if message.HasField("password") else None,
        custom_metadata={entry.key: entry.value for entry in message.customMetadata},
        ctime_ms=message.ctime if message.HasField("ctime") else None,
        ctoken=message.cToken,
    )


def _parse_v1(payload: bytes) -> LedgerMetadata:
    """Lines: Qw, E, length, then `first entry\\tbookie\\t...` per segment, then
    `last entry\\tCLOSED` where the last entry -102 means «in recovery»."""
    state, last_entry_id = LedgerState.OPEN, INVALID_ENTRY_ID
    segments: list[Segment] = []
    try:
        lines = bytes(payload).decode("utf-8").splitlines()
        quorum_size, ensemble_size, length = int(lines[0]), int(lines[1]), int(lines[2])
        for line in lines[3:]:
            first, *rest = line.split("\t")
            if rest == ["CLOSED"]:
                if int(first) == _IN_RECOVERY_V1:
                    state = LedgerState.IN_RECOVERY
                else:
                    state, last_entry_id = LedgerState.CLOSED, int(first)
                break
            segments.append((int(first), tuple(rest)))
    except (ValueError, IndexError) as error:
        raise MetadataFormatError(f"not metadata of version 1: {error}") from error
    return LedgerMetadata(
        ensemble_size=ensemble_size,
        write_quorum_size=quorum_size,
        ack_quorum_size=quorum_size,
        segments=tuple(segments),
        state=state,
        last_entry_id=last_entry_id,
        length=length,
        digest_type=None,
        password=None,
    )


_Format: Message = message_classes(
    "ledger_metadata.proto",
    """
Segment
  1 repeated string ensembleMember
  2 required int64 firstEntryId
cMetadataMapEntry
  1 optional string key
  2 optional bytes value
LedgerMetadataFormat
  1 required int32 quorumSize
  2 required int32 ensembleSize
  3 required int64 length
  4 optional int64 lastEntryId
  5 required State state
  6 repeated Segment segment
  7 optional DigestType digestType
  8 optional bytes password
  9 optional int32 ackQuorumSize
  10 optional int64 ctime
  11 repeated cMetadataMapEntry customMetadata
  12 optional int64 cToken
""",
    {"State": LedgerState, "DigestType": DigestType},
)["LedgerMetadataFormat"]
