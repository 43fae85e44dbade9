"""A survey over messages: two questions to every silo, and the result in the study's folder."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import Field

from pomona.core.bounds import PLACES, Line
from pomona.core.errors import ProtocolError, QuorumError
from pomona.core.settings import Settings
from pomona.storage.run_status import Status, write_status
from pomona_federation.agreement import SiloName, StudyAgreement
from pomona_federation.audit_log import Audit
from pomona_federation.json_store import read_json, write_json
from pomona_federation.messages.message_bodies import Refusal, SurveyAnswer, SurveyQuestion
from pomona_federation.messages.message_bus import Message, MessageBus, untrusted
from pomona_federation.server.consents import Consents
from pomona_federation.server.handshake import run_id
from pomona_federation.server.member_registry import MemberRegistry
from pomona_federation.server.message_exchange import MessageExchange, OutgoingMessage
from pomona_federation.supervision.status_files import LIVE, LiveStatus
from pomona_federation.survey import agreeing, page
from pomona_federation.survey.replies import ColumnsReply, FiguresQuestion, FiguresReply
from pomona_federation.survey.result import SiloDisclosure, SurveyResult
from pomona_federation.unused_uplinks import UNUSED, Reason, UnusableError, UnusedUplink

FIRST = "columns.json"
logger = logging.getLogger("pomona")


# raises ProtocolError for an answer that does not fit the question
Judge = Callable[[SurveyAnswer], None]


@dataclass
class OutgoingQuestion(OutgoingMessage):
    """One silo's question in transit."""

    body: SurveyQuestion

    @property
    def about(self) -> Mapping[str, object]:
        """Its hash."""
        return {"question": self.body.digest}


@dataclass
class Inquiry:
    """Asks silos.

    Attributes:
        absent: those without an answer to the last question.
    """

    exchange: MessageExchange
    absent: dict[str, UnusedUplink] = field(default_factory=dict)

    def ask(
        self, stage: str, question: SurveyQuestion, silos: Mapping[str, int], judge: Judge
    ) -> dict[str, SurveyAnswer]:
        """The answers of silos, by name, in the order of ``silos``, which gives the place of each.

        A silo counts as absent if it refuses, its answer does not fit, its node stays offline for
        longer than ``patience``, or it has not answered by the ``deadline``.
        """
        questions = {place: OutgoingQuestion(name, question) for name, place in silos.items()}
        answers: dict[str, SurveyAnswer] = {}

        def hear(place: int, message: Message) -> None:
            sent = questions[place]
            try:
                with untrusted(Reason.UNREADABLE):
                    answers[sent.silo] = self._verified(place, sent, message, judge)
                sent.answered = sent.done = True
            except UnusableError as fault:
                sent.fail(fault.reason, str(fault))

        number = 1 if question.figures is None else 2
        self.exchange.handshake.round = number
        self.exchange.send_all(stage, questions, hear)
        self.absent = {q.silo: q.unused(number) for q in questions.values() if not q.answered}
        for unused in self.absent.values():
            self.exchange.audit.write(UNUSED, **unused.fields)
        return {name: answers[name] for name in silos if name in answers}

    def _verified(
        self, place: int, sent: OutgoingQuestion, message: Message, judge: Judge
    ) -> SurveyAnswer:
        """An answer signed by the silo of a place. Raises ProtocolError."""
        body, asked = self.exchange.verified(place, sent, SurveyAnswer, message), sent.body
        if isinstance(body, Refusal):
            raise message.refused(body)
        if (body.silo, body.agreement, body.run, body.question) != (
            sent.silo,
            asked.agreement,
            asked.run,
            asked.digest,
        ):
            raise UnusableError(Reason.WRONG_TASK, "an answer to another question")
        judge(body)
        self.exchange.audit.write("received", silo=sent.silo, **sent.about, bytes=message.size)
        return body


class FirstStep(Settings):
    """The silos' columns and how to read them, settled once, also across server restarts."""

    silos: dict[SiloName, ColumnsReply] = Field(max_length=PLACES)
    question: FiguresQuestion
    notes: tuple[Line, ...] = ()
    absent: dict[SiloName, UnusedUplink] = Field({}, max_length=PLACES)


