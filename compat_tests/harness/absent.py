"""What this release does not serve: the one place where a test may be excused, and for what.

These tests ask a broker alone; what only clusters serve is in test_broker_cluster.py.

A feature with API keys is absent only as long as the server does not offer any of them:
test_absent.py fails as soon as it does, so that an excuse cannot outlive its reason.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Absent:
    reason: str
    api_keys: tuple[int, ...] = ()


ABSENT = {
    "transactions": Absent("there is no transaction coordinator", (24, 25, 26, 27, 28, 65, 66)),
    "acls": Absent("there is no authorizer", (29, 30, 31)),
    "reassignment": Absent("a broker alone has nowhere to move a partition to", (45, 46)),
    "log-dir-moves": Absent("a partition has no log directory to move it to", (34,)),
    "elections": Absent("a broker alone leads everything", (43,)),
    "quorum": Absent("there is no Raft quorum to describe", (55,)),
    "share-groups": Absent("there are no share groups (KIP-932)", (76, 77, 78, 79)),
    "scram-users": Absent("there is no SASL, so no users", (17, 36, 50, 51)),
}


def reason(feature: str) -> str:
    """Why tests of `feature` are skipped; KeyError for one that is not known to be absent."""
    return f"not in this release: {feature}: {ABSENT[feature].reason}"
