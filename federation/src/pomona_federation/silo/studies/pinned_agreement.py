"""The agreement that a silo has pinned, ``state/agreement.json``: the terms it agreed to when it first started."""

from pydantic import Field

from pomona.core.bounds import Label, Place, Sha256
from pomona.core.settings import Settings
from pomona_federation.messages.message_bodies import EntryForm, Token
from pomona_federation.versions import Versions

PINNED = "agreement.json"


class PinnedAgreement(Settings):
    """The pinned agreement; since the first task also the run, this silo's place and the form of tasks' entries.

    ``begun``: the versions at the first pinning. ``rows``: hash of the silo's own data, and of their split.
    """

    agreement: Sha256
    run: Token | None = None
    place: Place | None = None
    forms: dict[Label, EntryForm] | None = Field(None, max_length=20)
    begun: Versions | None = None
    rows: Sha256 | None = None
