"""What AlterConfigs and IncrementalAlterConfigs make of the settings that a resource has: pure.

Both give the texts that are to be stored. Whether a resource takes them is checked by its owner.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from runtime.config import ConfigTable, ConfigType, parse_value
from wire.kafka.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from broker.cluster.registry import Described

#: From the settings that are stored to those that are to be.
Change = Callable[[Mapping[str, str]], dict[str, str]]


class Operation(enum.IntEnum):
    """Kafka's `AlterConfigOp.OpType`."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


_LIST_ONLY = (Operation.APPEND, Operation.SUBTRACT)


def replaced(pairs: Sequence[tuple[str, str | None]]) -> dict[str, str]:
    """AlterConfigs: `pairs` and nothing else. KafkaError: INVALID_REQUEST."""
    after = {}
    for name, value in pairs:
        if value is None:
            raise _no_value(name)
        after[name] = value
    return after


def incremented(
    before: Mapping[str, str],
    operations: Sequence[tuple[str, int, str | None]],
    table: ConfigTable,
    in_force: Callable[[], Iterable[Described]],
) -> dict[str, str]:
    """IncrementalAlterConfigs: `before` after (setting, operation, value) each. A list that is not
    set begins as what is in force. KafkaError: INVALID_REQUEST, INVALID_CONFIG."""
    after = dict(before)
    if len({setting for setting, _, _ in operations}) < len(operations):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "a setting is named twice")
    for setting, number, value in operations:
        operation = _operation(number)
        if operation is Operation.DELETE:
            after.pop(setting, None)
        elif value is None:
            raise _no_value(setting)
        elif operation in _LIST_ONLY:
            key = table.get(setting)
            if key is None or key.type is not ConfigType.LIST:
                raise KafkaError(
                    ErrorCode.INVALID_CONFIG,
                    f"{operation.name} is for lists, which {setting} is not",
                )
            current = before.get(setting)
            if current is None:
                current = next(one.value or "" for one in in_force() if one.key.name == setting)
            after[setting] = _edited(current, operation, value)
        else:
            after[setting] = value
    return after


def _edited(current: str, operation: Operation, value: str) -> str:
    """A list with elements added or removed."""
    elements, edit = _elements(current), _elements(value)
    if operation is Operation.APPEND:
        elements += [element for element in edit if element not in elements]
    else:
        elements = [element for element in elements if element not in edit]
    return ",".join(elements)


def _elements(text: str) -> list[str]:
    elements = parse_value(ConfigType.LIST, text)
    assert isinstance(elements, tuple)
    return list(elements)


def _operation(number: int) -> Operation:
    try:
        return Operation(number)
    except ValueError:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"there is no operation {number}") from None


def _no_value(setting: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, f"{setting} has no value")
