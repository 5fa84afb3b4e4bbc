"""BookKeeper's `metadataServiceUri`: where the metadata is, and of what layout.

    zk+hierarchical://host1:2181;host2:2181/ledgers
    zk+null://host1,host2/a/folder/ledgers          take the layout that is there
    zk://host:2181/ledgers                          the same

    quire+unix:///data/metadata.sock                of `quire standalone` on this machine

Hosts are separated by «;» or «,»; the port is 2181 if it is not told; the path is the root of the
ledgers' tree and not a chroot: Java clients and ours see the same absolute paths.
"""

from __future__ import annotations

from wire.dataclass import dataclass

DEFAULT_PORT = 2181
DEFAULT_ROOT = "/ledgers"

#: What may follow «zk+», and the class that LAYOUT then names; None: whatever is there.
_FACTORIES = {
    "null": None,
    "flat": "org.apache.bookkeeper.meta.FlatLedgerManagerFactory",
    "hierarchical": "org.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory",
    "longhierarchical": "org.apache.bookkeeper.meta.LongHierarchicalLedgerManagerFactory",
    "ms": "org.apache.bookkeeper.meta.MSLedgerManagerFactory",
}


@dataclass(slots=True, frozen=True)
class ServiceUri:
    #: «host:port,host:port», IPv6 addresses in brackets
    hosts: str
    #: The root of the ledgers' tree, an absolute path without a slash at its end
    ledgers_root: str
    #: "null", "flat", "hierarchical", "longhierarchical" or "ms"
    layout: str
    #: The Unix socket of metadata/served.py; then there are no hosts.
    socket_path: str | None = None

    @property
    def factory(self) -> str | None:
        """The class that the LAYOUT node must name, or None if any will do."""
        return _FACTORIES[self.layout]


def parse_service_uri(text: str) -> ServiceUri:
    """ValueError that quotes the text and says what is wrong with it."""
    scheme, separator, rest = text.partition("://")
    if not separator:
        raise ValueError(f"metadataServiceUri {text!r}: expected zk+<layout>://hosts/path")
    kind, plus, layout = scheme.lower().partition("+")
    if (kind, layout) == ("quire", "unix"):
        if not rest.startswith("/") or rest.endswith("/"):
            raise ValueError(f"metadataServiceUri {text!r}: expected quire+unix:///path/of/socket")
        return ServiceUri("", DEFAULT_ROOT, "hierarchical", rest)
    if kind != "zk":
        raise ValueError(
            f"metadataServiceUri {text!r}: «{kind}» is not supported, only zk and quire+unix are"
        )
    layout = layout if plus else "null"
    if layout not in _FACTORIES:
        known = ", ".join(_FACTORIES)
        raise ValueError(f"metadataServiceUri {text!r}: layout «{layout}» is none of {known}")
    authority, slash, path = rest.partition("/")
    names = authority.replace(";", ",").split(",")
    hosts = ",".join(_host(name.strip(), text) for name in names)
    root = slash + path.rstrip("/")
    if root in ("", "/"):
        root = DEFAULT_ROOT
    if "//" in root or any(part in (".", "..") for part in root.split("/")):
        raise ValueError(f"metadataServiceUri {text!r}: path {root!r} is not in normal form")
    return ServiceUri(hosts, root, layout)


def _host(name: str, text: str) -> str:
    """«host:port» with the port made explicit."""
    host, separator, port = name.rpartition(":")
    if not separator or name.endswith("]"):
        host, port = name, str(DEFAULT_PORT)
    is_bracketed = host.startswith("[") and host.endswith("]") and ":" in host
    if not host or (":" in host and not is_bracketed) or set(host) & set(" /?#@"):
        raise ValueError(f"metadataServiceUri {text!r}: bad host {name!r}")
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ValueError(f"metadataServiceUri {text!r}: bad port in {name!r}")
    return f"{host}:{port}"
