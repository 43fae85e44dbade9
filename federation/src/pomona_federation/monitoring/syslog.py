"""Syslog: messages as RFC 5424 has them over UDP and TCP (RFC 6587, octet counting), and to a daemon on this machine.

The standard library's ``SysLogHandler`` swallows what goes wrong, and ends messages over TCP with a NUL. Here a lost
connection is an OSError, and over TCP ``send`` returns when the other side has acknowledged all bytes.
"""

import re
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from fcntl import ioctl
from logging.handlers import SysLogHandler
from pathlib import Path
from termios import TIOCOUTQ
from typing import Literal, NamedTuple

from pomona.core.errors import ConfigError
from pomona_federation.address import Address

PATIENCE = 10.0  # seconds to connect, and until what was sent is acknowledged
LONGEST = 8000  # bytes of a text; receivers cut longer messages
MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?(Z|[+-]\d\d:\d\d)")
FACILITIES = SysLogHandler.facility_names
INFORMATIONAL, WARNING = SysLogHandler.LOG_INFO, SysLogHandler.LOG_WARNING


class Destination(NamedTuple):
    """Where messages go: ``address`` of a host for "udp" and "tcp", ``path`` of a socket for "unix"."""

    kind: Literal["udp", "tcp", "unix"]
    address: Address | None = None
    path: Path | None = None

    @classmethod
    def parse(cls, text: str) -> "Destination":
        """Of ``udp://HOST:PORT``, ``tcp://HOST:PORT`` or ``unix:PATH``. Raises ConfigError."""
        kind, _, rest = text.partition(":")
        try:
            if kind == "unix" and rest.startswith("/"):
                return cls("unix", path=Path(rest))
            if kind in {"udp", "tcp"} and rest.startswith("//"):
                return cls("udp" if kind == "udp" else "tcp", Address.parse(rest[2:]))
        except ValueError as fault:
            raise ConfigError(f"syslog {text!r}: {fault}") from None
        raise ConfigError(f"syslog {text!r}: give udp://HOST:PORT, tcp://HOST:PORT or unix:/dev/log")

    def __str__(self) -> str:
        return f"unix:{self.path}" if self.kind == "unix" else f"{self.kind}://{self.address}"


@dataclass(frozen=True)
class Origin:
    """Who speaks: the message's APP-NAME, PROCID and HOSTNAME, and its facility."""

    app: str
    process: str
    facility: int
    host: str


def message(origin: Origin, severity: int, moment: str, kind: str, text: str) -> bytes:
    """A message: ``moment`` in RFC 3339, else it has no time; ``kind`` as MSGID; at most ``LONGEST`` bytes of text."""
    moment = moment if MOMENT.fullmatch(moment) else "-"
    names = (_name(origin.host, 255), _name(origin.app, 48), _name(origin.process, 128), _name(kind, 32))
    head = f"<{8 * origin.facility + severity}>1 {moment} {' '.join(names)} -"
    return f"{head} {text}".encode()


def local_message(origin: Origin, severity: int, text: str) -> bytes:
    """A message as the daemon behind ``/dev/log`` reads it, which puts time and host in front itself."""
    return f"<{8 * origin.facility + severity}>{_name(origin.app, 48)}[{_name(origin.process, 128)}]: {text}".encode()


def _name(text: str, most: int) -> str:
    """Printable ASCII without blanks, as the parts of a header are."""
    return re.sub(r"[^!-~]", "_", text)[:most] or "-"


@dataclass
class Connection:
    """A connection that is made when it is needed, and made anew after it was lost."""

    to: Destination
    _socket: socket.socket | None = None

    def send(self, messages: Sequence[bytes]) -> None:
        """Send messages in their order. Raises OSError where the connection is lost: any of them may have come."""
        try:
            link = self._socket = self._socket or _connected(self.to)
            for text in messages:
                if self.to.kind == "tcp":
                    _require_open(link)
                    link.sendall(b"%d %b" % (len(text), text))
                else:
                    link.send(text)
            if self.to.kind == "tcp":
                _acknowledged(link)
        except OSError:
            self.close()
            raise

    def check(self) -> None:
        """Raise OSError if the other side has closed a connection that was made."""
        if self._socket and self.to.kind == "tcp":
            try:
                _require_open(self._socket)
            except OSError:
                self.close()
                raise

    def close(self) -> None:
        """Let go of the connection."""
        if self._socket:
            self._socket.close()
        self._socket = None


def _connected(to: Destination) -> socket.socket:
    if to.path:
        return _unix(str(to.path))
    assert to.address
    kind = socket.SOCK_STREAM if to.kind == "tcp" else socket.SOCK_DGRAM
    fault = OSError(f"{to.address.host} has no address")
    for family, _, _, _, address in socket.getaddrinfo(*to.address, type=kind):
        link = socket.socket(family, kind)
        try:
            link.settimeout(PATIENCE)
            link.connect(address)
            return link
        except OSError as wrong:
            link.close()
            fault = wrong
    raise fault


def _unix(path: str) -> socket.socket:
    """A daemon's socket takes datagrams; some take a stream, which has no agreed framing, and is not supported."""
    link = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        link.settimeout(PATIENCE)
        link.connect(path)
    except OSError:
        link.close()
        raise
    return link


def _require_open(link: socket.socket) -> None:
    """Syslog servers send nothing: an end is all that can be read. Raises OSError for it."""
    link.setblocking(False)
    try:
        with suppress(BlockingIOError):
            if not link.recv(4096):
                raise ConnectionResetError("the other side has closed the connection")
    finally:
        link.settimeout(PATIENCE)


def _acknowledged(link: socket.socket) -> None:
    """Wait until the other side's kernel has acknowledged every byte. Raises OSError."""
    until = time.monotonic() + PATIENCE
    while True:
        _require_open(link)
        left = int.from_bytes(ioctl(link, TIOCOUTQ, bytes(4)), "little", signed=True)
        if not left:
            return
        if time.monotonic() > until:
            raise TimeoutError(f"{left} bytes were not acknowledged within {PATIENCE:g} s")
        time.sleep(0.01)
