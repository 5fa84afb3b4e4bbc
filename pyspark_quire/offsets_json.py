"""Numbers by topic and partition, as the options of Spark's `kafka` source have them in JSON:

    {"topic": {"0": 23, "1": -2}}

Strict: what could mean two things, as a key that is there twice, is an error. Pure.
"""

from __future__ import annotations

import re
from typing import Any

from broker.security.sasl.oauth.json_core import read_object

EARLIEST, LATEST = -2, -1
INT32_MAX = 2**31 - 1
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
#: Of a text, in an error.
_SHOWN = 200
#: Without zeros in front, which would name a partition twice.
_PARTITION = re.compile(r"0|[1-9]\d{0,9}", re.ASCII)

#: topic -> partition -> number
PerPartition = dict[str, dict[int, int]]


def per_partition(name: str, text: str, least: int) -> PerPartition:
    """ValueError names `name`, the option."""
    found = json_object(name, text)
    result: PerPartition = {}
    for topic, numbers in found.items():
        if not isinstance(numbers, dict):
            shown = text[:_SHOWN]
            raise ValueError(f'{name}: {shown!r}: expected JSON such as {{"topic":{{"0":23}}}}')
        result[topic] = {}
        for partition, number in numbers.items():
            if not _PARTITION.fullmatch(partition) or int(partition) > INT32_MAX:
                raise ValueError(f"{name}: {topic}: {partition[:_SHOWN]!r} is no partition")
            if type(number) is not int or not least <= number <= INT64_MAX:
                raise ValueError(f"{name}: {topic} {partition}: {number!r} cannot be")
            result[topic][int(partition)] = number
    return result


def json_object(name: str, text: str) -> dict[str, Any]:
    """ValueError names `name`, the option."""
    try:
        return read_object(text.encode())
    except ValueError as error:
        raise ValueError(f"{name}: {text[:_SHOWN]!r} is no JSON object: {error}") from None
