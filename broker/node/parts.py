"""The broker's parts, started in order: what `quire standalone` and `quire broker` have in common.

Below it are a metadata store and a ledger client, whatever they are made of.
"""

from __future__ import annotations

import logging
from dataclasses import field, replace
from functools import partial
from typing import TYPE_CHECKING

import trio

from broker.cluster.catalog import TopicCatalog
from broker.cluster.cluster_view import BrokersView
from broker.cluster.config_forms import parse_connection_overrides
from broker.cluster.config_listener import ListenerSettings
from broker.cluster.registry import ConfigRegistry
from broker.cluster.topic_notes import note_at_start, note_event
from broker.cluster.view import StandaloneView, ensure_cluster_id
from broker.connection_quotas import ConnectionLimits, ListenerLimits
from broker.dispatch import Dispatcher
from broker.groups.coordinator import GroupCoordinator
from broker.handlers.txn_markers import TransactionMarkersHandler
from broker.log.compact.cleaner import CleanerSettings, LogCleaner
from broker.log.life.chain import COMPACTED_FORMAT, new_document
from broker.log.manager import LogManager
from broker.log.settings import LogSettings
from broker.node.apis import group_config, group_times, make_handlers, streams_times
from broker.node.foundation import Services
from broker.node.member import ClusterMember
from broker.node.security import start_security
from broker.node.share import start_share_groups
from broker.node.shares import follow_connections, parts_of, start_shares
from broker.node.transactions import start_transactions
from broker.producer_ids import ProducerIds
from broker.quotas.account import Accounts
from broker.quotas.quotas import ClientQuotas, QuotaWindows
from broker.quotas.rates import Windows
from broker.server import PLAIN, KafkaServer, ServerSettings
from broker.telemetry.clients import TelemetryClients
from broker.transactions.config import verification_of
from broker.transactions.ports import Neighbours
from broker.transactions.verifier import CoordinatorVerifier
from broker.unsent import UnsentAnswers
from runtime.logs import kv
from runtime.running import running
from runtime.timers import Timers
from wire import compiled
from wire.dataclass import dataclass
from wire.kafka.errors import KafkaError
from wire.kafka.records.walk import IS_COMPILED

if TYPE_CHECKING:
    from collections.abc import Iterable
    from contextlib import AsyncExitStack

    from broker.cluster.config import BrokerConfig
    from broker.cluster.config_file import NodeConfig
    from broker.cluster.durability import Copies
    from broker.cluster.view import Facts
    from broker.node.acls import Acls
    from broker.node.apis import Handler
    from broker.node.foundation import Foundation, Transactions
    from broker.node.shares import ShareGroupParts
    from broker.security.listener import ListenerSecurity
    from broker.security.tls.reload import TlsReloads
    from runtime.env import Env

logger = logging.getLogger(__name__)

#: Where Kafka has no limit (queued.max.request.bytes=-1) we have one: memory is bounded.
REQUEST_MEMORY_BYTES_DEFAULT = 128 << 20


def request_memory_bytes(broker: BrokerConfig) -> int:
    configured = broker.queued_max_request_bytes
    return configured if configured > 0 else REQUEST_MEMORY_BYTES_DEFAULT


def note_settings(config: NodeConfig) -> None:
    """What has no effect goes to the log."""
    for note in config.notes:
        logger.warning("setting_without_effect", kv(note=note))


