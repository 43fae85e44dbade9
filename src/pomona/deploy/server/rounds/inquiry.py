"""One question to every silo, and their signed answers, until all are there or time is over."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic

from pomona.core.errors import ProtocolError
from pomona.deploy.agreement import Federation
from pomona.deploy.audit import Audit
from pomona.deploy.messages.message_bodies import Refusal
from pomona.deploy.messages.message_bus import Message, MessageBus, Outgoing, Undelivered, untrusted
from pomona.deploy.messages.survey_bodies import SurveyAnswer, SurveyQuestion
from pomona.deploy.server.members.member_registry import MemberRegistry
from pomona.deploy.server.rounds.handshake import Handshake
from pomona.deploy.server.rounds.outgoing_task import ATTEMPTS
from pomona.deploy.server.rounds.waiting_file import WaitingFile
from pomona.deploy.versions import note

Judge = Callable[[SurveyAnswer], None]  # raises ProtocolError for an answer that does not fit the question


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
    _handshake: Handshake = field(init=False)
    _waiting: WaitingFile = field(init=False)

    def __post_init__(self) -> None:
        """No silo has been identified yet."""
        self._handshake = Handshake(self.federation, self.run, self.registry, self.bus, self.audit)
        self._waiting = WaitingFile(self.registry.path.parent)

    @property
    def known(self) -> frozenset[int]:
        """The places whose nodes have said who they are."""
        return frozenset(self._handshake.nodes)

    def gather(self, seconds: float, missing: Callable[[], Sequence[str]]) -> None:
        """Greet until no silo is ``missing`` any more, or for so long; a node asked at the end has time to answer."""
        self.absent |= self._handshake.gather(seconds, missing, self._waiting, self.pause)

    def ask(
        self, stage: str, question: SurveyQuestion, silos: Mapping[str, int], judge: Judge
    ) -> dict[str, SurveyAnswer]:
        """The answers of silos, by name, in the order of ``silos``, the place of each.

        A silo counts as absent that refuses, whose answer does not fit, whose node stays offline for longer than
        ``patience``, or that has not answered by the ``deadline``.
        """
        began = monotonic()
        limit = began + self.federation.deadline
        self.absent, answers = {}, dict[str, SurveyAnswer]()
        waiting: dict[str, str] = {}  # ticket -> silo
        attempts, seen = Counter[str](), dict.fromkeys(silos, began)
        self._waiting.begin(stage, self.federation.deadline)
        while (open_ := [n for n in silos if n not in answers and n not in self.absent]) and monotonic() < limit:
            now, online, nodes = monotonic(), self.bus.online(), self._handshake.nodes
            here = {name for name in open_ if nodes.get(silos[name]) in online}
            if len(here) < len(open_):
                self._handshake.ask()  # a silo may be back under another node
            due = [name for name in open_ if name in here and name not in waiting.values()]
            attempts.update(due)
            sent = [Outgoing(nodes[silos[name]], Message.of(question), limit - now) for name in due]
            waiting |= dict(zip(self.bus.send(sent), due, strict=True))
            got = self.bus.fetch([*waiting, *self._handshake.tickets])
            for ticket, message in got.items():
                if ticket not in waiting:
                    self._handshake.meet(ticket, message)
                    continue
                name = waiting.pop(ticket)
                if isinstance(message, Undelivered):
                    if not message.again or attempts[name] >= ATTEMPTS:
                        self._lost(name, stage, message.reason)
                    continue
                try:
                    with untrusted():
                        answers[name] = self._verified(name, silos[name], question, message, judge)
                except ProtocolError as fault:
                    self._lost(name, stage, str(fault))
            seen |= dict.fromkeys(here, now)
            for name in open_:
                if name not in waiting.values() and now - seen[name] > self.federation.patience:
                    self._lost(name, stage, "it is not connected")
            self._tell(silos, answers, waiting)
            if not got:
                self.bus.wait(self.pause)
        for name in silos:
            if name not in answers and name not in self.absent:
                self._lost(name, stage, "it did not answer in time")
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

    def _lost(self, name: str, stage: str, reason: str) -> None:
        self.absent[name] = reason
        self.audit.write("absent", silo=name, stage=stage, reason=reason)

    def _tell(self, silos: Mapping[str, int], answers: Mapping[str, object], waiting: Mapping[str, str]) -> None:
        open_ = [name for name in silos if name not in answers and name not in self.absent]
        missing = {n: "has its question" if n in waiting.values() else "is not connected" for n in open_}
        self._waiting.tell([*answers], missing, [*self.absent])
