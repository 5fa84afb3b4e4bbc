"""InitProducerId (key 22), versions 0-5: producer ids for idempotent producers.

Without a transactional id: a fresh producer id with epoch 0, as in Kafka also for a producer that
names its own id and epoch (v3+, KIP-360): nothing vouches for them, and the next epoch of another
producer's id would fence that one.

Known deviation: transactional ids are refused with TRANSACTIONAL_ID_AUTHORIZATION_FAILED, which no
client retries, until there is a transaction coordinator.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from broker.api import Api, Request
from metadata.store import MetadataError
from runtime.logs import kv
from wire.kafka.api_keys import ApiKey
from wire.kafka.errors import ErrorCode
from wire.kafka.messages.transactions import InitProducerIdRequest, InitProducerIdResponse

if TYPE_CHECKING:
    from broker.producer_ids import ProducerIds

logger = logging.getLogger(__name__)


class InitProducerIdHandler:
    def __init__(self, producer_ids: ProducerIds) -> None:
        self._producer_ids = producer_ids

    def apis(self) -> list[Api]:
        return [Api(ApiKey.INIT_PRODUCER_ID, 0, 5, self.init_producer_id)]

    async def init_producer_id(self, request: Request) -> InitProducerIdResponse:
        body: InitProducerIdRequest = request.body
        if body.transactional_id == "":
            return _failed(ErrorCode.INVALID_REQUEST)
        if body.transactional_id is not None:
            return _failed(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        if (body.producer_id < 0) != (body.producer_epoch < 0):
            return _failed(ErrorCode.INVALID_REQUEST)
        try:
            producer_id = await self._producer_ids.take()
        except MetadataError as error:
            logger.warning("producer_id_unavailable", kv(error=error))
            return _failed(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


def _failed(code: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=int(code), producer_id=-1, producer_epoch=-1)
