"""Logs: one line of key=value pairs for each event, on stderr.

    time=2026-03-01T12:00:00.123Z level=info logger=bookie.journal event="journal rolled" file_id=7

A room logs through the standard library, `logging.getLogger(__name__)`, in one of two styles:

    logger.info("journal rolled", kv(file_id=7))          # preferred: values are quoted as needed
    logger.info("journal rolled file_id=%d", 7)           # the same line

State transitions are INFO, requests DEBUG, what an operator should look at WARNING, what ends a
component ERROR. A value with a space, a quote or a control character is written as a JSON string,
so that no peer can forge a line. A traceback follows its line, each line of it indented.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from collections.abc import Mapping
from typing import IO, Any

LEVELS = ("debug", "info", "warning", "error")

#: Where the pairs of a message start: a name and an equals sign after white space.
_FIRST_PAIR = re.compile(r"(?:^|(?<=\s))[A-Za-z_][\w.]*=")
_PLAIN_VALUE = re.compile(r"[^\s\"=\x00-\x1f\x7f-\x9f]+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def kv(**fields: object) -> dict[str, object]:
    """The pairs of one log call. Formatted only if the line is written."""
    return fields


def format_value(value: object) -> str:
    """`value` as it stands after an equals sign; quoted when it would be ambiguous."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    text = str(value)
    if _PLAIN_VALUE.fullmatch(text):
        return text
    return _CONTROL.sub(_escape, json.dumps(text))


def _escape(match: re.Match[str]) -> str:
    return f"\\u{ord(match.group()):04x}"


class KeyValueFormatter(logging.Formatter):
    """Formats a record as one line of pairs; see the module's contract."""

    def __init__(self, process: str = "") -> None:
        super().__init__()
        self._process = f"process={format_value(process)} " if process else ""

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        pairs = ""
        match = _FIRST_PAIR.search(message)
        if match is not None:
            message, pairs = message[: match.start()].rstrip(), message[match.start() :]
        parts = [
            f"time={self.formatTime(record)}",
            f"level={record.levelname.lower()}",
            f"{self._process}logger={record.name}",
            f"event={format_value(message)}",
        ]
        if pairs:
            parts.append(_CONTROL.sub(_escape, pairs))
        if isinstance(record.args, Mapping):
            parts.extend(f"{name}={format_value(value)}" for name, value in record.args.items())
        line = " ".join(parts)
        if record.exc_info:
            trace = self.formatException(record.exc_info)
            line += "\n\t" + trace.replace("\n", "\n\t")
        return line

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        return f"{seconds}.{int(record.msecs):03d}Z"


def parse_levels(text: str) -> dict[str, int]:
    """Levels by logger name from `info` or `info,bookie=debug`; "" is the root logger.

    ValueError names the part that is wrong."""
    levels: dict[str, int] = {}
    for part in text.split(","):
        name, _, level = part.strip().rpartition("=")
        if level.lower() not in LEVELS:
            raise ValueError(f"log level {level!r} is none of {', '.join(LEVELS)}")
        levels[name] = getattr(logging, level.upper())
    return levels


def setup_logging(
    levels: str = "info", stream: IO[str] | None = None, *, process: str = ""
) -> None:
    """Sends all loggers to `stream` (stderr) from here on, replacing earlier handlers. `process` is
    in every line, if it is given: for processes that share a stream.

    ValueError as `parse_levels`."""
    parsed = parse_levels(levels)
    handler: logging.StreamHandler[Any] = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(KeyValueFormatter(process))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(parsed.pop("", logging.INFO))
    for name, level in parsed.items():
        logging.getLogger(name).setLevel(level)
