"""Addresses of server and proxies: a host and a port."""

import ipaddress
import re
from typing import Annotated, NamedTuple, Self

from pydantic import AfterValidator

LABEL = "[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
# the last label is no number
NAME = re.compile(rf"(?=.{{1,253}}$)(?!(?:.*\.)?[0-9]+$){LABEL}(?:\.{LABEL})*")


class Address(NamedTuple):
    """A host and a port."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``host:port`` or ``[IPv6]:port``. Raises ValueError."""
        if "://" in text:
            raise ValueError(f"give host:port without {text.partition('://')[0]}://")
        host, _, port = text.rpartition(":")
        bare = host.removeprefix("[").removesuffix("]")
        if not (port.isascii() and port.isdecimal() and 0 < int(port) < 1 << 16):
            raise ValueError("give host:port with a port from 1 to 65535")
        if host != (f"[{bare}]" if ":" in bare else bare):
            raise ValueError("give an IPv6 address in brackets: [::1]:8443")
        if not (_ip(bare) or NAME.fullmatch(bare)):
            raise ValueError(f"{bare!r} is neither a host name nor an IP address")
        return cls(bare, int(port))

    @property
    def loopback(self) -> bool:
        """Whether only processes on the same machine can reach it."""
        ip = _ip(self.host)
        return ip.is_loopback if ip else self.host == "localhost"

    @property
    def ip(self) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
        """The host as an IP address; None if it is a name."""
        return _ip(self.host)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _address(text: str) -> str:
    return str(Address.parse(text))


HostPort = Annotated[str, AfterValidator(_address)]
