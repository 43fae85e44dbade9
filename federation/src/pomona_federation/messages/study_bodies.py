"""Bodies of messages about studies: a survey's question and answer, and the requests that a silo's
node makes of the server's gate, with the silo's decisions.
"""

import hashlib
from typing import Annotated

from pydantic import FailFast, Field

from pomona.core.bounds import MAX_CLIENTS, Hex, Sha256
from pomona.core.settings import Settings
from pomona_federation.agreement import SiloName
from pomona_federation.messages.message_bodies import Body, Token
from pomona_federation.survey.settings import ColumnsReply, FiguresQuestion, FiguresReply
from pomona_federation.versions import Versions

# paths that the server's gate itself answers
MEMBERSHIP = "/v1/fleet/pomona/membership"  # whether a silo is a member
STUDIES = "/v1/fleet/pomona/studies"  # requests about studies
STUDY_VERSIONS = f"{STUDIES}/versions"
MOST_DECISIONS = 1000  # most decisions in a visit, and most studies in an answer


class SurveyQuestion(Body):
    """One step of a survey: which columns a silo has or, with ``figures``, the statistics of the
    columns that all have.

    ``members``: the asked silos that have rows, as counted by the server.
    """

    message_type = "survey-question"
    longest = 16 * 2**20
    agreement: Sha256
    run: Token
    figures: FiguresQuestion | None = None
    members: int = Field(1, ge=1, le=MAX_CLIENTS)

    @property
    def digest(self) -> str:
        """Hash of the question, independent of which other silos are asked."""
        return hashlib.sha256(self.model_dump_json(exclude={"members"}).encode()).hexdigest()


class SurveyAnswer(Body):
    """A silo's answer; ``question`` is the hash of the question."""

    message_type = "survey-answer"
    longest = 32 * 2**20
    agreement: Sha256
    run: Token
    silo: SiloName
    question: Sha256
    columns: ColumnsReply | None = None
    figures: FiguresReply | None = None


class Decision(Body):
    """A silo's acceptance or refusal of a study; ``study`` is its agreement's hash."""

    message_type = "decision"
    silo: SiloName
    study: Sha256
    accepted: bool


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
    decisions: Annotated[
        tuple[TakenDecision, ...], Field(max_length=MOST_DECISIONS), FailFast()
    ] = ()


class OpenStudies(Settings):
    """The answer: agreement hashes of the open studies, in the order in which they run."""

    studies: Annotated[tuple[Sha256, ...], Field(max_length=MOST_DECISIONS)] = ()