def conduct(
    agreed: StudyAgreement, kit_run: Path, out: Path, bus: MessageBus, pause: float
) -> None:
    """Run a survey in its folder ``out``; ``kit_run`` is the server's ``run/``, shared by all
    studies.

    Raises:
        QuorumError: too few silos came or answered.
        DataError: their data do not fit together.
        StorageError: a folder cannot be written.
    """
    assert agreed.survey
    write_status(out, Status(state="running", round=0))
    with Audit(kit_run / "audit.jsonl") as audit:
        registry = MemberRegistry(
            out, agreed.federation, members=MemberRegistry(kit_run, agreed.federation)
        )
        exchange = MessageExchange(agreed, kit_run, run_id(out), registry, bus, audit, pause)
        inquiry = Inquiry(exchange)
        about = {"agreement": agreed.agreement, "run": exchange.run, "study": agreed.study.name}
        audit.write("start", round=0, **about)
        consents = Consents(out)
        exchange.gather(consents.awaited)
        first = read_json(FirstStep, out / FIRST) or _first(agreed, inquiry, consents.declined)
        write_json(out / FIRST, first)
        write_status(out, Status(state="running", round=1))
        told = _second(agreed, inquiry, first)
        unused = {**first.absent, **inquiry.absent}
        silos = {
            name: SiloDisclosure(columns=first.silos[name], figures=reply)
            for name, reply in told.items()
        }
        result = SurveyResult(
            survey=agreed.survey,
            question=first.question,
            silos=silos,
            absent={name: each.sentence for name, each in unused.items()},
            notes=first.notes,
        )
        path = page.write(result, out)
        live = LiveStatus(
            round=1,  # whoever was absent in its first or second step is absent
            rounds=2,
            present=tuple(silos),
            unused=exchange.handshake.turned_away | unused,
        )
        write_json(out / LIVE, live)
        audit.write("finished", silos=list(silos), absent=list(unused))
        logger.info("the survey is in %s", path)


def _first(agreed: StudyAgreement, inquiry: Inquiry, declined: frozenset[str]) -> FirstStep:
    """Ask all connected silos that have not declined for their columns."""
    assert agreed.survey
    entries = inquiry.exchange.registry.entries
    silos = {
        e.name: p
        for p, e in enumerate(entries)
        if p in inquiry.exchange.known and not e.revoked and e.name not in declined
    }
    about = {"agreement": agreed.agreement, "run": inquiry.exchange.run}
    asked = SurveyQuestion(
        **about, members=sum(bool(entries[place].size) for place in silos.values()) or 1
    )

    def judge(answer: SurveyAnswer) -> None:
        size = inquiry.exchange.registry.entries[silos[answer.silo]].size
        if not answer.columns or answer.figures or answer.columns.rows != size:
            raise ProtocolError(f"an answer to another step, or of other than its {size} rows")

    answers = _enough(agreed, inquiry, inquiry.ask("columns", asked, silos, judge))
    columns = {name: answer.columns for name, answer in answers.items() if answer.columns}
    question, notes = agreeing.common_question(agreed.survey, columns)
    return FirstStep(silos=columns, question=question, notes=notes, absent=inquiry.absent)


def _second(agreed: StudyAgreement, inquiry: Inquiry, first: FirstStep) -> dict[str, FiguresReply]:
    """Ask the silos of the first step for their statistics."""
    survey, most = agreed.survey, agreed.federation.most_samples
    assert survey
    places = {
        entry.name: place
        for place, entry in enumerate(inquiry.exchange.registry.entries)
        if not entry.revoked
    }
    silos = {name: places[name] for name in first.silos if name in places}
    about = {"agreement": agreed.agreement, "run": inquiry.exchange.run, "figures": first.question}
    asked = SurveyQuestion(**about, members=sum(first.silos[name].rows > 0 for name in silos) or 1)

    def judge(answer: SurveyAnswer) -> None:
        if not answer.figures or answer.columns:
            raise ProtocolError("an answer to another step")
        agreeing.require_answered(
            survey, first.question, first.silos[answer.silo], answer.figures, most
        )

    answers = _enough(agreed, inquiry, inquiry.ask("figures", asked, silos, judge))
    return {name: answer.figures for name, answer in answers.items() if answer.figures}


def _enough(
    agreed: StudyAgreement, inquiry: Inquiry, answers: dict[str, SurveyAnswer]
) -> dict[str, SurveyAnswer]:
    if len(answers) < agreed.quorum:
        why = "; ".join(f"{name}: {each.sentence}" for name, each in inquiry.absent.items())
        raise QuorumError(
            f"{len(answers)} silos answered, {agreed.quorum} are needed ({why}); see to them, "
            "then resume"
        )
    return answers
