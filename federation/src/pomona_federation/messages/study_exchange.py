"""What a silo and the gate say to each other about studies, beside Flower's messages: bodies of two requests.

``POST PATH`` brings a silo's decisions and returns the hashes of the studies that are not over; ``GET PATH/HASH``
returns one study's text; ``POST VERSIONS`` brings a silo's versions and returns the server's, whatever later releases
make of the rest. All are signed by the silo's key, as every request to the fleet's interface.
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
MOST = 1000  # decisions that a visit brings, and studies that an answer names


class TakenDecision(Settings):
    """A decision and the silo's signature on it; "" in a federation without keys."""

    decision: Decision
    signature: Hex


class SiloVersions(Settings):
    """A silo's request: who it is, and what is installed there."""

    silo: SiloName
    versions: Versions


class StudyVisit(Settings):
    """A silo's request: who it is, and what it has decided since the last."""

    silo: SiloName
    decisions: Annotated[tuple[TakenDecision, ...], Field(max_length=MOST)] = ()


class OpenStudies(Settings):
    """The answer: agreement hashes of the studies that are not over, in the order in which they run."""

    studies: Annotated[tuple[Sha256, ...], Field(max_length=MOST)] = ()
