"""What a segment of a trace's line begins with, in words: an API's name, a ledger and an entry.

A segment may be the middle of a frame; then there is nothing to say, and its bytes are left out:
whoever wants them has the seed.
"""

from __future__ import annotations

import re

from wire.bookkeeper.status import Status
from wire.kafka.api_keys import ApiKey

_RECEIVE = re.compile(r"^( *[\d.]+ (\S+) +receive +c\d+ from (\S+) (\d+) bytes )([0-9a-f]*)\n$")
_OPERATIONS = {1: "add", 2: "read", 3: "auth", 4: "read lac", 5: "write lac", 7: "batch read"}
_FRAME_MAX = 1 << 24
_V2 = 2
#: A fencing read, and a recovery's add.
_FLAGS = {("read", 1): " fencing", ("add", 2): " recovering"}


def readable(line: str) -> str:
    """The trace's line, as a person wants it."""
    match = _RECEIVE.match(line)
    if match is None:
        return line
    head, node, source, size, data = match.groups()
    words = _describe(node, source, bytes.fromhex(data))
    if not words:
        words = "..."
    elif int.from_bytes(bytes.fromhex(data)[:4], "big") + 4 < int(size):
        words += ", and more"
    return f"{head}{words}\n"


def _describe(node: str, source: str, data: bytes) -> str:
    size = int.from_bytes(data[:4], "big")
    if len(data) < 12 or not 4 <= size < _FRAME_MAX:
        return ""
    if node.startswith("bookie"):
        return _request(data[4:])
    if source.startswith("bookie"):
        return _answer(data[4:])
    if node.startswith("broker"):
        key, version = data[4:6], int.from_bytes(data[6:8], "big")
        if int.from_bytes(key, "big") not in ApiKey.__members__.values():
            return ""
        name = ApiKey(int.from_bytes(key, "big")).name
        return f"{name} v{version} #{int.from_bytes(data[8:12], 'big')}"
    return f"answer #{int.from_bytes(data[4:8], 'big')}" if source.startswith("broker") else ""


def _operation(frame: bytes) -> str | None:
    return _OPERATIONS.get(frame[1]) if frame[0] == _V2 else None


def _request(frame: bytes) -> str:
    """Version, operation, flags; for an add a master key of 20 bytes; ledger, entry."""
    operation = _operation(frame)
    if operation is None:
        return ""
    flags = _FLAGS.get((operation, int.from_bytes(frame[2:4], "big")), "")
    return f"{operation}{flags}{_entry(frame[24:] if operation == 'add' else frame[4:])}"


def _answer(frame: bytes) -> str:
    """Version, operation, flags, status; ledger, entry."""
    operation = _operation(frame)
    status = int.from_bytes(frame[4:8], "big")
    if operation is None or status not in Status.__members__.values():
        return ""
    return f"{operation} answered {Status(status).name}{_entry(frame[8:])}"


def _entry(data: bytes) -> str:
    if len(data) < 16:
        return ""
    ledger_id = int.from_bytes(data[:8], "big")
    return f" ledger={ledger_id} entry={int.from_bytes(data[8:16], 'big', signed=True)}"
