"""One question to every silo, and their signed answers, until all are there or time is over."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pomona.core.errors import ProtocolError
from pomona_federation.agreement import Federation
from pomona_federation.audit import Audit
from pomona_federation.messages.message_bodies import Refusal
from pomona_federation.messages.message_bus import Message, MessageBus, untrusted
from pomona_federation.messages.survey_bodies import SurveyAnswer, SurveyQuestion
from pomona_federation.server.members.member_registry import MemberRegistry
from pomona_federation.server.rounds.message_exchange import MessageExchange, OutgoingMessage
from pomona_federation.versions import note

Judge = Callable[[SurveyAnswer], None]  # raises ProtocolError for an answer that does not fit the question


@dataclass
class OutgoingQuestion(OutgoingMessage):
    """One silo's question on its way."""

    question: SurveyQuestion

    @property
    def about(self) -> Mapping[str, object]:
        """Its hash."""
        return {"question": self.question.digest}

    def message(self) -> Message:
        """The question."""
        return Message.of(self.question)


@dataclass
class Inquiry:
    """Asks silos; ``absent`` are those without an answer to the last question, and why."""

    federation: Federation
    run: str
    registry: MemberRegistry
    bus: MessageBus
    audit: Audit
    pause: float = 1.0
    absent: dict[str, str] = field(default_factory=dict)
    _exchange: MessageExchange = field(init=False)

    def __post_init__(self) -> None:
        """No silo has been identified yet."""
        self._exchange = MessageExchange(self.federation, self.run, self.registry, self.bus, self.audit, self.pause)

    @property
    def known(self) -> frozenset[int]:
        """The places whose nodes have said who they are."""
        return self._exchange.known

    def gather(self, seconds: float, missing: Callable[[], Sequence[str]]) -> None:
        """Greet until no silo is ``missing`` any more, or for so long; a node asked at the end has time to answer."""
        self.absent |= self._exchange.gather(seconds, missing)

    def ask(
        self, stage: str, question: SurveyQuestion, silos: Mapping[str, int], judge: Judge
    ) -> dict[str, SurveyAnswer]:
        """The answers of silos, by name, in the order of ``silos``, the place of each.

        A silo counts as absent that refuses, whose answer does not fit, whose node stays offline for longer than
        ``patience``, or that has not answered by the ``deadline``.
        """
        questions = {place: OutgoingQuestion(name, question) for name, place in silos.items()}
        answers: dict[str, SurveyAnswer] = {}

        def hear(place: int, message: Message) -> None:
            sent = questions[place]
            try:
                with untrusted():
                    answers[sent.silo] = self._verified(sent.silo, place, question, message, judge)
                sent.answered = sent.done = True
            except ProtocolError as fault:
                sent.fail(str(fault))

        self._exchange.send_all(stage, questions, hear)
        self.absent = {sent.silo: sent.reason for sent in questions.values() if not sent.answered}
        for name, reason in self.absent.items():
            self.audit.write("absent", silo=name, stage=stage, reason=reason)
        return {name: answers[name] for name in silos if name in answers}

    def _verified(self, name: str, place: int, asked: SurveyQuestion, message: Message, judge: Judge) -> SurveyAnswer:
        """An answer that the silo of a place has signed. Raises ProtocolError."""
        body: SurveyAnswer | Refusal = message.read(SurveyAnswer, Refusal)
        self.registry.require_signed(place, body.kind, body.statement, message.signature)
        note(self.registry.path.parent, name, message.versions)
        if isinstance(body, Refusal):
            raise ProtocolError(body.fault)
        if (body.silo, body.agreement, body.run, body.question) != (name, asked.agreement, asked.run, asked.digest):
            raise ProtocolError("an answer to another question")
        judge(body)
        self.audit.write("received", silo=name, question=asked.digest, bytes=message.size)
        return body
