"""ConfigRegistry: what is set at which level, what is in force, and where it comes from.

Owner of the broker's static and dynamic settings, and of the stored settings of groups, of
client-metrics subscriptions and of clients' quotas. A topic's overrides are the catalog's; the
registry resolves them.

A broker setting is, strongest first: dynamic of this broker, dynamic of all brokers, static (the
file and the command line), default (KIP-226). Dynamic ones live in metadata as JSON objects of
texts, one node per resource, and are changed by compare-and-set:

    /quire/configs/brokers/<id> and /default    /quire/configs/groups/<hex of the name's UTF-8>
    /quire/configs/client-metrics/<hex of the name's UTF-8>
    /quire/configs/quotas/<hex of the entity's name's UTF-8> (broker/quotas/entities.py)

Reads are plain memory. A change is durable, then in force, then told to the listeners. `run`
follows what other brokers change.
"""

from __future__ import annotations

import enum
import itertools
import json
import logging
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import trio

from broker.cluster import optimistic
from broker.cluster.config import (
    BROKER_CONFIGS,
    BrokerConfig,
    TopicConfig,
    check_cleaner_threads,
    check_quorums,
)
from broker.cluster.config_group import (
    CLIENT_METRICS_CONFIGS,
    GROUP_BROKER_NAMES,
    GROUP_CONFIGS,
    GROUP_LIMITS,
    GROUP_MOST,
)
from broker.cluster.config_listener import (
    LISTENER_PREFIX,
    check_listener_texts,
    is_dynamic_of_listener,
    setting_key,
    split_listener_texts,
)
from broker.cluster.config_refusals import check_dynamic, refusal
from broker.cluster.config_topic import BROKER_NAMES, TOPIC_CONFIGS, BrokerName
from broker.cluster.group_levels import consumer_in_force, share_in_force, streams_in_force
from broker.cluster.watched_folder import WatchedFolder
from metadata.store import NoNodeError
from runtime.config import (
    ConfigError,
    ConfigKey,
    ConfigValue,
    Scope,
    format_value,
    unknown_name,
)
from runtime.logs import kv
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    from broker.cluster.config_consumer import ConsumerGroupConfig
    from broker.cluster.config_share import ShareGroupConfig
    from broker.cluster.config_streams import StreamsGroupConfig
    from metadata.store import MetadataStore, Node

logger = logging.getLogger(__name__)

CONFIGS_PATH = "/quire/configs"
DEFAULT_BROKER = "default"


class Source(enum.IntEnum):
    """Kafka's `ConfigSource`, by its numbers on the wire."""

    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    CLIENT_METRICS_CONFIG = 7
    GROUP_CONFIG = 8


@dataclass(slots=True, frozen=True)
class Synonym:
    """One level at which a setting has a value."""

    name: str
    value: str | None
    source: Source


@dataclass(slots=True, frozen=True)
class Described:
    """One setting as DescribeConfigs answers it; `synonyms` are strongest first. The value of a
    sensitive setting is never in here."""

    key: ConfigKey
    value: str | None
    source: Source
    read_only: bool
    synonyms: tuple[Synonym, ...]


#: By the name of a broker setting that has several, in several units: all of them, strongest first.
_ALL_NAMES = {
    one.name: tuple(other.name for other in names)
    for names in BROKER_NAMES.values()
    if len(names) > 1
    for one in names
}


class Room(enum.Enum):
    """A kind of stored settings: its node under CONFIGS_PATH."""

    BROKERS = "brokers"
    GROUPS = "groups"
    CLIENT_METRICS = "client-metrics"
    QUOTAS = "quotas"


#: Groups whose settings in force are remembered.
GROUPS_KEPT = 10_000

#: What is left of settings that were all taken back.
EMPTY = b"{}"

_NAMED_TABLES = {Room.GROUPS: GROUP_CONFIGS, Room.CLIENT_METRICS: CLIENT_METRICS_CONFIGS}


