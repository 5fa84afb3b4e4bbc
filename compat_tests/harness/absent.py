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
    "acls": Absent("the server of these suites has no authorizer; test_acls.py has one"),
    "reassignment": Absent("a broker alone has nowhere to move a partition to", (45, 46)),
    "elections": Absent("a broker alone leads everything", (43,)),
    "quorum": Absent("there is no Raft quorum: it is asked about and not found"),
}


def reason(feature: str) -> str:
    """Why tests of `feature` are skipped; KeyError for one that is not known to be absent."""
    return f"not in this release: {feature}: {ABSENT[feature].reason}"
