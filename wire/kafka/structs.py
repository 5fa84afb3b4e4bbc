"""What declared classes are made of: dataclasses with slots, some four hundred and sixty."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, dataclass_transform

from wire.dataclass import dataclass

if TYPE_CHECKING:
    from dataclasses import Field

S = TypeVar("S", bound="Struct")


class Struct:
    """Base of every declared class, the nested ones too. Two are equal if they are of one class
    and all fields are; there is no hash, as they are mutable."""

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


@dataclass_transform()
def declared(cls: type[S]) -> type[S]:
    """Class decorator of every declared class, each field of which has a default."""
    return dataclass(slots=True)(cls)
