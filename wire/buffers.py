"""The one name for «something that holds bytes» in every layer.

A memoryview pins the whole buffer that it looks into; whoever keeps one beyond the call that
gave it accounts for the buffer's size, or copies (docs/architecture.md, «Memory and time»).
"""

from collections.abc import Sequence
from typing import TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview

#: A value in pieces that are contiguous on the wire; what `sendmsg` and `pwritev` take.
Buffers: TypeAlias = Sequence[Buffer]
