"""TLS to ZooKeeper: which files, and what is checked. Without kazoo, which is slow to import."""

from __future__ import annotations

import ssl

from wire.dataclass import dataclass


@dataclass(slots=True, frozen=True)
class ZooKeeperTls:
    """PEM files. Without `ca_file` the system's authorities are trusted; certificate and key are
    for servers that ask for them (ssl.clientAuth)."""

    ca_file: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None
    key_password: str | None = None
    verify_server: bool = True
    #: The server's certificate must be for the name that `hosts` calls it by.
    verify_hostname: bool = True

    def context(self) -> ssl.SSLContext:
        """OSError (ssl.SSLError) if a file is missing or not what it should be."""
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=self.ca_file)
        context.check_hostname = self.verify_server and self.verify_hostname
        context.verify_mode = ssl.CERT_REQUIRED if self.verify_server else ssl.CERT_NONE
        if self.certificate_file is not None:
            # Without one OpenSSL would ask the terminal.
            password = self.key_password or ""
            context.load_cert_chain(self.certificate_file, self.key_file, password)
        return context
