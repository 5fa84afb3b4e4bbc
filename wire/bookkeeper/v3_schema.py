"""The messages of BookKeeper's protobuf protocol (BookkeeperProtocol.proto), by its own names.

Enums are int32 here (protobuf_schema.py), so an absent `flag` is 0, not the first flag. The
requestContext of Request (field 200, logging context of Java clients) is left out: it would let a
peer make a hundred bytes of objects out of three.
"""

from __future__ import annotations

from wire.bookkeeper.protobuf_schema import Message, message_classes

_CLASSES = message_classes(
    "bookkeeper_protocol.proto",
    """
BKPacketHeader
  1 required int32 version
  2 required int32 operation
  3 required uint64 txnId
  4 optional uint32 priority
ReadRequest
  1 required int64 ledgerId
  2 required int64 entryId
  3 optional bytes masterKey
  4 optional int64 previousLAC
  5 optional int64 timeOut
  100 optional int32 flag
AddRequest
  1 required int64 ledgerId
  2 required int64 entryId
  3 required bytes masterKey
  4 required bytes body
  5 optional int32 writeFlags
  100 optional int32 flag
AuthMessage
  1 required string authPluginName
  2 required bytes payload
WriteLacRequest
  1 required int64 ledgerId
  2 required int64 lac
  3 required bytes masterKey
  4 required bytes body
ReadLacRequest
  1 required int64 ledgerId
GetBookieInfoRequest
  1 optional int64 requested
StartTLSRequest
ForceLedgerRequest
  1 required int64 ledgerId
GetListOfEntriesOfLedgerRequest
  1 required int64 ledgerId
Request
  1 required BKPacketHeader header
  100 optional ReadRequest readRequest
  101 optional AddRequest addRequest
  102 optional AuthMessage authRequest
  103 optional WriteLacRequest writeLacRequest
  104 optional ReadLacRequest readLacRequest
  105 optional GetBookieInfoRequest getBookieInfoRequest
  106 optional StartTLSRequest startTLSRequest
  107 optional ForceLedgerRequest forceLedgerRequest
  108 optional GetListOfEntriesOfLedgerRequest getListOfEntriesOfLedgerRequest
ReadResponse
  1 required int32 status
  2 required int64 ledgerId
  3 required int64 entryId
  4 optional bytes body
  5 optional int64 maxLAC
  6 optional int64 lacUpdateTimestamp
AddResponse
  1 required int32 status
  2 required int64 ledgerId
  3 required int64 entryId
WriteLacResponse
  1 required int32 status
  2 required int64 ledgerId
ReadLacResponse
  1 required int32 status
  2 required int64 ledgerId
  3 optional bytes lacBody
  4 optional bytes lastEntryBody
GetBookieInfoResponse
  1 required int32 status
  2 optional int64 totalDiskCapacity
  3 optional int64 freeDiskSpace
StartTLSResponse
ForceLedgerResponse
  1 required int32 status
  2 required int64 ledgerId
GetListOfEntriesOfLedgerResponse
  1 required int32 status
  2 required int64 ledgerId
  3 optional bytes availabilityOfEntriesOfLedger
Response
  1 required BKPacketHeader header
  2 required int32 status
  100 optional ReadResponse readResponse
  101 optional AddResponse addResponse
  102 optional AuthMessage authResponse
  103 optional WriteLacResponse writeLacResponse
  104 optional ReadLacResponse readLacResponse
  105 optional GetBookieInfoResponse getBookieInfoResponse
  106 optional StartTLSResponse startTLSResponse
  107 optional ForceLedgerResponse forceLedgerResponse
  108 optional GetListOfEntriesOfLedgerResponse getListOfEntriesOfLedgerResponse
""",
)

AuthMessage: Message = _CLASSES["AuthMessage"]
RequestMessage: Message = _CLASSES["Request"]
ResponseMessage: Message = _CLASSES["Response"]
