"""Every API, by a user without rights and by a super user, of what is there and of what is not: the
same errors as the control tells. control_rights.json holds its answers; to write it anew:

    QUIRE_COMPAT_TARGET=control QUIRE_COMPAT_RECORD=1 python -m pytest test_rights.py
"""

import json
import os

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from harness import paths, servers
from harness.brokers import wait_for
from harness.rights import NOTHING, asked, made

from wire.kafka.api_keys import ApiKey
from wire.kafka.messages import FindCoordinatorRequest, HeartbeatRequest, InitProducerIdRequest

ANSWERS = paths.COMPAT / "control_rights.json"
MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
THERE = "there"
#: Whose answer is no API's, or changes the server under the others' feet.
LEFT_OUT = {
    ApiKey.SASL_HANDSHAKE: "ends the connection",
    ApiKey.SASL_AUTHENTICATE: "ends the connection",
    ApiKey.API_VERSIONS: "is asked before the login",
    ApiKey.ELECT_LEADERS: "is announced in a cluster only",
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: "is announced in a cluster only",
    ApiKey.LIST_PARTITION_REASSIGNMENTS: "is announced in a cluster only",
    ApiKey.UNREGISTER_BROKER: "is announced in a cluster only",
    ApiKey.ADD_RAFT_VOTER: "is announced in a cluster only",
    ApiKey.REMOVE_RAFT_VOTER: "is announced in a cluster only",
}
#: By a super user: these would change the control itself, or what the others ask about.
NOT_BY_ADMIN = {
    ApiKey.UPDATE_FEATURES, ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS,
    ApiKey.CREATE_ACLS, ApiKey.DELETE_ACLS, ApiKey.DELETE_TOPICS, ApiKey.ALTER_CLIENT_QUOTAS,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
}  # fmt: skip
#: Case -> (what is told here, why that is on purpose).
DIFFERENT = json.loads((paths.COMPAT / "different_rights.json").read_text())


def keys():
    from broker.guards.table import GUARDS

    return sorted(key for key in GUARDS if key not in LEFT_OUT)


def cases():
    for key in keys():
        for name in (THERE, "absent"):
            yield f"{key.name} nobody {name}", key, "nobody", name
        if key not in NOT_BY_ADMIN:
            yield f"{key.name} admin absent", key, "admin", f"absent-{key.name.lower()}"


@pytest.fixture(scope="module")
def guarded(scratch):
    """(host, port) of a listener with logins, and the topic's id."""
    port = servers.free_port()
    one = servers.make_server(scratch / "rights")
    listeners = f"PLAINTEXT://{one.bootstrap},CLIENTS://{servers.HOST}:{port}"
    protocols = "PLAINTEXT:PLAINTEXT,CLIENTS:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT"
    users = 'user_admin="admin" user_nobody="nobody"'
    one.settings |= {
        "listeners": listeners,
        "advertised.listeners": listeners,
        "listener.security.protocol.map": protocols,
        "listener.name.clients.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.clients.plain.sasl.jaas.config": f"{MODULE} required {users};",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "false",
        "super.users": "User:admin;User:ANONYMOUS",
        "auto.create.topics.enable": "false",
    }
    one.start()
    admin = AdminClient({"bootstrap.servers": one.bootstrap})
    admin.create_topics([NewTopic(THERE, 1, 1)])[THERE].result(60)
    # Coordinators come with their topics.
    for key_type, name in ((0, "g"), (1, "t")):
        body = FindCoordinatorRequest(key_type=key_type, coordinator_keys=[name])
        wait_for(
            lambda body=body: (
                asked((servers.HOST, port), "admin", ApiKey.FIND_COORDINATOR, body) == []
            ),
            60,
            f"no coordinator of {name}",
        )
    group = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    transaction = InitProducerIdRequest(
        transactional_id="t", transaction_timeout_ms=10_000, producer_id=-1, producer_epoch=-1
    )
    for body, ready in ((group, ["UNKNOWN_MEMBER_ID"]), (transaction, [])):
        wait_for(
            lambda body=body, ready=ready: (
                asked((servers.HOST, port), "admin", ApiKey(body.INFO.key), body) == ready
            ),
            60,
            "a coordinator does not load",
        )
    yield servers.HOST, port
    one.discard()


def test_every_api_is_answered_as_by_the_control(guarded):
    found = {
        case: asked(guarded, user, key, made(key, name, NOTHING))
        for case, key, user, name in cases()
    }
    if os.environ.get("QUIRE_COMPAT_RECORD"):
        assert servers.target() == "control", "only the control's answers are worth recording"
        ANSWERS.write_text(json.dumps(found, indent=0, sort_keys=True) + "\n")
        return
    recorded = json.loads(ANSWERS.read_text())
    assert set(found) == set(recorded), "cases came or went: record the control's answers anew"
    wanted = recorded if servers.target() == "control" else {
        case: DIFFERENT.get(case, [answer])[0] for case, answer in recorded.items()
    }  # fmt: skip
    wrong = {
        case: {"here": found[case], "wanted": wanted[case]}
        for case in found
        if found[case] != wanted[case]
    }
    assert wrong == {}, json.dumps(wrong, indent=1)
    if servers.target() == "quire":
        same = [case for case, (ours, _) in DIFFERENT.items() if ours == recorded[case]]
        assert same == [], "these do not differ any more"
