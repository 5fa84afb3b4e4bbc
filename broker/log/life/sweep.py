"""The ledgers of deleted topics: their documents wait under DELETED_PATH until the ledgers are
gone, so that a crash in between only delays it.

Any number of brokers may sweep at once: what one has deleted the others take for done.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from broker.cluster.catalog import DELETED_PATH
from broker.log.life.archived import forget_archived
from broker.log.life.chain import ChainDocument, ChainFormatError, archive_from_bytes, is_archive
from broker.log.life.document import READ_COUNT_MAX
from broker.log.life.swept import mark_swept
from ledger.errors import LedgerError
from metadata.store import MetadataError, NoNodeError, NotEmptyError
from runtime.logs import kv

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ledger.client import LedgerClient
    from metadata.store import MetadataStore

logger = logging.getLogger(__name__)


async def sweep_deleted(store: MetadataStore, ledgers: LedgerClient) -> bool:
    """Deletes what it finds; False if something has to be tried again later (it was logged)."""
    try:
        topic_ids = await store.children(DELETED_PATH)
    except NoNodeError:
        return True
    except MetadataError as error:
        logger.warning("sweep_failed", kv(error=error))
        return False
    is_done = True
    for topic_id in topic_ids:
        try:
            # A topic that is gone by now was swept by somebody else.
            with suppress(NoNodeError):
                is_done &= await _sweep_topic(topic_id, store, ledgers)
        except (MetadataError, LedgerError) as error:
            logger.warning("sweep_failed", kv(topic_id=topic_id, error=error))
            is_done = False
    return is_done


def named_ledgers(path: str, data: bytes) -> Sequence[int]:
    """By a partition's document, or by one of its archives: each is swept by itself.
    ChainFormatError."""
    if is_archive(path):
        return [info.ledger_id for info in archive_from_bytes(data)]
    return ChainDocument(data).ledger_ids()


async def _sweep_topic(topic_id: str, store: MetadataStore, ledgers: LedgerClient) -> bool:
    path = f"{DELETED_PATH}/{topic_id}"
    names = await store.children(path)
    is_done = True
    for start in range(0, len(names), READ_COUNT_MAX):
        paths = [f"{path}/{name}" for name in names[start : start + READ_COUNT_MAX]]
        for document, node in zip(paths, await store.get_many(paths), strict=True):
            if node is None:
                continue
            try:
                ledger_ids = named_ledgers(document, node.data)
            except ChainFormatError as error:  # kept: it may name ledgers
                logger.warning("sweep_failed", kv(document=document, error=error))
                is_done = False
                continue
            for ledger_id in ledger_ids:
                await ledgers.delete_ledger(ledger_id)
            with suppress(NoNodeError):
                await store.delete(document)
    with suppress(NotEmptyError):  # a job just tells more of it: looked for again
        await forget_archived(store, topic_id)
    await mark_swept(store, topic_id)  # for ledgers that no document named
    with suppress(NoNodeError, NotEmptyError):  # not empty: more of it is just being moved here
        await store.delete(path)
    return is_done
