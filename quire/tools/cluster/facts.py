"""What is known of a cluster, read without disturbing anyone: documents in metadata, registrations,
brokers' pages, bookies' last confirmed entries. Nothing is fenced, nothing is written.

A document that cannot be read is told as such and is no reason to tell nothing.
"""

from __future__ import annotations

import json
from dataclasses import field
from http.client import HTTPConnection, HTTPException
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import trio

from broker.cluster.assignment import ASSIGNMENTS_PATH, Assignment
from broker.cluster.controller import CONTROLLER_PATH
from broker.cluster.membership import BROKERS_PATH, Registration, RegistrationFormatError
from broker.cluster.topic import PARTITIONS_PATH, TOPICS_PATH
from broker.log.life.document import read_chain
from ledger.errors import LedgerError
from metadata.store import NoNodeError
from quire.tools.admin.broker import API, PAGES_PATH
from quire.tools.bookie.target import read_token
from wire.bookkeeper.entry import parse_header
from wire.bookkeeper.status import Status
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from broker.log.life.chain import Chain
    from quire.tools.ledger.cluster import Cluster
    from wire.bookkeeper.ledger_metadata import LedgerMetadata

#: Who has not answered then counts as one that does not answer.
ANSWER_SECONDS = 2.0
READ_COUNT = 100


@dataclass(slots=True, frozen=True)
class TopicFacts:
    name: str
    id: str
    partition_count: int
    #: None: nothing is assigned (one broker without a cluster).
    assignment: Assignment | None


@dataclass(slots=True, frozen=True)
class BookieFacts:
    """A member of an ensemble. `mode`: writable, read-only or unavailable, as registered."""

    bookie: str
    mode: str
    #: "": it was asked of the ledger and answered; else why not.
    error: str = ""
    #: The last entry that it has of the ledger, and the LAC it knows; -1: none.
    last_entry: int = -1
    last_add_confirmed: int = -1

    @property
    def answers(self) -> bool:
        return not self.error


@dataclass(slots=True, frozen=True)
class LedgerFacts:
    """`metadata` is None if there is none, or it cannot be read; then `error` says."""

    ledger_id: int
    base_offset: int
    epoch: int
    metadata: LedgerMetadata | None
    #: Of all its ensembles, by name.
    bookies: dict[str, BookieFacts] = field(default_factory=dict)
    error: str = ""


@dataclass(slots=True, frozen=True)
class PageFacts:
    """What the leader's own page says of the partition. `error`: why there is nothing."""

    url: str | None
    values: dict[str, Any] | None
    error: str = ""
    #: It answered, and does not hold the partition.
    is_elsewhere: bool = False


async def brokers(cluster: Cluster) -> dict[int, Registration | str]:
    """Those that are registered; a text says what is wrong with a registration."""
    found: dict[int, Registration | str] = {}
    for name, data in (await _nodes(cluster, BROKERS_PATH)).items():
        if not name.isdigit():
            continue
        try:
            found[int(name)] = Registration.from_bytes(int(name), data)
        except RegistrationFormatError as error:
            found[int(name)] = f"its registration is unreadable: {error}"
    return found


async def pages(cluster: Cluster) -> dict[int, str]:
    """Where the brokers' pages are, of those that have some."""
    found = {}
    for name, data in (await _nodes(cluster, PAGES_PATH)).items():
        if name.isdigit():
            found[int(name)] = str(json.loads(data)["url"])
    return found


async def controller(cluster: Cluster) -> int | None:
    """The broker that is the controller; None: nobody is."""
    node = (await cluster.store.get_many([CONTROLLER_PATH]))[0]
    return None if node is None else int(json.loads(node.data)["broker"])


async def topics(cluster: Cluster, only: str | None = None) -> list[TopicFacts]:
    """By name; `only` one, if it is named and there."""
    store = cluster.store
    nodes = await _nodes(cluster, TOPICS_PATH)
    if only is not None:
        nodes = {only: nodes[only]} if only in nodes else {}
    documents = {name: json.loads(data) for name, data in nodes.items()}
    paths = [f"{ASSIGNMENTS_PATH}/{document['id']}" for document in documents.values()]
    assignments = [node for start in range(0, len(paths), READ_COUNT)
                   for node in await store.get_many(paths[start : start + READ_COUNT])]  # fmt: skip
    return [
        TopicFacts(
            name,
            str(document["id"]),
            int(document["partitions"]),
            None if node is None else Assignment.from_bytes(node.data),
        )
        for (name, document), node in zip(documents.items(), assignments, strict=True)
    ]


