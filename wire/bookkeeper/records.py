"""What the metadata store keeps besides ledgers: registration, and auto-recovery's records.

    /ledgers/LAYOUT                                    a constant (ledger/metadata.py)
    /ledgers/INSTANCEID                                UUID as text
    /ledgers/available[/readonly]/<bookie id>          BookieServiceInfo
    /ledgers/underreplication/LAYOUT                   UNDERREPLICATION_LAYOUT
    .../ledgers/hhhh/hhhh/hhhh/hhhh/urL<ledger id>     UnderreplicatedLedger
    .../locks/urL<ledger id>                           holder's bookie id (a host name in Java)
    .../auditorelection, its V_<number>                bookie id of the auditor, of the candidate
    .../disable                                        empty; its presence disables replication
    .../lostBookieRecoveryDelay                        seconds, as decimal text
    .../checkallledgersctime, placementpolicycheckctime, replicascheckctime    when last done

Bytes as BookKeeper writes them (DataFormats.proto, LedgerLayout.java, ZKRegistrationManager.java,
ZkLedgerUnderreplicationManager.java, ZkLedgerAuditorManager.java; docs/formats.md). Whatever
cannot be read raises MetadataFormatError, which says why.
"""

from __future__ import annotations

import re
from dataclasses import field
from typing import TYPE_CHECKING
from uuid import UUID

from google.protobuf.message import DecodeError

from wire.bookkeeper.ledger_metadata import MetadataFormatError
from wire.bookkeeper.protobuf_schema import Message, message_classes
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

#: The endpoint that clients talk to, and what it speaks.
BOOKIE_ENDPOINT_ID = "bookie"
#: A property of ours in a registration: `/region/rack`.
LOCATION_PROPERTY = "networkLocation"
BOOKIE_ENDPOINT_PROTOCOL = "bookie-rpc"


UNDERREPLICATION_LAYOUT = b'type: "BASIC"\nversion: 1\n'

_UNDERREPLICATED_NAME = re.compile(r"urL([0-9]{1,19})$")
_PORT_MAX = 65535


@dataclass(slots=True, frozen=True)
class Endpoint:
    id: str
    host: str
    port: int
    protocol: str = BOOKIE_ENDPOINT_PROTOCOL
    auth: tuple[str, ...] = ()
    extensions: tuple[str, ...] = ()


