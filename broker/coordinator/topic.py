"""A coordinator's internal topic: which partition a key belongs to (Kafka's
`Utils.abs(key.hashCode()) % n`), and its creation on demand."""

from __future__ import annotations

from functools import lru_cache
from operator import mul
from typing import TYPE_CHECKING

from wire.kafka.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from broker.coordinator.ports import Catalog


#: 31 to the power of what is left, for so many characters at once.
_BLOCK = 256
_POWERS = [pow(31, _BLOCK - 1 - at, 1 << 32) for at in range(_BLOCK)]
_BLOCK_POWER = pow(31, _BLOCK, 1 << 32)
#: Keys up to that length are remembered: longer ones nobody has, and together they are megabytes.
_KEY_LENGTH_MAX = 256


def java_hash(text: str) -> int:
    """Java's String.hashCode as an unsigned 32-bit number: over UTF-16 code units, so a character
    beyond the basic plane counts as two."""
    units = memoryview(text.encode("utf-16-le", "surrogatepass")).cast("H")
    # A character at a time costs three times as much, and a key may have 32,767.
    odd = len(units) % _BLOCK
    value: int = sum(map(mul, units[:odd], _POWERS[_BLOCK - odd :]))
    for at in range(odd, len(units), _BLOCK):
        block = sum(map(mul, units[at : at + _BLOCK], _POWERS))
        value = (value * _BLOCK_POWER + block) & 0xFFFFFFFF
    return value & 0xFFFFFFFF


def partition_for(key: str, partition_count: int) -> int:
    """Keys of all kinds alike. The sign bit is cleared, not the value negated: so
    Kafka does (`Utils.abs`), and a hash of -2^31 goes to partition 0."""
    if len(key) > _KEY_LENGTH_MAX:
        return (java_hash(key) & 0x7FFFFFFF) % partition_count
    return _partition_for(key, partition_count)


@lru_cache(maxsize=16_384)
def _partition_for(key: str, partition_count: int) -> int:
    return (java_hash(key) & 0x7FFFFFFF) % partition_count


class CoordinatorTopic:
    """An internal topic. Who leads a key's partition coordinates the key."""

    __slots__ = ("_catalog", "_configs", "_partition_count_wanted", "name")

    def __init__(
        self, catalog: Catalog, name: str, partition_count: int, configs: Mapping[str, str]
    ) -> None:
        self.name = name
        self._catalog = catalog
        self._partition_count_wanted = partition_count
        self._configs = configs

    @property
    def exists(self) -> bool:
        return self._catalog.get(self.name) is not None

    @property
    def partition_count(self) -> int:
        """The topic's, which is fixed by its creation; before that, the configured one."""
        topic = self._catalog.get(self.name)
        return self._partition_count_wanted if topic is None else topic.partition_count

    def partition_for(self, key: str) -> int:
        return partition_for(key, self.partition_count)

    async def ensure(self) -> None:
        """Creates the topic if it is not there. KafkaError: it cannot be created."""
        if self.exists:
            return
        try:
            await self._catalog.create(self.name, self._partition_count_wanted, self._configs)
        except KafkaError as error:
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise
