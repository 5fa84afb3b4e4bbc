"""What ApiVersions says of features; of APIs, test_conformance and the page of APIs do."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from broker.api import ConnectionInfo, Request
from broker.handlers.api_versions import ApiVersionsHandler
from wire.kafka.codec import decode, encode
from wire.kafka.messages.metadata import ApiVersionsRequest, ApiVersionsResponse


def ask(features, version):
    body = ApiVersionsRequest(client_software_name="c", client_software_version="1")
    connection = ConnectionInfo("c", "h", "PLAINTEXT")
    request = Request(18, version, 1, "c", connection, body)
    answer = ApiVersionsHandler(features).api_versions(request)
    return decode(ApiVersionsResponse, version, encode(answer, version))[0]


@pytest.mark.parametrize("version", range(5))
@pytest.mark.parametrize(("level", "epoch"), [(1, -1), (1, 3), (2, 0), (0, 4)])
def test_the_features(version, level, epoch):
    groups_level = max(level - 1, 0)
    levels = {"transaction.version": level, "group.version": groups_level}
    levels["streams.version"] = groups_level
    answer = ask(SimpleNamespace(levels=levels, epoch=epoch), version)
    supported = [(one.name, one.min_version, one.max_version) for one in answer.supported_features]
    finalized = [
        (one.name, one.max_version_level, one.min_version_level)
        for one in answer.finalized_features
    ]
    if version < 3:
        assert supported == finalized == []
        return
    least = 0 if version == 4 else 1
    names = {"group.version": 1, "share.version": 1, "streams.version": 1, "transaction.version": 2}
    assert supported == [(name, least, most) for name, most in names.items()]
    assert answer.finalized_features_epoch == epoch
    groups = [("group.version", 1, 1), ("streams.version", 1, 1)] if level == 2 else []
    transactions = [("transaction.version", level, level)] if level else []
    assert finalized == ([] if epoch < 0 else [*groups, *transactions])
