"""A silo's place among the members of its federation, the id by which its rows are split and its
batches are drawn.

It is the client's number in a simulation of the federation, so that both draw the same. A founder
has its position in ``federation.toml``. A later member has that of its admission: the server names
it with its first message, and ``state/member.json`` of the kit keeps it.
"""

from pathlib import Path

from pomona.core.bounds import ClientId
from pomona.core.errors import ProtocolError
from pomona.core.settings import Settings
from pomona_federation.agreement import Federation
from pomona_federation.json_store import read_json, write_json

FILE = Path("state", "member.json")


class AdmittedMember(Settings):
    """The place that the server has assigned to a silo that is not a founder."""

    member: ClientId


def founder_id(federation: Federation, silo: str) -> int | None:
    """A founder's place, by its name in ``federation.toml``; None for a later member."""
    names = [member.name for member in federation.silo]
    return names.index(silo) if silo in names else None


def known_id(kit: Path, federation: Federation, silo: str) -> int | None:
    """A silo's place; None for a later member to which the server has not named it yet."""
    if (founder := founder_id(federation, silo)) is not None:
        return founder
    admitted = read_json(AdmittedMember, kit / FILE)
    return admitted.member if admitted else None


def member_id(kit: Path, federation: Federation, silo: str) -> int:
    """A silo's place; the first after the founders until the server has named it."""
    number = known_id(kit, federation, silo)
    return len(federation.silo) if number is None else number


def note_id(kit: Path, federation: Federation, silo: str, number: int) -> None:
    """Keep the place that the server names.

    Raises ProtocolError for another one than before: rows would be split anew, and those of the
    test would be trained on.
    """
    current = known_id(kit, federation, silo)
    if current is None:
        write_json(kit / FILE, AdmittedMember(member=number))
    elif current != number:
        raise ProtocolError(
            f"the server names place {number} for this silo, {silo}, which has place {current}; "
            "ask the server's operator"
        )


def described(kit: Path, federation: Federation, silo: str) -> str:
    """A silo's place and where it comes from, for people."""
    among = f"{member_id(kit, federation, silo)} of 0 to {federation.places - 1}"
    if founder_id(federation, silo) is not None:
        return f"{among}, by the order of silos in federation.toml"
    if known_id(kit, federation, silo) is not None:
        return f"{among}, as the server admitted this silo"
    return f"{among} until the server's first message names it: then rows may be split differently"
