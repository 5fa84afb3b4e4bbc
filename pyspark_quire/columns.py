"""The columns of a record: those of Spark's `kafka` source, under the same names and types.

`ColumnSet` is the option `columns` (default: all) with `includeHeaders`. Spark 4.2 and newer take a
batch only if its Arrow schema is exactly the one that they make of the DDL, nullability included.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

HEADERS = "headers"
_HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])

#: name -> (Spark's DDL, Arrow's type)
TYPES: dict[str, tuple[str, pa.DataType]] = {
    "key": ("binary", pa.binary()),
    "value": ("binary", pa.binary()),
    "topic": ("string", pa.string()),
    "partition": ("int", pa.int32()),
    "offset": ("bigint", pa.int64()),
    "timestamp": ("timestamp", pa.timestamp("us", tz="UTC")),
    "timestampType": ("int", pa.int32()),
    HEADERS: ("array<struct<key: string, value: binary>>", pa.list_(pa.field("element", _HEADER))),
}


@dataclass(slots=True, frozen=True)
class ColumnSet:
    """In the order in which they are shown; at least one."""

    names: tuple[str, ...]

    @property
    def ddl(self) -> str:
        """As `DataSource.schema` may return it."""
        return ", ".join(f"`{name}` {TYPES[name][0]}" for name in self.names)

    @property
    def arrow(self) -> pa.Schema:
        return pa.schema([pa.field(name, TYPES[name][1]) for name in self.names])

    def check(self, schema: StructType) -> None:
        """ValueError if a schema that was given to the reader is another one: columns are chosen by
        the option, and have their types."""
        given = [(each.name, each.dataType.simpleString()) for each in schema.fields]
        if given != [
            (name, TYPES[name][0].replace(": ", ":").replace(", ", ",")) for name in self.names
        ]:
            raise ValueError(
                f"the schema of this source is {self.ddl}; choose columns by the option `columns`"
            )


def column_set(columns: str | None, *, include_headers: bool) -> ColumnSet:
    """`columns`: names separated by commas, as the option has them; None: all, headers only with
    `include_headers`. ValueError names what is unknown or there twice."""
    if columns is None:
        return ColumnSet(tuple(n for n in TYPES if n != HEADERS or include_headers))
    names = tuple(name.strip() for name in columns.split(","))
    for name in names:
        if name not in TYPES:
            raise ValueError(f"columns: {name!r} is none of {', '.join(TYPES)}")
    if len(set(names)) < len(names):
        raise ValueError(f"columns: {columns!r} names a column twice")
    return ColumnSet(names)
