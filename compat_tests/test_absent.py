"""What is skipped as absent is absent: the server offers no request of such a feature."""

import pytest
from harness import servers
from harness.absent import ABSENT
from harness.raw import Connection

pytestmark = pytest.mark.skipif(
    servers.target() == "control", reason="the control has all of these features"
)


@pytest.mark.parametrize("feature", [name for name, one in ABSENT.items() if one.api_keys])
def test_absent_feature_is_not_offered(server, feature):
    with Connection(server.port) as connection:
        offered = connection.api_versions()
    assert offered.keys() & set(ABSENT[feature].api_keys) == set()
