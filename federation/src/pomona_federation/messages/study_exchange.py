"""Requests about studies between a silo and the gate, beside Flower's messages.

``POST PATH`` sends a silo's decisions and returns the hashes of the open studies; ``GET PATH/HASH`` returns one study's
text; ``POST VERSIONS`` sends a silo's versions and returns the server's, and its form will stay the same in later
releases. All are signed with the silo's key, like every request to the fleet's interface.
"""

from typing import Annotated

from pydantic import Field

from pomona.core.bounds import Hex, Sha256
from pomona.core.settings import Settings
from pomona_federation.agreement import SiloName
from pomona_federation.messages.message_bodies import Decision
from pomona_federation.versions import Versions

PATH = "/v1/fleet/pomona/studies"
VERSIONS = f"{PATH}/versions"
MOST = 1000  # most decisions in a visit, and most studies in an answer


class TakenDecision(Settings):
    """A decision and the silo's signature on it; "" in a federation without keys."""

    decision: Decision
    signature: Hex


class SiloVersions(Settings):
    """A silo's request: its name and its installed versions."""

    silo: SiloName
    versions: Versions


class StudyVisit(Settings):
    """A silo's request: its name and its decisions since the last request."""

    silo: SiloName
    decisions: Annotated[tuple[TakenDecision, ...], Field(max_length=MOST)] = ()


class OpenStudies(Settings):
    """The answer: agreement hashes of the open studies, in the order in which they run."""

    studies: Annotated[tuple[Sha256, ...], Field(max_length=MOST)] = ()
