"""JSON and base64url of strangers, read strictly: what could mean two things means nothing."""

from __future__ import annotations

import binascii
import json
import re
from typing import Any

_BASE64URL = re.compile(r"[-_A-Za-z0-9]*")
_TO_BASE64 = str.maketrans("-_", "+/")


def read_object(data: bytes) -> dict[str, Any]:
    """An object in UTF-8 in which no name comes twice, at whatever depth. ValueError."""
    try:
        value = json.loads(
            data.decode(), object_pairs_hook=_distinct, parse_constant=_refuse_constant
        )
    except RecursionError:
        raise ValueError("nested very deeply") from None
    except json.JSONDecodeError as error:
        # Its own words would repeat nothing, but hold the place only.
        raise ValueError(f"no JSON at {error.pos}") from None
    if not isinstance(value, dict):
        raise ValueError("no JSON object")
    return value


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("a name comes twice")
    return value


def _refuse_constant(name: str) -> Any:  # noqa: ANN401  # as json's
    raise ValueError(f"{name} is no JSON")


def decode_base64url(text: str) -> bytes:
    """Without padding, as JOSE has it. ValueError."""
    if not _BASE64URL.fullmatch(text):
        raise ValueError("no base64url")
    padded = text.translate(_TO_BASE64) + "=" * (-len(text) % 4)
    try:
        return binascii.a2b_base64(padded, strict_mode=True)
    except binascii.Error:
        raise ValueError("no base64url") from None