class ConfigRegistry:
    def __init__(self, store: MetadataStore, static_texts: Mapping[str, str]) -> None:
        """`static_texts`: the broker settings of the file and the command line, with those of
        single listeners. ConfigError."""
        self._store = store
        self._static = dict(static_texts)
        self._listeners: list[Callable[[], None]] = []
        self._room_listeners: dict[Room, list[Callable[[], None]]] = {room: [] for room in Room}
        self._folders = {
            room: WatchedFolder(store, f"{CONFIGS_PATH}/{room.value}") for room in Room
        }
        self._dynamic: dict[Room, dict[str, dict[str, str]]] = {room: {} for room in Room}
        #: What it was made of, by identity, and what it is.
        self._consumer_groups: dict[
            str, tuple[dict[str, str] | None, BrokerConfig, ConsumerGroupConfig]
        ] = {}
        self._share_groups: dict[
            str, tuple[dict[str, str] | None, BrokerConfig, ShareGroupConfig]
        ] = {}
        self._streams_groups: dict[
            str, tuple[dict[str, str] | None, BrokerConfig, StreamsGroupConfig]
        ] = {}
        self.broker = BrokerConfig.parse(split_listener_texts(self._static)[0])
        #: What is in force of single listeners beside it, by full names.
        self.listener_texts: Mapping[str, str] = {}
        #: Tries the listeners' settings on; raises ConfigError.
        self.check_listeners: Callable[[Mapping[str, str]], Awaitable[None]] = _no_listeners
        self._node = str(self.broker.node_id)
        self._topic_defaults: dict[str, ConfigValue] = {}
        self._refresh()

    async def load(self) -> None:
        """Reads all that is stored. A stored broker setting that no longer fits (an older version
        wrote it) raises ConfigError: starting without it would change behaviour silently."""
        for room in Room:
            names = await self._children(f"{CONFIGS_PATH}/{room.value}")
            paths = [f"{CONFIGS_PATH}/{room.value}/{name}" for name in names]
            nodes = await self._store.get_many(paths)
            self._dynamic[room] = {
                _decode_name(room, name): json.loads(node.data)
                for name, node in zip(names, nodes, strict=True)
                if node is not None and node.data != EMPTY
            }
        self._refresh()
        # Of an earlier version, which took them; the start must not end for what only a running
        # broker can take back.
        for texts, _ in self._levels()[:2]:
            for name, text in texts.items():
                if (reason := refusal(name, text)) is not None:
                    logger.warning("stored_setting_not_kept", kv(setting=name, reason=reason))

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follows what is stored; started once memory agrees with it."""
        async with trio.open_nursery() as nursery:
            for room in Room:
                known = partial(self._nodes, room)
                await nursery.start(self._folders[room].run, partial(self._look, room), known)
            task_status.started()

    def _nodes(self, room: Room) -> list[str]:
        return [_encode_name(room, name) for name in self._dynamic[room]]

    async def _look(self, room: Room, nodes: list[str]) -> None:
        """MetadataError."""
        for node, read in (await self._folders[room].read(nodes)).items():
            self._take(room, _decode_name(room, node), read)

    def _take(self, room: Room, name: str, read: Node | None) -> None:
        settings = self._dynamic[room]
        try:
            texts = None if read is None else json.loads(read.data)
        except ValueError as error:
            logger.error("settings_not_understood", kv(room=room.value, name=name, error=error))
            return
        if (texts or None) == settings.get(name):
            return
        self._folders[room].touch(_encode_name(room, name))
        if texts:
            settings[name] = texts
        else:
            settings.pop(name, None)
        if room is Room.BROKERS and name in (DEFAULT_BROKER, self._node):
            self._put_in_force(name)
        for listener in self._room_listeners[room]:
            listener()

    def _put_in_force(self, name: str) -> None:
        try:
            self._refresh()
        except ConfigError as error:
            # Another broker let it through (of another version, or with other static settings).
            # What was in force stays; the setting is shown as it is stored.
            logger.error("settings_not_in_force", kv(broker=name, error=error))
            return
        for listener in self._listeners:
            listener()

    def subscribe(self, listener: Callable[[], None]) -> None:
        """`listener()` runs after each change of what is in force for this broker."""
        self._listeners.append(listener)

    def subscribe_room(self, room: Room, listener: Callable[[], None]) -> None:
        """`listener()` runs after each change of what is stored there."""
        self._room_listeners[room].append(listener)

    # -- what is in force -----------------------------------------------------------------------

    def topic_config(self, overrides: Mapping[str, str]) -> TopicConfig:
        """A topic's settings in force. `overrides` were checked when they were stored."""
        return TopicConfig.of({**self._topic_defaults, **TOPIC_CONFIGS.parse(overrides)})

    def consumer_group_config(self, name: str) -> ConsumerGroupConfig:
        """A group's settings in force. What was stored while the broker's limits were wider counts
        as far as they allow."""
        texts = self._dynamic[Room.GROUPS].get(name)
        broker = self.broker
        known = self._consumer_groups.get(name)
        if known is not None and known[0] is texts and known[1] is broker:
            return known[2]
        config = consumer_in_force(broker, GROUP_CONFIGS.parse(texts or {}))
        if len(self._consumer_groups) >= GROUPS_KEPT:
            self._consumer_groups.clear()
        self._consumer_groups[name] = (texts, broker, config)
        return config

    def share_group_config(self, name: str) -> ShareGroupConfig:
        """The same of a share group. The same object as long as nothing was changed."""
        texts = self._dynamic[Room.GROUPS].get(name)
        broker = self.broker
        known = self._share_groups.get(name)
        if known is not None and known[0] is texts and known[1] is broker:
            return known[2]
        config = share_in_force(broker, GROUP_CONFIGS.parse(texts or {}))
        if len(self._share_groups) >= GROUPS_KEPT:
            self._share_groups.clear()
        self._share_groups[name] = (texts, broker, config)
        return config

    def streams_group_config(self, name: str) -> StreamsGroupConfig:
        """The same of a streams group."""
        texts = self._dynamic[Room.GROUPS].get(name)
        broker = self.broker
        known = self._streams_groups.get(name)
        if known is not None and known[0] is texts and known[1] is broker:
            return known[2]
        config = streams_in_force(broker, GROUP_CONFIGS.parse(texts or {}))
        if len(self._streams_groups) >= GROUPS_KEPT:
            self._streams_groups.clear()
        self._streams_groups[name] = (texts, broker, config)
        return config

    def stored(self, room: Room, name: str) -> Mapping[str, str]:
        """The texts that are set for one resource; of brokers, DEFAULT_BROKER or a node id."""
        return self._dynamic[room].get(name, {})

    def stored_names(self, room: Room) -> list[str]:
        return sorted(self._dynamic[room])

    def _levels(self, *, with_broker: bool = True) -> list[tuple[Mapping[str, str], Source]]:
        brokers = self._dynamic[Room.BROKERS]
        own = [(brokers.get(self._node, {}), Source.DYNAMIC_BROKER_CONFIG)] if with_broker else []
        return [
            *own,
            (brokers.get(DEFAULT_BROKER, {}), Source.DYNAMIC_DEFAULT_BROKER_CONFIG),
            (self._static, Source.STATIC_BROKER_CONFIG),
        ]

    def _broker_text(self, name: str) -> str | None:
        return next((texts[name] for texts, _ in self._levels() if name in texts), None)

    def _broker_value(self, name: str) -> ConfigValue:
        text = self._broker_text(name)
        return BROKER_CONFIGS.default(name) if text is None else BROKER_CONFIGS[name].parse(text)

    def _group_default(self, name: str) -> ConfigValue:
        broker_name = GROUP_BROKER_NAMES.get(name)
        return (
            GROUP_CONFIGS.default(name) if broker_name is None else self._broker_value(broker_name)
        )

    def _refresh(self) -> None:
        """Recomputes what is in force from what is set. ConfigError changes nothing."""
        effective: dict[str, str] = {}
        for texts, _ in reversed(self._levels()):
            effective.update(texts)
        broker_texts, listener_texts = split_listener_texts(effective)
        broker = BrokerConfig.parse(broker_texts)
        check_listener_texts(listener_texts)
        defaults = {key.name: self._topic_default(key.name) for key in TOPIC_CONFIGS}
        check_compaction_lags(defaults)
        self.broker = broker
        self.listener_texts = listener_texts
        self._topic_defaults = defaults

    def _topic_default(self, name: str) -> ConfigValue:
        for broker_name in BROKER_NAMES.get(name, ()):
            value = self._broker_value(broker_name.name)
            if value is not None:
                return _scaled(value, broker_name)
        return TOPIC_CONFIGS.default(name)

    # -- checks ---------------------------------------------------------------------------------

    def check_topic(self, overrides: Mapping[str, str]) -> None:
        """ConfigError for an unknown name, a bad value, or values that do not go together."""
        unknown = [name for name in overrides if name not in TOPIC_CONFIGS]
        if unknown:
            raise unknown_name(unknown[0], [TOPIC_CONFIGS])
        parsed = TOPIC_CONFIGS.parse(overrides)
        if parsed.get("remote.storage.enable"):
            raise ConfigError("remote.storage.enable", "tiered storage is not served here")
        values = {**self._topic_defaults, **parsed}
        check_compaction_lags(values)
        config = TopicConfig.of(values)
        check_quorums(
            config.quire_ledger_ensemble_size,
            config.quire_ledger_write_quorum,
            config.quire_ledger_ack_quorum,
        )

    def check_named(self, room: Room, texts: Mapping[str, str]) -> None:
        """The same for a group's or a client-metrics subscription's settings."""
        table = _NAMED_TABLES[room]
        parsed = table.parse(texts)
        for name, value in parsed.items():
            limits = GROUP_LIMITS.get(name) if room is Room.GROUPS else None
            if limits is None:
                continue
            assert isinstance(value, int)
            least, most = (self._broker_value(limit) for limit in limits)
            assert isinstance(least, int)
            assert isinstance(most, int)
            if value < least:
                raise ConfigError(name, f"{name} must be greater than or equal to {limits[0]}")
            if value > most:
                raise ConfigError(name, f"{name} must be less than or equal to {limits[1]}")
        if room is Room.GROUPS:
            self._check_most(parsed)
            self._check_heartbeats(parsed)

    def _check_most(self, parsed: Mapping[str, ConfigValue]) -> None:
        for name, limit in GROUP_MOST.items():
            value, most = parsed.get(name, 0), self._broker_value(limit)
            assert isinstance(value, int)
            assert isinstance(most, int)
            if value > most:
                raise ConfigError(name, f"{name}={value} is above {limit}={most}")

    def _check_heartbeats(self, parsed: Mapping[str, ConfigValue]) -> None:
        for kind in ("consumer", "share", "streams"):
            heartbeat, session = f"{kind}.heartbeat.interval.ms", f"{kind}.session.timeout.ms"
            if heartbeat not in parsed and session not in parsed:
                continue
            values = [parsed.get(name, self._group_default(name)) for name in (heartbeat, session)]
            assert isinstance(values[0], int)
            assert isinstance(values[1], int)
            if values[0] >= values[1]:
                raise ConfigError(heartbeat, f"{heartbeat} must be below {session}")

    def check_broker(self, name: str, texts: Mapping[str, str], changed: set[str]) -> None:
        """`texts` as all dynamic settings of broker `name` (or DEFAULT_BROKER); `changed` are
        those that differ from now. ConfigError."""
        for setting in sorted(changed):
            key = setting_key(setting)
            if key is None:
                raise unknown_name(setting, [BROKER_CONFIGS])
            if _is_fixed(key):
                raise ConfigError(setting, f"Cannot update these configs dynamically: [{setting}]")
            if key.scope is Scope.PER_BROKER and name == DEFAULT_BROKER:
                raise ConfigError(setting, f"{setting} is set per broker: name a broker")
            if setting in texts:
                key.parse(texts[setting])
                check_dynamic(setting, texts[setting])
        self._with_broker(name, texts)

    def _with_broker(self, name: str, texts: Mapping[str, str]) -> None:
        """Tries settings of a broker on; ConfigError if they do not go with the others."""
        if name not in (DEFAULT_BROKER, self._node):
            return
        before = self._dynamic[Room.BROKERS]
        in_force = (self.broker, self.listener_texts, self._topic_defaults)
        self._dynamic[Room.BROKERS] = {**before, name: dict(texts)}
        try:
            self._refresh()
            check_cleaner_threads(in_force[0].log_cleaner_threads, self.broker.log_cleaner_threads)
        finally:
            self._dynamic[Room.BROKERS] = before
            self.broker, self.listener_texts, self._topic_defaults = in_force

    async def try_listeners(self, texts: Mapping[str, str]) -> None:
        """`texts` as all dynamic settings of this broker. ConfigError if one of its listeners
        could not be served so."""
        of_listeners = split_listener_texts(texts)[1]
        if of_listeners != split_listener_texts(self._dynamic[Room.BROKERS].get(self._node, {}))[1]:
            await self.check_listeners(of_listeners)

    # -- changes --------------------------------------------------------------------------------

    async def change(
        self, room: Room, name: str, change: Callable[[Mapping[str, str]], dict[str, str]]
    ) -> None:
        """Stores `change(what is set now)` and puts it in force at once. `change` may run again
        when another broker was quicker, and may raise, which changes nothing."""
        node_name = _encode_name(room, name)
        path = f"{CONFIGS_PATH}/{room.value}/{node_name}"
        # Where nothing is set, and nothing is to be, no compare-and-set tells that somebody did.
        await self._store.sync(path)
        seen: Node | None = None

        def decide(node: Node | None) -> bytes | None:
            texts = change({} if node is None else json.loads(node.data))
            if node is None and not texts:
                return None
            # An empty one stays: a node made anew under the name would have the versions that
            # another broker may have read of this one.
            return json.dumps(texts, sort_keys=True).encode()

        async def write(node: Node | None, data: bytes) -> None:
            if node is None:
                await self._store.create(path, data, make_parents=True)
            else:
                await self._store.put(path, data, node.version)

        async def look(_: Node | None) -> None:
            nonlocal seen
            seen = None
            with suppress(NoNodeError):
                seen = await self._store.get(path)

        await look(None)
        await optimistic.change(lambda: seen, decide, write, look_again=look, recognise=None)
        # Not just remembered: by now another broker may have been there again, and been seen.
        self._take(room, name, await self._folders[room].read_one(node_name))
        self._folders[room].mark(node_name)

    async def _children(self, path: str) -> list[str]:
        try:
            return await self._store.children(path)
        except NoNodeError:
            return []

    # -- descriptions ---------------------------------------------------------------------------

    def describe_topic(self, overrides: Mapping[str, str]) -> Iterator[Described]:
        """Every topic setting, one by one: describing all of them takes a while, here as below."""
        return (self._describe_topic(key, overrides) for key in TOPIC_CONFIGS)

    def _describe_topic(self, key: ConfigKey, overrides: Mapping[str, str]) -> Described:
        broker_names = BROKER_NAMES.get(key.name, ())
        synonyms = self._broker_synonyms(broker_names[0].name) if broker_names else []
        value = format_value(self._topic_defaults[key.name])
        source = synonyms[0].source if synonyms else Source.DEFAULT_CONFIG
        if key.name in overrides:
            value = format_value(key.parse(overrides[key.name]))
            source = Source.DYNAMIC_TOPIC_CONFIG
            synonyms.insert(0, Synonym(key.name, value, source))
        return Described(key, value, source, read_only=False, synonyms=tuple(synonyms))

    def describe_broker(self) -> Iterator[Described]:
        """Every broker setting, as it is in force in this broker, and what is set of listeners."""
        for key in BROKER_CONFIGS:
            yield self._describe_broker(key)
        for name in sorted({name for texts, _ in self._levels() for name in texts}):
            if name.startswith(LISTENER_PREFIX) and (found := setting_key(name)) is not None:
                yield self._describe_broker(found)

    def describe_broker_default(self) -> Iterator[Described]:
        """Only what is set for all brokers."""
        for name, text in list(self.stored(Room.BROKERS, DEFAULT_BROKER).items()):
            key = setting_key(name)
            if key is None:
                continue
            source = Source.DYNAMIC_DEFAULT_BROKER_CONFIG
            value = None if key.sensitive else format_value(key.parse(text))
            synonym = Synonym(name, value, source)
            yield Described(key, value, source, read_only=False, synonyms=(synonym,))

    def _describe_broker(self, key: ConfigKey) -> Described:
        is_of_listener = key.name.startswith(LISTENER_PREFIX)
        synonyms = self._synonyms_of(key) if is_of_listener else self._broker_synonyms(key.name)
        value, source = None, Source.DEFAULT_CONFIG
        if synonyms:
            value, source = synonyms[0].value, synonyms[0].source
        return Described(key, value, source, read_only=_is_fixed(key), synonyms=tuple(synonyms))

    def _synonyms_of(self, key: ConfigKey) -> list[Synonym]:
        """Where it is set."""
        return [
            _synonym(key, texts, source) for texts, source in self._levels() if key.name in texts
        ]

    def _broker_synonyms(self, name: str) -> list[Synonym]:
        """Level by level, all names of it; but nothing from before `name` itself is first set, so
        that log.retention.hours alone is none of retention.ms (ConfigHelper.configSynonyms)."""
        names = _ALL_NAMES.get(name, (name,))
        found = [
            _synonym(BROKER_CONFIGS[one], texts, source)
            for texts, source in self._levels()
            for one in names
            if one in texts
        ]
        for one in names:
            default = BROKER_CONFIGS.default(one)
            if default is not None:
                shown = None if BROKER_CONFIGS[one].sensitive else format_value(default)
                found.append(Synonym(one, shown, Source.DEFAULT_CONFIG))
        return list(itertools.dropwhile(lambda synonym: synonym.name != name, found))

    def describe_named(self, room: Room, name: str) -> Iterator[Described]:
        """Every setting of a group or a client-metrics subscription, whether or not it exists."""
        texts = self.stored(room, name)
        own_source = Source.GROUP_CONFIG if room is Room.GROUPS else Source.CLIENT_METRICS_CONFIG
        return (
            self._describe_named(key, texts, own_source, GROUP_BROKER_NAMES.get(key.name))
            for key in _NAMED_TABLES[room]
        )

    def _describe_named(
        self, key: ConfigKey, texts: Mapping[str, str], own_source: Source, broker_name: str | None
    ) -> Described:
        if broker_name is not None:
            synonyms = self._broker_synonyms(broker_name)
        elif own_source is Source.GROUP_CONFIG:
            synonyms = [Synonym(key.name, key.default, Source.DEFAULT_CONFIG)]
        else:
            synonyms = []
        value = synonyms[0].value if synonyms else key.default
        source = synonyms[0].source if synonyms else Source.DEFAULT_CONFIG
        if key.name in texts:
            value, source = format_value(key.parse(texts[key.name])), own_source
            synonyms.insert(0, Synonym(key.name, value, source))
        return Described(key, value, source, read_only=False, synonyms=tuple(synonyms))


