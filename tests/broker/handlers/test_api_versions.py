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
def test_without_transactions_there_are_no_features(version):
    answer = ask(None, version)
    assert answer.supported_features == answer.finalized_features == []
    assert answer.finalized_features_epoch == -1


@pytest.mark.parametrize("version", range(5))
@pytest.mark.parametrize(("level", "epoch"), [(1, -1), (1, 3), (2, 0)])
def test_the_transactions_version(version, level, epoch):
    answer = ask(SimpleNamespace(transaction_version=level, epoch=epoch), version)
    supported = [(one.name, one.min_version, one.max_version) for one in answer.supported_features]
    finalized = [
        (one.name, one.max_version_level, one.min_version_level)
        for one in answer.finalized_features
    ]
    if version < 3:
        assert supported == finalized == []
        return
    assert supported == [("transaction.version", 0 if version == 4 else 1, 2)]
    assert answer.finalized_features_epoch == epoch
    assert finalized == ([] if epoch < 0 else [("transaction.version", level, level)])
