"""Kafka 4.3's other broker settings: accepted, shown, and without any effect here.

Data only, one setting a line: name, type, scope (r read-only, b per broker, c cluster-wide) and
the default after an equals sign (nothing: unset). Names, types, defaults and scopes are what
Kafka 4.3.1's configuration classes report when asked; a value must have the right type, so that
a file that Kafka takes is taken here, and a broken one is not.
"""

from __future__ import annotations

from runtime.config import ConfigKey, ConfigType, Scope

_DOC = "A setting of Kafka that has no effect here."
_SCOPES = {"r": Scope.READ_ONLY, "b": Scope.PER_BROKER, "c": Scope.CLUSTER_WIDE}

_LINES = """\
add.partitions.to.txn.retry.backoff.max.ms int r =100
add.partitions.to.txn.retry.backoff.ms int r =20
alter.config.policy.class.name class r
alter.log.dirs.replication.quota.window.num int r =11
alter.log.dirs.replication.quota.window.size.seconds int r =1
authorizer.class.name string r =
background.threads int c =10
broker.heartbeat.interval.ms int r =2000
broker.session.timeout.ms int r =9000
client.quota.callback.class class r
config.providers list c =
connection.failed.authentication.delay.ms int r =100
connections.max.reauth.ms long r =0
controller.listener.names list r
controller.performance.always.log.threshold.ms long r =2000
controller.performance.sample.period.ms long r =60000
controller.quorum.append.linger.ms int r =25
controller.quorum.auto.join.enable boolean r =false
controller.quorum.bootstrap.servers list r =
controller.quorum.election.backoff.max.ms int r =1000
controller.quorum.election.timeout.ms int r =1000
controller.quorum.fetch.max.bytes int r =1048576
controller.quorum.fetch.snapshot.max.bytes int r =1048576
controller.quorum.fetch.timeout.ms int r =2000
controller.quorum.request.timeout.ms int r =2000
controller.quorum.retry.backoff.ms int r =20
controller.quorum.voters list r =
controller.quota.window.num int r =11
controller.quota.window.size.seconds int r =1
controller.socket.timeout.ms int r =30000
create.topic.policy.class.name class r
delegation.token.expiry.check.interval.ms long r =3600000
delegation.token.expiry.time.ms long r =86400000
delegation.token.max.lifetime.ms long r =604800000
delegation.token.secret.key password r
delete.records.purgatory.purge.interval.requests int r =1
early.start.listeners list r
fetch.purgatory.purge.interval.requests int r =1000
follower.fetch.last.tiered.offset.enable boolean c =false
follower.replication.throttled.rate long c =9223372036854775807
group.consumer.assignment.interval.ms int c =1000
group.consumer.max.assignment.interval.ms int r =15000
group.consumer.min.assignment.interval.ms int r =0
group.consumer.regex.refresh.interval.ms int r =600000
group.coordinator.append.linger.ms int r =-1
group.coordinator.background.threads int r =2
group.coordinator.cached.buffer.max.bytes int c =1048588
group.coordinator.threads int r =4
group.share.assignment.interval.ms int c =1000
group.share.assignors list r =simple
group.share.delivery.count.limit int r =5
group.share.heartbeat.interval.ms int r =5000
group.share.initialize.retry.interval.ms int r =30000
group.share.max.assignment.interval.ms int r =15000
group.share.max.delivery.count.limit int r =10
group.share.max.heartbeat.interval.ms int r =15000
group.share.max.partition.max.record.locks int r =4000
group.share.max.record.lock.duration.ms int r =60000
group.share.max.session.timeout.ms int r =60000
group.share.max.share.sessions int r =2000
group.share.max.size int r =200
group.share.min.assignment.interval.ms int r =0
group.share.min.delivery.count.limit int r =2
group.share.min.heartbeat.interval.ms int r =5000
group.share.min.partition.max.record.locks int r =100
group.share.min.record.lock.duration.ms int r =15000
group.share.min.session.timeout.ms int r =45000
group.share.partition.max.record.locks int r =2000
group.share.persister.class.name string r
group.share.record.lock.duration.ms int r =30000
group.share.session.timeout.ms int r =45000
group.streams.assignment.interval.ms int c =1000
group.streams.heartbeat.interval.ms int r =5000
group.streams.initial.rebalance.delay.ms int r =3000
group.streams.max.assignment.interval.ms int r =15000
group.streams.max.heartbeat.interval.ms int r =15000
group.streams.max.session.timeout.ms int r =60000
group.streams.max.size int r =2147483647
group.streams.max.standby.replicas int r =2
group.streams.min.assignment.interval.ms int r =0
group.streams.min.heartbeat.interval.ms int r =5000
group.streams.min.session.timeout.ms int r =45000
group.streams.num.standby.replicas int r =0
group.streams.session.timeout.ms int r =45000
initial.broker.registration.timeout.ms int r =60000
inter.broker.listener.name string r
internal.metadata.delete.delay.millis long r =60000
internal.metadata.log.segment.bytes int r
internal.metadata.max.batch.size.in.bytes int r =8388608
kafka.metrics.polling.interval.secs int r =10
kafka.metrics.reporters list r =
leader.replication.throttled.rate long c =9223372036854775807
log.cleaner.dedupe.buffer.size long c =134217728
log.cleaner.io.buffer.load.factor double c =0.9
log.cleaner.io.buffer.size int c =524288
log.cleaner.io.max.bytes.per.second double c =1.7976931348623157E308
log.cleaner.threads int c =1
log.dir.failure.timeout.ms long r =30000
log.flush.interval.messages long c =9223372036854775807
log.flush.interval.ms long c
log.flush.offset.checkpoint.interval.ms int r =60000
log.flush.scheduler.interval.ms long r =9223372036854775807
log.flush.start.offset.checkpoint.interval.ms int r =60000
log.index.interval.bytes int c =4096
log.index.size.max.bytes int c =10485760
log.initial.task.delay.ms long r =30000
log.local.retention.bytes long c =-2
log.local.retention.ms long c =-2
log.preallocate boolean c =false
log.segment.delete.delay.ms long c =60000
max.connection.creation.rate int c =2147483647
metadata.log.dir string r
metadata.log.max.record.bytes.between.snapshots long r =20971520
metadata.log.max.snapshot.interval.ms long r =3600000
metadata.log.segment.bytes int r =1073741824
metadata.log.segment.ms long r =604800000
metadata.max.idle.interval.ms int r =500
metadata.max.retention.bytes long r =104857600
metadata.max.retention.ms long r =604800000
metric.reporters list c
metrics.num.samples int r =2
metrics.recording.level string r =INFO
metrics.sample.window.ms long r =30000
num.io.threads int c =8
num.network.threads int c =3
num.recovery.threads.per.data.dir int c =2
num.replica.alter.log.dirs.threads int r
num.replica.fetchers int c =1
principal.builder.class class b
process.roles list r
producer.id.expiration.check.interval.ms int r =600000
producer.purgatory.purge.interval.requests int r =1000
quota.window.num int r =11
quota.window.size.seconds int r =1
remote.fetch.max.wait.ms int c =500
remote.list.offsets.request.timeout.ms long c =30000
remote.log.index.file.cache.total.size.bytes long c =1073741824
remote.log.index.file.cache.ttl.ms long r =900000
remote.log.manager.copier.thread.pool.size int c =10
remote.log.manager.copy.max.bytes.per.second long c =9223372036854775807
remote.log.manager.copy.quota.window.num int r =11
remote.log.manager.copy.quota.window.size.seconds int r =1
remote.log.manager.expiration.thread.pool.size int c =10
remote.log.manager.fetch.max.bytes.per.second long c =9223372036854775807
remote.log.manager.fetch.quota.window.num int r =11
remote.log.manager.fetch.quota.window.size.seconds int r =1
remote.log.manager.follower.thread.pool.size int c =2
remote.log.manager.task.interval.ms long r =30000
remote.log.manager.task.retry.backoff.max.ms long r =30000
remote.log.manager.task.retry.backoff.ms long r =500
remote.log.manager.task.retry.jitter double r =0.2
remote.log.manager.thread.pool.size int r =2
remote.log.metadata.custom.metadata.max.bytes int r =128
remote.log.metadata.manager.class.name string r
remote.log.metadata.manager.class.path string r
remote.log.metadata.manager.impl.prefix string r =rlmm.config.
remote.log.metadata.manager.listener.name string r
remote.log.reader.max.pending.tasks int r =100
remote.log.reader.threads int c =10
remote.log.storage.manager.class.name string r
remote.log.storage.manager.class.path string r
remote.log.storage.manager.impl.prefix string r =rsm.config.
remote.log.storage.system.enable boolean r =false
replica.alter.log.dirs.io.max.bytes.per.second long c =9223372036854775807
replica.fetch.backoff.ms int r =1000
replica.fetch.max.bytes int r =1048576
replica.fetch.min.bytes int r =1
replica.fetch.response.max.bytes int r =10485760
replica.fetch.wait.max.ms int r =500
replica.high.watermark.checkpoint.interval.ms long r =5000
replica.lag.time.max.ms long r =30000
replica.selector.class string r
replica.socket.receive.buffer.bytes int r =65536
replica.socket.timeout.ms int r =30000
replication.quota.window.num int r =11
replication.quota.window.size.seconds int r =1
request.timeout.ms int r =30000
sasl.client.callback.handler.class class r
sasl.enabled.mechanisms list b =GSSAPI
sasl.jaas.config password b
sasl.kerberos.kinit.cmd string b =/usr/bin/kinit
sasl.kerberos.min.time.before.relogin long b =60000
sasl.kerberos.principal.to.local.rules list b =DEFAULT
sasl.kerberos.service.name string b
sasl.kerberos.ticket.renew.jitter double b =0.05
sasl.kerberos.ticket.renew.window.factor double b =0.8
sasl.login.callback.handler.class class r
sasl.login.class class r
sasl.login.connect.timeout.ms int r
sasl.login.read.timeout.ms int r
sasl.login.refresh.buffer.seconds short b =300
sasl.login.refresh.min.period.seconds short b =60
sasl.login.refresh.window.factor double b =0.8
sasl.login.refresh.window.jitter double b =0.05
sasl.login.retry.backoff.max.ms long r =10000
sasl.login.retry.backoff.ms long r =100
sasl.mechanism.controller.protocol string r =GSSAPI
sasl.mechanism.inter.broker.protocol string b =GSSAPI
sasl.oauthbearer.assertion.algorithm string r =RS256
sasl.oauthbearer.assertion.claim.aud string r
sasl.oauthbearer.assertion.claim.exp.seconds int r =300
sasl.oauthbearer.assertion.claim.iss string r
sasl.oauthbearer.assertion.claim.jti.include boolean r =false
sasl.oauthbearer.assertion.claim.nbf.seconds int r =60
sasl.oauthbearer.assertion.claim.sub string r
sasl.oauthbearer.assertion.file string r
sasl.oauthbearer.assertion.private.key.file string r
sasl.oauthbearer.assertion.private.key.passphrase password r
sasl.oauthbearer.assertion.template.file string r
sasl.oauthbearer.client.credentials.client.id string r
sasl.oauthbearer.client.credentials.client.secret password r
sasl.oauthbearer.clock.skew.seconds int r =30
sasl.oauthbearer.expected.audience list r =
sasl.oauthbearer.expected.issuer string r
sasl.oauthbearer.jwks.endpoint.refresh.ms long r =3600000
sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms long r =10000
sasl.oauthbearer.jwks.endpoint.retry.backoff.ms long r =100
sasl.oauthbearer.jwks.endpoint.url string r
sasl.oauthbearer.jwt.retriever.class class r
sasl.oauthbearer.jwt.validator.class class r
sasl.oauthbearer.scope string r
sasl.oauthbearer.scope.claim.name string r =scope
sasl.oauthbearer.sub.claim.name string r =sub
sasl.oauthbearer.token.endpoint.url string r
sasl.server.callback.handler.class class r
sasl.server.max.receive.size int r =524288
security.inter.broker.protocol string r =PLAINTEXT
security.providers string r
server.max.startup.time.ms long r =9223372036854775807
share.coordinator.append.linger.ms int r =-1
share.coordinator.cached.buffer.max.bytes int c =1048588
share.coordinator.cold.partition.snapshot.interval.ms int r =300000
share.coordinator.load.buffer.size int r =5242880
share.coordinator.snapshot.update.records.per.snapshot int r =500
share.coordinator.state.topic.compression.codec int r =0
share.coordinator.state.topic.prune.interval.ms int r =300000
share.coordinator.threads int r =1
share.coordinator.write.timeout.ms int r =5000
share.fetch.purgatory.purge.interval.requests int r =1000
socket.connection.setup.timeout.max.ms long r =30000
socket.connection.setup.timeout.ms long r =10000
ssl.allow.dn.changes boolean r =false
ssl.allow.san.changes boolean r =false
ssl.cipher.suites list b =
ssl.client.auth string b =none
ssl.enabled.protocols list b =TLSv1.2,TLSv1.3
ssl.endpoint.identification.algorithm string b =https
ssl.engine.factory.class class b
ssl.key.password password b
ssl.keymanager.algorithm string b =SunX509
ssl.keystore.certificate.chain password b
ssl.keystore.key password b
ssl.keystore.location string b
ssl.keystore.password password b
ssl.keystore.type string b =JKS
ssl.principal.mapping.rules string r =DEFAULT
ssl.protocol string b =TLSv1.3
ssl.provider string b
ssl.secure.random.implementation string b
ssl.trustmanager.algorithm string b =PKIX
ssl.truststore.certificates password b
ssl.truststore.location string b
ssl.truststore.password password b
ssl.truststore.type string b =JKS
telemetry.max.bytes int r =1048576
transaction.state.log.load.buffer.size int r =5242880
transaction.two.phase.commit.enable boolean r =false
unclean.leader.election.enable boolean c =false
unclean.leader.election.interval.ms long r =300000
unstable.api.versions.enable boolean r =false
unstable.feature.versions.enable boolean r =false
"""


def _parse(line: str) -> ConfigKey:
    declaration, separator, default = line.partition("=")
    name, kind, scope = declaration.split()
    return ConfigKey(
        name,
        ConfigType(kind),
        default if separator else None,
        _DOC,
        scope=_SCOPES[scope],
        has_effect=False,
    )


KNOWN_CONFIGS: tuple[ConfigKey, ...] = tuple(_parse(line) for line in _LINES.splitlines())