async def chains(cluster: Cluster, topic: TopicFacts) -> list[Chain | None]:
    """Of its partitions; None: there is no document."""
    found: list[Chain | None] = []
    for start in range(0, topic.partition_count, READ_COUNT):
        numbers = range(start, min(start + READ_COUNT, topic.partition_count))
        paths = [f"{PARTITIONS_PATH}/{topic.id}/{number}" for number in numbers]
        nodes = await cluster.store.get_many(paths)
        for path, node in zip(paths, nodes, strict=True):
            found.append(None if node is None else (await read_chain(cluster.store, path, node))[0])
    return found


async def chain(cluster: Cluster, topic: TopicFacts, number: int) -> Chain | None:
    try:
        return (await read_chain(cluster.store, f"{PARTITIONS_PATH}/{topic.id}/{number}"))[0]
    except NoNodeError:
        return None


async def ledgers(cluster: Cluster, whole: Chain) -> list[LedgerFacts]:
    """Of the chain, in order, each bookie asked once for each of them: all at once, and none for
    longer than ANSWER_SECONDS."""
    found = [await _ledger(cluster, info.ledger_id, info.base_offset, info.leader_epoch)
             for info in whole.ledgers]  # fmt: skip
    async with trio.open_nursery() as nursery:
        for one in found:
            for bookie in list(one.bookies):
                nursery.start_soon(_ask, cluster, one, bookie)
    return found


async def _ledger(cluster: Cluster, ledger_id: int, base_offset: int, epoch: int) -> LedgerFacts:
    try:
        metadata = (await cluster.manager.read(ledger_id)).metadata
    except LedgerError as error:
        return LedgerFacts(ledger_id, base_offset, epoch, None, error=str(error))
    names = dict.fromkeys(name for _, members in metadata.segments for name in members)
    bookies = {name: BookieFacts(name, cluster.mode(name), "not asked") for name in names}
    return LedgerFacts(ledger_id, base_offset, epoch, metadata, bookies)


async def _ask(cluster: Cluster, ledger: LedgerFacts, bookie: str) -> None:
    """For the LAC, which fences nothing."""
    mode = cluster.mode(bookie)
    error, last_entry, confirmed = f"no answer in {ANSWER_SECONDS:.0f} s", -1, -1
    with trio.move_on_after(ANSWER_SECONDS):
        record = await cluster.bookies.read_lac(bookie, ledger.ledger_id)
        error = "" if record.status is Status.EOK else record.status.name
        if record.status is Status.ENOENTRY or record.status is Status.ENOLEDGER:
            error = ""  # it answers, and has nothing of the ledger yet
        if record.last_entry is not None:
            header = parse_header(record.last_entry)
            last_entry, confirmed = header.entry_id, header.last_add_confirmed
    ledger.bookies[bookie] = BookieFacts(bookie, mode, error, last_entry, confirmed)


def page(url: str | None, partition: str) -> PageFacts:
    """The leader's page. Blocks, for at most some ANSWER_SECONDS. ClickException: a token's file
    that the environment names and that cannot be read."""
    if url is None:
        return PageFacts(None, None, "it has no pages (start it with --metrics HOST:PORT)")
    parts = urlsplit(url)
    token = read_token(None)
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    connection = HTTPConnection(parts.hostname or "", parts.port, timeout=ANSWER_SECONDS)
    try:
        connection.request("GET", f"{API}partition/{partition}", headers=headers)
        answer = connection.getresponse()
        body = answer.read()
    except (OSError, HTTPException) as error:
        return PageFacts(url, None, str(error) or type(error).__name__)
    finally:
        connection.close()
    if answer.status == 404:
        return PageFacts(url, None, "it does not hold the partition", is_elsewhere=True)
    if answer.status != 200:
        return PageFacts(
            url, None, f"status {answer.status}: {body[:200].decode(errors='replace')}"
        )
    return PageFacts(url, json.loads(body))


async def _nodes(cluster: Cluster, path: str) -> dict[str, bytes]:
    """The children of a node that are there, with their data."""
    try:
        names = await cluster.store.children(path)
    except NoNodeError:
        return {}
    found: dict[str, bytes] = {}
    for start in range(0, len(names), READ_COUNT):
        some = names[start : start + READ_COUNT]
        nodes = await cluster.store.get_many([f"{path}/{name}" for name in some])
        found |= {
            name: node.data for name, node in zip(some, nodes, strict=True) if node is not None
        }
    return found
