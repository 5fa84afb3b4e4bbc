"""How what is kept in a log is declared: messages of a record type's own versions."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from wire.kafka.message import NO_VERSIONS, Message, MessageInfo, VersionRange

if TYPE_CHECKING:
    from collections.abc import Callable

    from wire.kafka.api_keys import ApiKey

M = TypeVar("M", bound=Message)


def stored(api: ApiKey, versions: str, flexible: str | None = None) -> Callable[[type[M]], type[M]]:
    """Class decorator of what is kept in a log: `api` is the one whose handling writes it."""
    declared = VersionRange.parse(versions)
    info = MessageInfo(
        api,
        False,
        range(declared.low, declared.high + 1),
        NO_VERSIONS if flexible is None else VersionRange.parse(flexible),
    )

    def decorate(cls: type[M]) -> type[M]:
        cls.INFO = info
        return cls

    return decorate
