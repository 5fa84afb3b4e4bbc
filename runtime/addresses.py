"""Addresses of this machine's network interfaces."""

from __future__ import annotations

import fcntl
import socket
import struct

_SIOCGIFADDR = 0x8915
_ADDRESS_IN_IFREQ = slice(20, 24)


def interface_address(name: str | None) -> str:
    """The IPv4 address of a network interface; without a name, of this host as others know it.
    OSError if there is none."""
    if name is None:
        return socket.gethostbyname(socket.getfqdn())
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("256s", name.encode()[:15])
        try:
            answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
        except OSError as error:
            raise OSError(error.errno, f"network interface {name}: {error.strerror}") from error
    return socket.inet_ntoa(answer[_ADDRESS_IN_IFREQ])
