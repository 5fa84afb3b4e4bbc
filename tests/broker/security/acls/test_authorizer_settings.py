"""Attack 48: what whoever may alter all configurations does not get by them."""

import pytest

from tests.broker.security.acls.conftest import JAAS
from wire.kafka.errors import ErrorCode
from wire.kafka.messages import DescribeConfigsRequest, IncrementalAlterConfigsRequest
from wire.kafka.messages.configs import DescribeConfigsResource
from wire.kafka.messages.configs import (
    IncrementalAlterConfigsRequestAlterableConfig as AlterableConfig,
)
from wire.kafka.messages.configs import (
    IncrementalAlterConfigsRequestAlterConfigsResource as AlterConfigsResource,
)

OF_LISTENER = "listener.name.sasl_plaintext."
BROKER = 4


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (f"{OF_LISTENER}plain.sasl.jaas.config", JAAS),
        # CVE-2023-25194 and CVE-2025-27818: login modules that make objects of what they hear.
        ("sasl.jaas.config", "com.sun.security.auth.module.JndiLoginModule required;"),
        ("ssl.keystore.location", "/etc/passwd"),
        ("ssl.keystore.password", "x"),
        (f"{OF_LISTENER}ssl.keystore.key", "x"),
        (f"{OF_LISTENER}sasl.enabled.mechanisms", "OAUTHBEARER"),
        ("delegation.token.secret.key", "x"),
        ("listener.security.protocol.map", "SASL_PLAINTEXT:PLAINTEXT"),
        ("listeners", "PLAINTEXT://0.0.0.0:0"),
    ],
)
@pytest.mark.parametrize("broker", ["0", ""])
async def test_attack_48_keys_logins_and_listeners_are_not_to_be_set(guarded, name, value, broker):
    await guarded.allow("alice ALTER_CONFIGS CLUSTER", "alice DESCRIBE_CONFIGS CLUSTER")
    alice = await guarded.login("alice")
    before = await described(alice)
    config = AlterableConfig(name=name, config_operation=0, value=value)
    resource = AlterConfigsResource(resource_type=BROKER, resource_name=broker, configs=[config])
    answer = await alice.call(IncrementalAlterConfigsRequest(resources=[resource]))
    assert answer.responses[0].error_code in (
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_CONFIG,
    )
    assert await described(alice) == before
    await guarded.login("bob")


async def described(client):
    resource = DescribeConfigsResource(resource_type=BROKER, resource_name="0")
    answer = await client.call(DescribeConfigsRequest(resources=[resource]))
    return {one.name: one.value for one in answer.results[0].configs}
