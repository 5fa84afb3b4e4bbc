"""What each call of metadata/remote.py does with the store it is meant for (metadata/served.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from metadata.remote_frames import (
    Field,
    FrameError,
    Kind,
    Message,
    encode,
    encode_error,
    parse_op,
)
from metadata.store import NUMBERS_MAX, MetadataError, Node

if TYPE_CHECKING:
    from metadata.store import MetadataStore

#: Of an answer to GET_MANY; the client asks for the rest.
NODES_SIZE_MAX_BYTES = 4 << 20


async def run_call(store: MetadataStore, message: Message) -> list[Field]:
    """The answer's fields. MetadataError, ValueError."""
    match message.kind, message.fields:
        case Kind.GET_MANY, [list(paths)]:
            return [_nodes(await store.get_many([_text(path) for path in paths]))]
        case Kind.EXISTS, [str(path)]:
            return [int(await store.exists(path))]
        case Kind.SYNC, [str(path)]:
            await store.sync(path)
            return []
        case Kind.CREATE, [str(path), bytes(data), int(ephemeral), int(sequence), int(parents)]:
            made = await store.create(
                path,
                data,
                ephemeral=bool(ephemeral),
                sequence=bool(sequence),
                make_parents=bool(parents),
            )
            return [made]
        case Kind.TAKE_NUMBERS, [str(path), int(count)] if 0 < count <= NUMBERS_MAX:
            return [list[Field](await store.take_numbers(path, count))]
        case Kind.PUT, [str(path), bytes(data), int(version)]:
            return [await store.put(path, data, version)]
        case Kind.DELETE, [str(path), int(version)]:
            await store.delete(path, version)
            return []
        case Kind.CHILDREN, [str(path)]:
            return [list[Field](await store.children(path))]
        case Kind.MULTI, [list(ops)]:
            await store.multi([parse_op(op) for op in ops])
            return []
        case Kind.OWNS, [str(path)]:
            return [int(await store.owns(path))]
    raise FrameError(f"{message.kind.name} with other fields than it has")


def encode_answer(message: Message, fields: list[Field]) -> bytes:
    try:
        return encode(message.kind, message.number, *fields)
    except FrameError as error:
        return encode_error(message.number, MetadataError(str(message.fields[0]), str(error)))


def _text(field: Field) -> str:
    if not isinstance(field, str):
        raise FrameError("a path that is no text")
    return field


def _nodes(nodes: list[Node | None]) -> list[Field]:
    """Of as many nodes as a frame takes; at least one."""
    fields: list[Field] = []
    size = 0
    for node in nodes:
        size += 0 if node is None else len(node.data)
        if fields and size > NODES_SIZE_MAX_BYTES:
            break
        fields += (None, None) if node is None else (node.data, node.version)
    return fields