def _is_fixed(key: ConfigKey) -> bool:
    """It is read at the start only."""
    if key.name.startswith(LISTENER_PREFIX):
        return not is_dynamic_of_listener(key.name)
    return key.scope is Scope.READ_ONLY


def _synonym(key: ConfigKey, texts: Mapping[str, str], source: Source) -> Synonym:
    value = None if key.sensitive else format_value(key.parse(texts[key.name]))
    return Synonym(key.name, value, source)


async def _no_listeners(_: Mapping[str, str]) -> None:
    """There are none whose settings may change."""


def check_compaction_lags(values: Mapping[str, ConfigValue]) -> None:
    least, most = values["min.compaction.lag.ms"], values["max.compaction.lag.ms"]
    assert isinstance(least, int)
    assert isinstance(most, int)
    if least > most:
        raise ConfigError(
            "min.compaction.lag.ms",
            f"min.compaction.lag.ms={least} is above max.compaction.lag.ms={most}",
        )


def _scaled(value: ConfigValue, broker_name: BrokerName) -> ConfigValue:
    if broker_name.factor == 1:
        return value
    assert isinstance(value, int)
    # log.retention.hours=-1 is «no limit», not minus one hour.
    return value if value < 0 else value * broker_name.factor


def _encode_name(room: Room, name: str) -> str:
    return name if room is Room.BROKERS else name.encode().hex()


def _decode_name(room: Room, node: str) -> str:
    return node if room is Room.BROKERS else bytes.fromhex(node).decode()
