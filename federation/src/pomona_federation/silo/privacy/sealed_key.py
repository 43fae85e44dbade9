"""Seals of a silo's noise keys, ``private/dp/client-03/seal``: a key counts only on the machine that made it.

Anyone who knows a noise key can remove the noise; so a key that comes with a kit is refused, even if the kit is
unpacked over a silo's folder.
"""

from pathlib import Path

from pomona.core.errors import PrivacyError
from pomona.core.files import text
from pomona.objective.private_gradients import PrivateObjective
from pomona.storage.atomic_io import publish, writing
from pomona_federation.silo.machine import seal, sealed

FILE = "seal"
BEGUN, KEY = "noise key begun", "noise key"


def open_own(stores: Path, objective: PrivateObjective, place: int) -> None:
    """Open a place's key store, or create and seal it.

    Raises:
        PrivacyError: its key was not made on this machine; or as ``KeyStore.open``.
        StorageError: the seal cannot be written, or the machine has no id.
    """
    home = stores / f"client-{place:02d}"
    if not any((home / name).exists() for name in ("key", "ledger.jsonl")):
        _write(home, seal(BEGUN, home.name))  # a kill between key and seal leaves one that was started here
    store = objective.key_store(place)
    found = text(home / FILE, 1000).strip() if (home / FILE).exists() else ""
    if sealed(found, BEGUN, home.name) and not store.position().entries:
        _write(home, _seal(home))
    elif found != _seal(home):
        raise PrivacyError(
            f"{home / 'key'} was not made on this machine: who brought it can take the noise off; stop, find out where "
            "it comes from, and `pomona silo restore` a backup of before"
        )


def reseal(home: Path) -> None:
    """Seal a restored key as this machine's. Raises StorageError."""
    _write(home, _seal(home))


def _seal(home: Path) -> str:
    return seal(KEY, f"{home.name} {text(home / 'key', 1000).strip()}")


def _write(home: Path, value: str) -> None:
    with writing(home):
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        publish(home, [value.encode()], lambda _: FILE, f".{FILE}", 0o600)
