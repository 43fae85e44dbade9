"""A silo's route to the server: address, trusted authority, client certificate, proxy and speed."""

from dataclasses import dataclass, field
from pathlib import Path

from pomona.core.errors import ConfigError
from pomona.core.files import text
from pomona_federation.address import Address
from pomona_federation.agreement import Federation
from pomona_federation.pki.certificates import private
from pomona_federation.pki.client_context import Shown
from pomona_federation.silo.settings import SiloFile, proxy_address

LONGEST = 1000  # largest password file in bytes


@dataclass(frozen=True)
class WayOut:
    """A silo's route to its server.

    Attributes:
        server: its address.
        ca: the certificate of the federation's authority; None without TLS.
        shown: the silo's own certificate and key; None if the server does not ask for them.
        proxy: URL without name and password; "" for none.
        login: name and password for the proxy.
        up, down: limits in megabits a second; None for no limit.
    """

    server: Address
    ca: Path | None = None
    shown: Shown | None = None
    proxy: str = ""
    login: tuple[str, str] | None = field(default=None, repr=False)
    up: float | None = None
    down: float | None = None

    @classmethod
    def of(cls, folder: Path, silo: SiloFile, federation: Federation) -> "WayOut":
        """The route of a silo's kit. Raises ConfigError for an unusable password file."""
        shown = Shown(folder / "certs" / "silo.crt", folder / "keys" / "silo.key")
        return cls(
            Address.parse(federation.server),
            None if federation.insecure else folder / "certs" / "ca.crt",
            shown if federation.mutual_tls else None,
            silo.proxy,
            _login(silo),
            silo.max_upload_mbit_s,
            silo.max_download_mbit_s,
        )

    @property
    def url(self) -> str:
        """The server's URL, without a path."""
        return f"{'https' if self.ca else 'http'}://{self.server}"

    @property
    def port(self) -> int:
        """The port at the other end of this machine's connections: the proxy's, or the server's."""
        return proxy_address(self.proxy).port if self.proxy else self.server.port


def _login(silo: SiloFile) -> tuple[str, str] | None:
    path = silo.proxy_password_file
    if path is None:
        return None
    private(path)
    try:
        password = text(path).rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as fault:
        raise ConfigError(f"{path}: cannot be read ({fault}); write the proxy's password there, one line") from None
    if not password or len(password) > LONGEST or not password.isprintable():
        raise ConfigError(f"{path}: write the proxy's password there, and nothing else, in one line")
    return silo.proxy_user, password
