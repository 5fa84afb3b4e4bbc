"""`quire standalone --bookie-listen`: other processes read the embedded bookie's ledgers.

Off, nobody but the server's own process reaches its bookie. On, there are

    HOST:PORT                         BookKeeper's protocol in front of the embedded bookie
    <data directory>/metadata.sock    the metadata (metadata/served.py), of which this bookie's
                                      registration tells the address

which is what `--bookies N` has in any case. Neither asks who is there: whoever reaches the port
reads every record past Kafka's ACLs, and can fence a ledger, as at any bookie without
authentication.

`--processes N` alone opens no port: its brokers reach the bookie at `bookie.sock` in the data
directory, which, as `metadata.sock`, only the server's own user may connect to.
"""

from __future__ import annotations

import ipaddress
import logging
import os
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from bookie.server.registration import Registration
from bookie.server.server import BookieServer, BookieServerSettings
from bookie.space.disk_usage import DiskState
from metadata.served import MetadataServer
from quire.kept_processes import SESSION_TIMEOUT_MS, SOCKET_NAME
from runtime.logs import kv
from runtime.real_net import RealNet, is_unix
from runtime.running import running
from wire.bookkeeper.records import BookieServiceInfo, Endpoint
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from bookie.bookie import Bookie
    from metadata.sqlite import SqliteStore
    from runtime.env import Env

logger = logging.getLogger(__name__)

LEDGERS_ROOT = "/ledgers"


@dataclass(slots=True, frozen=True)
class BookieListener:
    #: A socket's path and 0, or host and port.
    address: tuple[str, int]
    data_directory: str
    bookie_id: str
    #: Whose disk is told of.
    ledger_directory: str


async def start_listener(
    listener: BookieListener, bookie: Bookie, store: SqliteStore, env: Env, stack: AsyncExitStack
) -> MetadataServer:
    """Serves until the stack is left; what serves the metadata. OSError: the address is in use."""
    assert env.poller is not None
    # Its connections end before the bookie does; those of Kafka's clients are another net's.
    inner = replace(env, net=RealNet(env.poller))
    await stack.enter_async_context(running(inner.net.run))
    host, port = listener.address
    server = BookieServer(
        bookie,
        inner,
        BookieServerSettings(host, port),
        lambda: env.disk.usage(listener.ledger_directory),
    )
    address = await stack.enter_async_context(running(server.run))
    assert isinstance(address, tuple)
    info = BookieServiceInfo((Endpoint("bookie", host, address[1]),), {})
    registration = Registration(store, LEDGERS_ROOT, listener.bookie_id, info)
    registration.set_read_only(bookie.is_read_only)
    bookie.disks.on_change(lambda state: registration.set_read_only(state is DiskState.READ_ONLY))
    await stack.enter_async_context(running(partial(registration.run, SESSION_TIMEOUT_MS)))
    socket_path = os.path.join(listener.data_directory, SOCKET_NAME)
    metadata = MetadataServer(inner, socket_path, store.session)
    await stack.enter_async_context(running(metadata.run))
    if not is_unix(host) and not _is_loopback(host):
        logger.warning(
            "bookie_open_to_others",
            kv(host=host, port=address[1], reason="it asks for no login, and knows no ACLs"),
        )
    logger.info("bookie_listens", kv(host=host, port=address[1], metadata=socket_path))
    return metadata


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
