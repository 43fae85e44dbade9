"""A survey over messages: two questions to every silo, and the result in the study's folder."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import Field

from pomona.core.bounds import MAX_CLIENTS, Line
from pomona.core.errors import ProtocolError, QuorumError
from pomona.core.settings import Settings
from pomona.storage.run_status import Status, write_status
from pomona_federation.agreement import SiloName, StudyAgreement
from pomona_federation.audit_log import Audit
from pomona_federation.json_store import read_json, write_json
from pomona_federation.messages.message_bodies import Refusal
from pomona_federation.messages.message_bus import Message, MessageBus, untrusted
from pomona_federation.messages.study_bodies import SurveyAnswer, SurveyQuestion
from pomona_federation.server.consents import Consents
from pomona_federation.server.handshake import run_id
from pomona_federation.server.member_registry import MemberRegistry, member_ids
from pomona_federation.server.message_exchange import MessageExchange
from pomona_federation.server.outgoing_messages import OutgoingMessage
from pomona_federation.supervision.status_files import LIVE, LiveStatus
from pomona_federation.survey import agreeing, page
from pomona_federation.survey.result import SiloDisclosure, SurveyResult
from pomona_federation.survey.settings import ColumnsReply, FiguresQuestion, FiguresReply
from pomona_federation.unused_uplinks import UNUSED, Reason, UnusableError, UnusedUplink

COLUMNS_FILE = "columns.json"
logger = logging.getLogger("pomona")


# raises ProtocolError for an answer that does not fit the question
Check = Callable[[SurveyAnswer], None]


@dataclass
class Inquiry:
    """Asks silos.

    Attributes:
        absent: those without an answer to the last question.
    """

    exchange: MessageExchange
    absent: dict[str, UnusedUplink] = field(default_factory=dict)

    def collect(
        self, stage: str, question: SurveyQuestion, silos: Mapping[str, int], check: Check
    ) -> dict[str, SurveyAnswer]:
        """The answers of silos, by name, in the order of ``silos``, which gives their client ids.

        A silo counts as absent if it refuses, its answer does not fit, its node stays offline for
        longer than ``patience``, or it has not answered by the ``deadline``.
        """
        questions = {client: OutgoingMessage(name, question) for name, client in silos.items()}
        answers: dict[str, SurveyAnswer] = {}

        def on_answer(client: int, message: Message) -> None:
            outgoing = questions[client]
            try:
                with untrusted(Reason.UNREADABLE):
                    answers[outgoing.silo] = self._verified(client, outgoing, message, check)
                outgoing.answered = outgoing.finished = True
            except UnusableError as fault:
                outgoing.fail(fault.reason, str(fault))

        number = 1 if question.figures is None else 2
        self.exchange.handshake.round = number
        self.exchange.send_all(stage, questions, on_answer)
        self.absent = {q.silo: q.unused(number) for q in questions.values() if not q.answered}
        for unused in self.absent.values():
            self.exchange.audit.write(UNUSED, **unused.fields)
        return {name: answers[name] for name in silos if name in answers}

    def _verified(
        self, client: int, outgoing: OutgoingMessage, message: Message, check: Check
    ) -> SurveyAnswer:
        """An answer signed by the client's silo. Raises ProtocolError."""
        body = self.exchange.verified(client, outgoing, SurveyAnswer, message)
        question = outgoing.body
        assert isinstance(question, SurveyQuestion)
        if isinstance(body, Refusal):
            raise message.refused(body)
        expected = outgoing.silo, question.agreement, question.run, question.digest
        if (body.silo, body.agreement, body.run, body.question) != expected:
            raise UnusableError(Reason.WRONG_TASK, "an answer to another question")
        check(body)
        self.exchange.audit.write(
            "received", silo=outgoing.silo, **outgoing.audit_fields, bytes=message.size
        )
        return body


class FirstStep(Settings):
    """The silos' columns and how to read them, settled once, also across server restarts."""

    silos: dict[SiloName, ColumnsReply] = Field(max_length=MAX_CLIENTS)
    question: FiguresQuestion
    notes: tuple[Line, ...] = ()
    absent: dict[SiloName, UnusedUplink] = Field({}, max_length=MAX_CLIENTS)