@dataclass(slots=True)
class BrokerParts:
    """What metrics and the admin endpoints look into. `listen` comes last."""

    broker: BrokerConfig
    dispatcher: Dispatcher
    logs: LogManager
    server: KafkaServer
    view: StandaloneView | BrokersView
    quotas: ClientQuotas
    telemetry: TelemetryClients
    groups: GroupCoordinator
    #: None: log.cleaner.enable is false.
    cleaner: LogCleaner | None = None
    member: ClusterMember | None = None
    transactions: Transactions | None = None
    #: None: there is no authorizer.
    acls: Acls | None = None
    #: By listener; of others, PLAINTEXT.
    security: dict[str, ListenerSecurity] = field(default_factory=dict)
    #: None: no listener has TLS.
    tls: TlsReloads | None = None
    #: Where it listens (broker/cluster/membership.py), once it does.
    place: str = ""

    async def serve(self, stack: AsyncExitStack) -> tuple[str, int]:
        """Opens the listeners, and only then tells the other brokers; the last one's address. What
        `stack` is left with is the first thing to be done at a stop. OSError, ConfigError.

        Nobody is served before this broker knows itself among those that live: a client would be
        told of no broker, and librdkafka's admin client asks no other for a minute.
        """
        if self.member is None or not isinstance(self.view, BrokersView):
            return self.listen()
        self.server.turn_away()
        address = self.listen()
        await self.member.join(self.view, self.place)
        self.server.accept()
        stack.push_async_callback(self.member.leave, self.logs)
        return address

    def listen(self) -> tuple[str, int]:
        """Opens the listeners; the last one's address. OSError."""
        address = ("", 0)
        bound = []
        for wanted in self.broker.parsed_listeners():
            security = self.security.get(wanted.name, PLAIN)
            listener = self.server.listen(
                wanted.host or "0.0.0.0", wanted.port, wanted.name, security
            )
            self.view.endpoints.set_port(wanted.name, listener.address[1])
            address = listener.address
            bound.append(f"{address[0]}:{address[1]}")
            logger.info("listening", kv(listener=wanted.name, host=address[0], port=address[1]))
        if place := self.server.place:
            self.place = " ".join((place, *bound))
        return address


async def start_broker(
    foundation: Foundation,
    config: NodeConfig,
    stack: AsyncExitStack,
    *,
    in_cluster: bool = False,
    log_settings: LogSettings | None = None,
    share_groups: ShareGroupParts | None = None,
) -> BrokerParts:
    """All but the listeners, before which the network has to run. `share_groups` instead of this
    broker's own."""
    env, store, ledgers = foundation.env, foundation.store, foundation.ledgers
    registry = ConfigRegistry(store, {**config.broker_texts, **config.listener_texts})
    await registry.load()
    broker = registry.broker
    catalog = TopicCatalog(store, env, registry, initial_partition_document=new_document)
    await catalog.load()
    member = None
    if in_cluster:
        await stack.enter_async_context(running(registry.run))
        await stack.enter_async_context(running(catalog.run))
        member = await ClusterMember.start(
            *(env, store, registry, catalog, stack),
            may_be_controller=foundation.may_be_controller,
        )
    settings = _followed(LogSettings() if log_settings is None else log_settings, registry)
    _note(catalog, is_cleaner_on=broker.log_cleaner_enable)
    verifier = CoordinatorVerifier(env.turn, env.clock, verification_of(registry))
    logs = _make_logs(foundation, catalog, broker, settings, member, verifier)
    if member is not None:
        reach = member.reach(logs, ledgers, foundation.bookies)
        await stack.enter_async_context(running(reach.run, needs_start=False))
    registry.subscribe(logs.refresh_configs)
    await stack.enter_async_context(running(logs.run))
    cleaner = await _start_cleaner(foundation, logs, settings, registry, member, stack)
    coordinator = await _start_groups(env, registry, catalog, logs, stack)
    timers = Timers()
    await stack.enter_async_context(running(timers.run))
    telemetry = TelemetryClients(registry, env)
    quotas = ClientQuotas(registry, env.clock, timers, _quota_windows(broker))
    security = await start_security(
        store, env, config, registry, catalog, timers, stack, in_cluster=in_cluster
    )
    view = await _view_of(foundation, broker, catalog, logs, member)
    producer_ids = ProducerIds(store, str(env.new_uuid()))
    markers = TransactionMarkersHandler(logs, env.turn, coordinator.transactions)
    neighbours = Neighbours(catalog, logs, producer_ids, markers)
    transactions = await start_transactions(
        foundation, registry, neighbours, view, verifier, member, security, stack
    )
    share = await start_share_groups(
        env, registry, catalog, logs, transactions.brokers, coordinator, stack
    )
    services = Services(
        registry, catalog, logs, coordinator, view, timers,
        transactions, producer_ids, markers, quotas, telemetry, security, share,
        UnsentAnswers(), member,
    )  # fmt: skip
    shares = await start_shares(foundation, services, share_groups or parts_of(share), stack)
    dispatcher = await _start_dispatcher(foundation, services, shares, stack)
    server = await _start_server(env, dispatcher, config, registry, services, stack)
    follow_connections(shares, dispatcher)
    return BrokerParts(
        broker, dispatcher, logs, server, view, quotas, telemetry, coordinator,
        cleaner, member, transactions, security.acls, security.listeners, security.tls,
    )  # fmt: skip


