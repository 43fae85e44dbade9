"""Message bodies of a survey: the server's question in each step, and a silo's signed answer."""

import hashlib

from pydantic import Field

from pomona.core.bounds import PLACES, Sha256
from pomona_federation.agreement import SiloName
from pomona_federation.messages.message_bodies import Body, Token
from pomona_federation.survey.replies import ColumnsReply, FiguresQuestion, FiguresReply


class SurveyQuestion(Body):
    """One step of a survey: which columns a silo has or, with ``figures``, the statistics of the columns that all have.

    ``members``: the asked silos that have rows, as counted by the server.
    """

    kind = "survey-question"
    longest = 16 * 2**20
    agreement: Sha256
    run: Token
    figures: FiguresQuestion | None = None
    members: int = Field(1, ge=1, le=PLACES)

    @property
    def digest(self) -> str:
        """Hash of the question, independent of which other silos are asked."""
        return hashlib.sha256(self.model_dump_json(exclude={"members"}).encode()).hexdigest()


class SurveyAnswer(Body):
    """A silo's answer; ``question`` is the hash of the question."""

    kind = "survey-answer"
    longest = 32 * 2**20
    agreement: Sha256
    run: Token
    silo: SiloName
    question: Sha256
    columns: ColumnsReply | None = None
    figures: FiguresReply | None = None