def conduct(
    terms: StudyAgreement, kit_run: Path, folder: Path, bus: MessageBus, pause: float
) -> None:
    """Run a survey in its folder ``folder``; ``kit_run`` is the server's ``run/``, shared by all
    studies.

    Raises:
        QuorumError: too few silos came or answered.
        DataError: their data do not fit together.
        StorageError: a folder cannot be written.
    """
    assert terms.survey
    write_status(folder, Status(state="running", round=0))
    with Audit(kit_run / "audit.jsonl") as audit:
        registry = MemberRegistry(
            folder, terms.federation, members=MemberRegistry(kit_run, terms.federation)
        )
        exchange = MessageExchange(terms, kit_run, run_id(folder), registry, bus, audit, pause)
        inquiry = Inquiry(exchange)
        fields = {"agreement": terms.agreement, "run": exchange.run, "study": terms.study.name}
        audit.write("start", round=0, **fields)
        consents = Consents(folder)
        exchange.gather(consents.awaited)
        first = read_json(FirstStep, folder / COLUMNS_FILE) or _ask_columns(
            terms, inquiry, consents.declined
        )
        write_json(folder / COLUMNS_FILE, first)
        write_status(folder, Status(state="running", round=1))
        replies = _ask_figures(terms, inquiry, first)
        unused = {**first.absent, **inquiry.absent}
        silos = {
            name: SiloDisclosure(columns=first.silos[name], figures=reply)
            for name, reply in replies.items()
        }
        result = SurveyResult(
            survey=terms.survey,
            question=first.question,
            silos=silos,
            absent={name: record.sentence for name, record in unused.items()},
            notes=first.notes,
        )
        path = page.write(result, folder)
        live = LiveStatus(
            round=1,  # whoever was absent in its first or second step is absent
            rounds=2,
            present=tuple(silos),
            unused=exchange.handshake.turned_away | unused,
        )
        write_json(folder / LIVE, live)
        audit.write("finished", silos=list(silos), absent=list(unused))
        logger.info("the survey is in %s", path)


def _ask_columns(terms: StudyAgreement, inquiry: Inquiry, declined: frozenset[str]) -> FirstStep:
    """Ask all connected silos that have not declined for their columns."""
    assert terms.survey
    entries = inquiry.exchange.registry.entries
    silos = {
        name: client
        for name, client in member_ids(entries).items()
        if client in inquiry.exchange.identified and name not in declined
    }
    fields = {"agreement": terms.agreement, "run": inquiry.exchange.run}
    question = SurveyQuestion(
        **fields, members=sum(bool(entries[client].size) for client in silos.values()) or 1
    )

    def check(answer: SurveyAnswer) -> None:
        size = inquiry.exchange.registry.entries[silos[answer.silo]].size
        if not answer.columns or answer.figures or answer.columns.rows != size:
            raise ProtocolError(f"an answer to another step, or not over its {size} rows")

    answers = _require_quorum(terms, inquiry, inquiry.collect("columns", question, silos, check))
    columns = {name: answer.columns for name, answer in answers.items() if answer.columns}
    common, notes = agreeing.common_question(terms.survey, columns)
    return FirstStep(silos=columns, question=common, notes=notes, absent=inquiry.absent)


def _ask_figures(
    terms: StudyAgreement, inquiry: Inquiry, first: FirstStep
) -> dict[str, FiguresReply]:
    """Ask the silos of the first step for their statistics."""
    survey, max_samples = terms.survey, terms.federation.most_samples
    assert survey
    clients = member_ids(inquiry.exchange.registry.entries)
    silos = {name: clients[name] for name in first.silos if name in clients}
    fields = {"agreement": terms.agreement, "run": inquiry.exchange.run, "figures": first.question}
    question = SurveyQuestion(
        **fields, members=sum(first.silos[name].rows > 0 for name in silos) or 1
    )

    def check(answer: SurveyAnswer) -> None:
        if not answer.figures or answer.columns:
            raise ProtocolError("an answer to another step")
        agreeing.require_answered(
            survey, first.question, first.silos[answer.silo], answer.figures, max_samples
        )

    answers = _require_quorum(terms, inquiry, inquiry.collect("figures", question, silos, check))
    return {name: answer.figures for name, answer in answers.items() if answer.figures}


def _require_quorum(
    terms: StudyAgreement, inquiry: Inquiry, answers: dict[str, SurveyAnswer]
) -> dict[str, SurveyAnswer]:
    if len(answers) < terms.quorum:
        reasons = "; ".join(f"{name}: {record.sentence}" for name, record in inquiry.absent.items())
        raise QuorumError(
            f"{len(answers)} silos answered, but {terms.quorum} are needed ({reasons}); correct "
            "this, then resume"
        )
    return answers