def _make_logs(
    foundation: Foundation,
    catalog: TopicCatalog,
    broker: BrokerConfig,
    settings: LogSettings,
    member: ClusterMember | None,
    verifier: CoordinatorVerifier,
) -> LogManager:
    return LogManager(
        catalog,
        foundation.store,
        foundation.ledgers,
        foundation.env,
        settings,
        ownership=None if member is None else member.ownership,
        retention_check_interval_ms=broker.log_retention_check_interval_ms,
        verifier=verifier,
    )


async def _view_of(
    foundation: Foundation,
    broker: BrokerConfig,
    catalog: TopicCatalog,
    logs: LogManager,
    member: ClusterMember | None,
) -> StandaloneView | BrokersView:
    cluster_id = await ensure_cluster_id(foundation.store, foundation.env)
    if member is not None:
        return member.view(cluster_id, catalog, foundation.bookies, _facts(logs))
    return StandaloneView(cluster_id, broker, foundation.bookies, _facts(logs))


async def _start_dispatcher(
    foundation: Foundation, services: Services, more: Iterable[Handler], stack: AsyncExitStack
) -> Dispatcher:
    requests = await stack.enter_async_context(trio.open_nursery())
    apis = make_handlers(foundation, services, more)
    authorizer = None if services.security.acls is None else services.security.acls.authorizer
    dispatcher = Dispatcher(apis, requests, foundation.env.turn, authorizer=authorizer)
    stack.callback(dispatcher.stop)
    return dispatcher


def _count_for(quotas: ClientQuotas, dispatcher: Dispatcher) -> None:
    """Requests are counted while any client has a quota."""
    accounts = Accounts(quotas)

    def follow() -> None:
        dispatcher.accounting = accounts if quotas.is_for_clients else None

    follow()
    quotas.on_change = follow


def _quota_windows(broker: BrokerConfig) -> QuotaWindows:
    return QuotaWindows(
        Windows(broker.quota_window_num, broker.quota_window_size_seconds),
        Windows(broker.controller_quota_window_num, broker.controller_quota_window_size_seconds),
    )


async def _start_groups(
    env: Env,
    registry: ConfigRegistry,
    catalog: TopicCatalog,
    logs: LogManager,
    stack: AsyncExitStack,
) -> GroupCoordinator:
    config = group_config(registry.broker)
    times, streams = partial(group_times, registry), partial(streams_times, registry)
    coordinator = GroupCoordinator(env, config, catalog, logs, times, streams_times_of=streams)
    coordinator.consumers.is_guarded = bool(registry.broker.authorizer_class_name)
    await stack.enter_async_context(running(coordinator.run))
    return coordinator