@dataclass(slots=True, frozen=True)
class BookieServiceInfo:
    endpoints: tuple[Endpoint, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def bookie_endpoint(self) -> Endpoint | None:
        """The one for ledger clients; None if the bookie has none."""
        for endpoint in self.endpoints:
            if endpoint.id == BOOKIE_ENDPOINT_ID:
                return endpoint
        return None


def encode_service_info(info: BookieServiceInfo) -> bytes:
    message = _ServiceInfo()
    for endpoint in info.endpoints:
        message.endpoints.add(
            id=endpoint.id,
            port=endpoint.port,
            host=endpoint.host,
            protocol=endpoint.protocol,
            auth=endpoint.auth,
            extensions=endpoint.extensions,
        )
    # A map of protobuf's is this on the wire.
    for key, value in info.properties.items():
        message.properties.add(key=key, value=value)
    encoded: bytes = message.SerializeToString()
    return encoded


def parse_service_info(data: bytes, bookie_id: str) -> BookieServiceInfo:
    """Of the bookie's registration. Empty is that of bookies before 4.11: the id is the address."""
    if not data:
        return BookieServiceInfo((_legacy_endpoint(bookie_id),))
    message = _binary(_ServiceInfo(), data, f"service info of bookie {bookie_id}")
    try:
        return BookieServiceInfo(
            tuple(
                Endpoint(
                    _text(endpoint.id),
                    _text(endpoint.host),
                    endpoint.port,
                    _text(endpoint.protocol),
                    tuple(map(_text, endpoint.auth)),
                    tuple(map(_text, endpoint.extensions)),
                )
                for endpoint in message.endpoints
            ),
            {_text(entry.key): _text(entry.value) for entry in message.properties},
        )
    except UnicodeDecodeError as error:
        raise MetadataFormatError(f"service info of bookie {bookie_id}: {error}") from error


def _legacy_endpoint(bookie_id: str) -> Endpoint:
    host, _, port = bookie_id.rpartition(":")
    if not host or not port.isascii() or not port.isdecimal() or int(port[:6]) > _PORT_MAX:
        raise MetadataFormatError(
            f"bookie {bookie_id!r} registered without service info, and its id is no host:port"
        )
    return Endpoint(BOOKIE_ENDPOINT_ID, host, int(port))


def parse_instance_id(data: bytes) -> str:
    """The UUID that tells clusters apart, as it is written there."""
    try:
        text = bytes(data).decode("ascii").strip()
        UUID(text)
    except ValueError as error:
        raise MetadataFormatError(f"INSTANCEID {bytes(data[:60])!r} is no UUID") from error
    return text


@dataclass(slots=True, frozen=True)
class UnderreplicatedLedger:
    """`replicas`: ids of the bookies whose copies are missing. `ctime_ms`: when it was found."""

    replicas: tuple[str, ...]
    ctime_ms: int | None = None


def encode_underreplicated(ledger: UnderreplicatedLedger) -> bytes:
    return _to_text(_Underreplicated(replica=ledger.replicas, ctime=ledger.ctime_ms))


def parse_underreplicated(data: bytes) -> UnderreplicatedLedger:
    message = _from_text(_Underreplicated(), data, "under-replicated ledger")
    ctime_ms = message.ctime if message.HasField("ctime") else None
    return UnderreplicatedLedger(tuple(message.replica), ctime_ms)


def underreplicated_path(ledger_id: int) -> str:
    """Below `underreplication/ledgers`."""
    digits = f"{ledger_id:016x}"
    parts = [digits[start : start + 4] for start in range(0, 16, 4)]
    return "/".join([*parts, underreplicated_name(ledger_id)])


def underreplicated_name(ledger_id: int) -> str:
    """The last part of its path, and the whole name of its lock."""
    return f"urL{ledger_id:010d}"


def parse_underreplicated_name(name: str) -> int:
    """The ledger id of such a name or path."""
    match = _UNDERREPLICATED_NAME.search(name)
    if match is None:
        raise MetadataFormatError(f"{name!r} is no name of an under-replicated ledger")
    return int(match[1])


def encode_holder(bookie_id: str) -> bytes:
    """Of a lock, or of a vote in the auditor's election: who has it."""
    return _to_text(_Holder(bookieId=bookie_id))


def parse_holder(data: bytes) -> str | None:
    """None if it does not say, as Java's locks may."""
    message = _from_text(_Holder(), data, "lock or vote")
    return str(message.bookieId) if message.HasField("bookieId") else None


def encode_check_time(time_ms: int) -> bytes:
    """When a check of the auditor was last done. The three records differ in their names only;
    they are binary."""
    encoded: bytes = _CheckTime(ctime=time_ms).SerializeToString()
    return encoded


def parse_check_time(data: bytes) -> int | None:
    """None if it was never done."""
    message = _binary(_CheckTime(), data, "time of a check")
    return int(message.ctime) if message.HasField("ctime") else None


def encode_recovery_delay(delay_s: int) -> bytes:
    return b"%d" % delay_s


def parse_recovery_delay(data: bytes) -> int:
    """Seconds."""
    if re.fullmatch(rb"[0-9]{1,10}", data) is None:
        raise MetadataFormatError(f"lostBookieRecoveryDelay {bytes(data[:40])!r} is no number")
    return int(data)


def _to_text(message: Message) -> bytes:
    # As Java prints them: what is not ASCII, escaped.
    from google.protobuf import text_format  # slow to import, and seldom needed

    text: str = text_format.MessageToString(message, as_utf8=False)
    return text.encode()


def _from_text(message: Message, data: bytes, what: str) -> Message:
    from google.protobuf import text_format  # slow to import, and seldom needed

    try:
        return text_format.Parse(bytes(data).decode("utf-8"), message)
    except (text_format.ParseError, ValueError) as error:
        raise MetadataFormatError(f"{what}: {error}") from error


def _binary(message: Message, data: bytes, what: str) -> Message:
    try:
        message.ParseFromString(bytes(data))
    except DecodeError as error:
        raise MetadataFormatError(f"{what}: {error}") from error
    missing = message.FindInitializationErrors()
    if missing:
        raise MetadataFormatError(f"{what}: fields are missing: {', '.join(missing)}")
    return message


def _text(value: str | bytes) -> str:
    """proto2 gives strings that are no UTF-8 as bytes. UnicodeDecodeError."""
    return value if isinstance(value, str) else value.decode("utf-8")


_CLASSES = message_classes(
    "data_formats.proto",
    """
Endpoint
  1 required string id
  2 required int32 port
  3 required string host
  4 required string protocol
  5 repeated string auth
  6 repeated string extensions
Property
  1 optional string key
  2 optional string value
BookieServiceInfo
  6 repeated Endpoint endpoints
  7 repeated Property properties
UnderreplicatedLedger
  1 repeated string replica
  2 optional int64 ctime
Holder
  1 optional string bookieId
CheckTime
  1 optional int64 ctime
""",
)
_ServiceInfo: Message = _CLASSES["BookieServiceInfo"]
_Underreplicated: Message = _CLASSES["UnderreplicatedLedger"]
_Holder: Message = _CLASSES["Holder"]
_CheckTime: Message = _CLASSES["CheckTime"]
