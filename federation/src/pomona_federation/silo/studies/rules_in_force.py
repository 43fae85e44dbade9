"""The rules in force at a silo, and their origin, in lines that ``check`` and ``start`` show."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pomona.core.bounds import plain
from pomona_federation.silo.settings import SiloFile
from pomona_federation.silo.studies.consent_rules import FILE, ConsentPolicy, policy_sha256
from pomona_federation.silo.studies.own_state import Origin

OWN = ("accept_epsilon", "accept_epsilon_total", "accept_delta_total", "max_upload_mb", "max_download_mb", "code")
LONGEST = 600  # most characters of a line


@dataclass(frozen=True)
class RuleLine:
    """A line of rules; ``foreign``: they may come from the maker of a kit, the first or one unpacked over it."""

    text: str
    foreign: bool = False


def rules(kit: Path, silo: SiloFile, origin: Origin | None) -> Iterator[RuleLine]:
    """The lines of a kit's ``policy.toml`` and ``silo.toml``.

    Args:
        kit: the silo's.
        silo: its settings.
        origin: of its state; None before the silo first works here.

    Raises:
        ConfigError: ``policy.toml`` cannot be read.
        StorageError: likewise.
    """
    policy = ConsentPolicy.of(kit)
    if policy is None:
        yield RuleLine(f"there is no {FILE}: a person accepts each study")
    else:
        now, first = policy_sha256(kit), origin.policy if origin else None
        whence = (
            "it came with the kit, unless somebody here wrote it before the silo's first start: read it"
            if first is None or now == first
            else "not that of the silo's first start; unless somebody here wrote it, a kit that was unpacked over this "
            "folder brought it: read it"
        )
        said = _worded(policy.model_dump(mode="json", exclude_unset=True))
        yield RuleLine(f"{FILE} (SHA-256 {now[:16]}; {whence}) accepts studies by itself: {said}", foreign=True)
    bounds = {key: getattr(silo, key) for key in OWN if getattr(silo, key)}
    yield RuleLine(f"silo.toml: {_worded(bounds)}" if bounds else "silo.toml bounds neither privacy loss nor traffic")


def _worded(settings: dict[str, Any]) -> str:
    return plain(", ".join(f"{key} = {value}" for key, value in settings.items()), LONGEST)