async def _start_cleaner(
    foundation: Foundation,
    logs: LogManager,
    log_settings: LogSettings,
    registry: ConfigRegistry,
    member: ClusterMember | None,
    stack: AsyncExitStack,
) -> LogCleaner | None:
    """It is stopped before the partitions are: they close without waiting for a pass."""
    if not registry.broker.log_cleaner_enable:
        return None
    settings = CleanerSettings(map_bytes_max=log_settings.key_map_bytes_max)

    def chain_format() -> int:
        return COMPACTED_FORMAT if member is None else member.membership.chain_format

    ledgers, env = foundation.ledgers, foundation.env
    cleaner = LogCleaner(logs, ledgers, env, log_settings, settings, chain_format=chain_format)

    def follow() -> None:
        broker = registry.broker
        settings.threads = broker.log_cleaner_threads
        settings.backoff_ms = broker.log_cleaner_backoff_ms
        settings.bytes_per_second = broker.log_cleaner_io_max_bytes_per_second
        settings.dedupe_buffer_bytes = broker.log_cleaner_dedupe_buffer_size
        settings.load_factor = broker.log_cleaner_io_buffer_load_factor
        cleaner.settings_changed()

    follow()
    registry.subscribe(follow)
    await stack.enter_async_context(running(cleaner.run))
    return cleaner


def _note(catalog: TopicCatalog, *, is_cleaner_on: bool) -> None:
    """What an operator is to know of this process, once, and of each topic when it is made."""
    if not IS_COMPILED:
        reason = f"{compiled.VARIABLE}=1" if compiled.IS_REFUSED else "no compiler when installed"
        logger.warning("records_walked_in_python", kv(reason=reason))
    note_at_start(catalog, is_cleaner_on=is_cleaner_on)
    catalog.subscribe(partial(note_event, catalog, is_cleaner_on=is_cleaner_on))


async def _start_server(
    env: Env,
    dispatcher: Dispatcher,
    config: NodeConfig,
    registry: ConfigRegistry,
    services: Services,
    stack: AsyncExitStack,
) -> KafkaServer:
    _count_for(services.quotas, dispatcher)
    server = KafkaServer(
        env.net,
        dispatcher,
        _server_settings(config),
        _connection_limits(registry),
        services.quotas,
        services.answers,
    )
    registry.subscribe(lambda: server.set_limits(_connection_limits(registry)))
    await stack.enter_async_context(running(server.reap_idle, needs_start=False))
    await stack.enter_async_context(running(server.reap_unfinished, needs_start=False))
    return server


def _followed(settings: LogSettings, registry: ConfigRegistry) -> LogSettings:
    """A copy with what the registry says, now and after each change."""
    followed = replace(settings)

    def follow() -> None:
        followed.producer_expiration_ms = registry.broker.producer_id_expiration_ms

    follow()
    registry.subscribe(follow)
    return followed


def _facts(logs: LogManager) -> Facts:
    def facts(topic: str, partition: int) -> tuple[Copies, tuple[str, ...]] | None:
        try:
            log = logs.get(topic, partition)
        except KafkaError:
            return None
        return log.copies, log.ensemble

    return facts


def _server_settings(config: NodeConfig) -> ServerSettings:
    broker = config.broker
    return ServerSettings(
        frame_bytes_max=broker.socket_request_max_bytes,
        request_memory_bytes=request_memory_bytes(broker),
        connections_idle_ms=broker.connections_max_idle_ms,
        protected_listener=broker.listener_for_brokers,
        windows=_quota_windows(broker).clients,
    )


def _connection_limits(registry: ConfigRegistry) -> ConnectionLimits:
    broker = registry.broker
    listeners = {}
    for listener in broker.parsed_listeners():
        settings = ListenerSettings(listener.name, registry.listener_texts)
        most, rate = broker.max_connections, broker.max_connection_creation_rate
        listeners[listener.name] = ListenerLimits(
            settings.number("max.connections", most),
            settings.number("max.connection.creation.rate", rate),
        )
    return ConnectionLimits(
        broker.max_connections,
        broker.max_connections_per_ip,
        parse_connection_overrides(broker.max_connections_per_ip_overrides),
        broker.max_connection_creation_rate,
        listeners,
    )
