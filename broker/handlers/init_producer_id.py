"""InitProducerId (key 22), versions 0-5: producer ids, for idempotent and transactional producers.

Without a transactional id: a fresh producer id with epoch 0, as in Kafka also for a producer that
names its own id and epoch (v3+, KIP-360): nothing vouches for them, and the next epoch of another
producer's id would fence that one.

With one: what its transaction coordinator says (broker/transactions). Producers below version 4 do
not know PRODUCER_FENCED, and get INVALID_PRODUCER_EPOCH.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from broker.api import Api, HandlerResult, Reply, Request
from broker.transactions.errors import for_client
from broker.transactions.types import InitInput, TxnResult
from metadata.store import MetadataError
from runtime.logs import kv
from wire.kafka.api_keys import ApiKey
from wire.kafka.errors import ErrorCode
from wire.kafka.messages.transactions import InitProducerIdRequest, InitProducerIdResponse

if TYPE_CHECKING:
    from broker.producer_ids import ProducerIds
    from broker.transactions.coordinator import TransactionCoordinator

logger = logging.getLogger(__name__)


class InitProducerIdHandler:
    def __init__(self, producer_ids: ProducerIds, transactions: TransactionCoordinator) -> None:
        self._producer_ids = producer_ids
        self._transactions = transactions

    def apis(self) -> list[Api]:
        return [Api(ApiKey.INIT_PRODUCER_ID, 0, 5, self.init_producer_id)]

    def init_producer_id(self, request: Request) -> HandlerResult:
        body: InitProducerIdRequest = request.body
        if body.transactional_id == "":
            return _failed(ErrorCode.INVALID_REQUEST)
        if body.transactional_id is None:
            return self._without_transactions(body)
        reply = Reply()

        def answer(result: TxnResult) -> None:
            error = for_client(result.error, ApiKey.INIT_PRODUCER_ID, request.version)
            if error:
                reply.resolve(_failed(error))
            else:
                reply.resolve(
                    InitProducerIdResponse(
                        producer_id=result.producer_id, producer_epoch=result.epoch
                    )
                )

        given = InitInput(body.transaction_timeout_ms, body.producer_id, body.producer_epoch)
        self._transactions.init_producer_id(body.transactional_id, given, answer)
        return reply

    async def _without_transactions(self, body: InitProducerIdRequest) -> InitProducerIdResponse:
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
