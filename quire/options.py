"""What the command line asks of a role; the seam between `quire.cli` and the composition."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_LISTEN = ("127.0.0.1", 9092)


@dataclass(slots=True, frozen=True)
class AdminOptions:
    """The user who is made if nobody has or had the name. `mechanisms`: of SCRAM."""

    name: str
    mechanisms: tuple[str, ...]
    #: None: one is made.
    password: str | None = field(default=None, repr=False)


@dataclass(slots=True, frozen=True)
class StandaloneOptions:
    """`quire standalone`: broker, bookie and metadata in one process, or with several bookies as
    processes of their own."""

    #: Where Kafka clients connect; port 0 takes a free one. None: where the file says, else
    #: DEFAULT_LISTEN.
    listen: tuple[str, int] | None = None
    data_dir: str = "data"
    #: The text of the properties file, "" without one.
    properties: str = ""
    #: `--set` settings, which win over the file's.
    overrides: Mapping[str, str] = field(default_factory=dict)
    #: Where Prometheus asks, if it may.
    metrics: tuple[str, int] | None = None
    #: 1: in this process. More: each a process, and topics have up to three copies.
    bookies: int = 1
    #: 1: this one has the only broker. More: the others have one each (quire/broker_processes.py).
    processes: int = 1
    #: Where other processes read the bookie in this one; None: nowhere.
    bookie_listen: tuple[str, int] | None = None
    admin: AdminOptions | None = None
    #: For all processes of it.
    log_levels: str = "info"
