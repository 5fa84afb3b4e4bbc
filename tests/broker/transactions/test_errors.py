"""What old clients are told instead."""

from __future__ import annotations

import pytest

from broker.transactions.errors import for_client
from wire.kafka.api_keys import ApiKey
from wire.kafka.errors import ErrorCode as E


@pytest.mark.parametrize(
    ("api", "fenced_since", "abortable_since", "version_max"),
    [
        (ApiKey.INIT_PRODUCER_ID, 4, 5, 5),
        (ApiKey.ADD_PARTITIONS_TO_TXN, 2, 4, 5),
        (ApiKey.ADD_OFFSETS_TO_TXN, 2, 4, 4),
        (ApiKey.END_TXN, 2, 4, 5),
    ],
)
def test_errors_by_version(api, fenced_since, abortable_since, version_max):
    for version in range(version_max + 1):
        fenced = for_client(E.PRODUCER_FENCED, api, version)
        assert fenced == (90 if version >= fenced_since else 47)
        abortable = for_client(E.TRANSACTION_ABORTABLE, api, version)
        assert abortable == (120 if version >= abortable_since else 48)
        for other in (E.NONE, E.INVALID_TXN_STATE, E.CONCURRENT_TRANSACTIONS):
            assert for_client(other, api, version) is other
