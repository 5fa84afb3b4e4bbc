"""Protobuf messages declared in code: a few lines of text in, the library's own classes out.

    Segment
      1 repeated string ensembleMember
      2 required int64 firstEntryId

A line at the margin names a message (`Outer.Inner` for a nested one, after its outer), the lines
below it its fields: number, label, type, name. A type is one of protobuf's scalars, or the name of
a message of the same text. There are no enums: on the wire they are int32, and declared as that,
an absent one reads as 0 instead of as its first name, and an unknown one can be told to who sent
it. For messages that are printed as text, `enums` gives them their names back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

if TYPE_CHECKING:
    from collections.abc import Mapping
    from enum import IntEnum

#: Its fields exist only at run time, so a type checker cannot know them.
Message: TypeAlias = Any

_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "bool": _Field.TYPE_BOOL,
    "bytes": _Field.TYPE_BYTES,
    "int32": _Field.TYPE_INT32,
    "int64": _Field.TYPE_INT64,
    "string": _Field.TYPE_STRING,
    "uint32": _Field.TYPE_UINT32,
    "uint64": _Field.TYPE_UINT64,
}
_LABELS = {
    "optional": _Field.LABEL_OPTIONAL,
    "repeated": _Field.LABEL_REPEATED,
    "required": _Field.LABEL_REQUIRED,
}


def message_classes(
    file_name: str, declaration: str, enums: Mapping[str, type[IntEnum]] | None = None
) -> dict[str, Message]:
    """The classes by name, proto2, in a descriptor pool of their own. `enums` are top-level."""
    file = descriptor_pb2.FileDescriptorProto(name=file_name, syntax="proto2")
    for enum_name, members in (enums or {}).items():
        enum = file.enum_type.add(name=enum_name)
        for member in members:
            enum.value.add(name=f"{member.name}", number=member.value)
    messages: dict[str, descriptor_pb2.DescriptorProto] = {}
    current = None
    for line in declaration.strip().splitlines():
        if not line.startswith(" "):
            outer, _, name = line.strip().rpartition(".")
            add = messages[outer].nested_type.add if outer else file.message_type.add
            current = messages[line.strip()] = add(name=name)
            continue
        assert current is not None
        number, label, kind, name = line.split()
        field = current.field.add(name=name, number=int(number), label=_LABELS[label])
        if kind in _SCALARS:
            field.type = _SCALARS[kind]
        else:
            field.type = _Field.TYPE_ENUM if kind in (enums or {}) else _Field.TYPE_MESSAGE
            field.type_name = f".{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(name)) for name in messages
    }
