"""Checks of a silo's kit and its machine, one line each: keys, certificates, connection to the
server, disk.
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, TypeVar

from pomona.core.errors import (
    ConfigError,
    PomonaError,
    StorageError,
    explaining_memory_errors,
    listed,
    worded,
)
from pomona.core.files import probe, writing
from pomona_federation import keys
from pomona_federation.agreement import Federation
from pomona_federation.certificates import UNRENEWABLE, private, valid, warning
from pomona_federation.silo.http_client import ServerRoute
from pomona_federation.silo.server_requests import ask_health
from pomona_federation.silo.settings import SiloFile

T = TypeVar("T")


@dataclass(frozen=True)
class CheckLine:
    """The result of one check; ``code`` is the exit code of a failure, 0 for others."""

    check: str
    result: Literal["ok", "warning", "failed"]
    text: str
    code: int = 0


class Remark(Exception):  # noqa: N818 - not an error
    """A finding that needs attention but is not a failure."""


class Checks:
    """Collects the lines; a failed check returns None."""

    def __init__(self) -> None:
        self.lines: list[CheckLine] = []
        self._faults: list[PomonaError] = []

    def make(self, name: str, check: Callable[[], tuple[T, str]]) -> T | None:
        """Run one check that returns a value and a text; a Remark becomes a warning, any other
        exception a failure.
        """
        try:
            with explaining_memory_errors(f"check {name}"):
                value, text = check()
        except Remark as fault:
            self.lines.append(CheckLine(name, "warning", str(fault)))
        except Exception as fault:  # from a driver, own code or a library: other checks still run
            error = fault if isinstance(fault, PomonaError) else PomonaError(worded(fault))
            self._faults.append(error)
            self.lines.append(CheckLine(name, "failed", str(error), error.code))
        else:
            self.lines.append(CheckLine(name, "ok", text))
            return value
        return None

    @property
    def code(self) -> int:
        """The highest exit code of a failure, 0 if all passed."""
        return max((line.code for line in self.lines), default=0)

    def require(self, summary: str) -> None:
        """Raise the gravest failure's error with all failed lines; return if there are none."""
        if self._faults:
            lines = (f"{x.check}: {x.text}" for x in self.lines if x.result == "failed")
            raise type(max(self._faults, key=lambda fault: fault.code))(summary, *lines)


# seconds; Flower refuses requests signed over 5 s in its future or 5 minutes in its past
CLOCK = 10.0
SPARE = 20  # rounds' worth of models that the disk should have room for


def own_key(folder: Path, name: str) -> tuple[None, str]:
    """Check that the private key exists and matches the public key known to the others."""
    path = folder / "keys" / "silo.key"
    private(path)
    public_key = keys.line(keys.private_key(path).public_key())
    member_keys = {
        peer.stem: keys.public(peer) for peer in (folder / "keys" / "peers").glob("[!.]*.pub")
    }
    if member_keys.get(name) != public_key:
        owners = [peer for peer, key in member_keys.items() if key == public_key]
        raise ConfigError(
            f"{path} is not the key of silo {name} in this kit, but {listed(owners) or 'no silo'}'s"
            ": correct name in silo.toml, or fetch keys/ of the right kit"
        )
    return None, f"belongs to {name}; keys of {len(member_keys) - 1} others"


def authority(folder: Path) -> tuple[None, str]:
    """Check that the authority's certificate is valid, and not about to expire."""
    expiry = valid(folder / "certs" / "ca.crt")
    if line := warning(expiry):
        raise Remark(f"the authority's certificate {line}; {UNRENEWABLE}")
    return None, f"the authority's is valid until {expiry:%Y-%m-%d}"


def server(folder: Path, silo: SiloFile, federation: Federation) -> tuple[None, str]:
    """Check that the federation's server answers, and that both clocks agree."""
    answer = ask_health(ServerRoute.of_kit(folder, silo, federation))
    details = "without TLS" if federation.insecure else "its certificate is the federation's"
    details += ", it asks for this silo's" if federation.mutual_tls else ""
    details += f", through {silo.proxy}" if silo.proxy else ""
    if answer.certificate_until and (line := warning(answer.certificate_until)):
        raise Remark(
            f"{federation.server} answers, but its certificate {line}; ask its administrator to "
            "renew it"
        )
    if answer.clock is None:
        return None, f"{federation.server} answers, {details}; it does not send its time"
    offset = (datetime.now(UTC) - answer.clock).total_seconds()
    if abs(offset) > CLOCK:
        ahead = "ahead of" if offset > 0 else "behind"
        raise Remark(
            f"{federation.server} answers, but this clock is {abs(offset):.0f} s {ahead} the "
            "server's, which refuses signatures from more than 5 s in its future or 5 minutes in "
            "its past; synchronise it (NTP)"
        )
    return (
        None,
        f"{federation.server} answers, {details}, clocks agree within "
        f"{max(1.0, abs(offset)):.0f} s",
    )


def disk(folder: Path, model: int) -> tuple[None, str]:
    """Check that the state is writable and the disk has room; ``model``: bytes of one model."""
    state = folder / "state"
    with writing(state):
        state.mkdir(mode=0o700, exist_ok=True)
        probe(state)
        free = shutil.disk_usage(state).free
    required = SPARE * model
    if free < required:
        raise StorageError(
            f"{state}: {free / 1e6:.0f} MB free, {required / 1e6:.0f} MB advised; make room"
        )
    return None, f"{free / 1e9:.1f} GB free"
