"""What a silo answers, read and held against its signatures: nothing of it is believed before."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from pomona.core.errors import ProtocolError
from pomona.deploy.agreement import Federation
from pomona.deploy.message_bus import Message
from pomona.deploy.messages import Answer, Origin, Refusal, name, pack, read, row_statement, statement, unseal
from pomona.deploy.server.member_registry import MemberRegistry
from pomona.deploy.server.outgoing import OutgoingTask
from pomona.deploy.server.reported_scores import figures
from pomona.federation.exchange import Arrival, ClientRequest, Reply

Rows = list[tuple[str, Origin]]  # hashes of rows, and whose they are


@dataclass(frozen=True)
class AnswerReader:
    """Reads the answers of a run.

    Attributes:
        relays: the tensors of an uplink that are passed on to other silos as they are.
    """

    federation: Federation
    run: str
    book: MemberRegistry
    relays: Collection[str]

    def signed(self, place: int, errand: OutgoingTask, got: Message) -> Answer | Refusal:
        """What the silo of a place has signed. Raises ProtocolError, also for an answer to another task."""
        if got.kind == "refused":
            refused: Refusal = read(Refusal, got.body)
            self.book.require_signed(place, "refused", statement(refused), got.signature)
            return refused
        answer: Answer = read(Answer, got.body)
        self.book.require_signed(place, "answer", statement(answer), got.signature)
        if answer.silo != self.book.entries[place].name or answer.task != errand.task.digest:
            raise ProtocolError("an answer to another task")
        return answer

    def reply(
        self, place: int, errand: OutgoingTask, answer: Answer, got: Message, visit: ClientRequest
    ) -> tuple[Arrival, Rows]:
        """An answer as the round loop takes it, and the rows in it that others will get. Raises ProtocolError."""
        reply = Reply(
            place,
            loss=answer.loss,
            scores=figures(answer, visit.watched, self.federation),
            seconds=answer.seconds,
            fault=f"{answer.silo}: {answer.fault}" if answer.fault else "",
        )
        arrival = Arrival(reply, answer.run, answer.number, answer.samples, errand.down, errand.up)
        if reply.fault or not visit.trains:
            return arrival, []
        uplink = got.enclosed.get("uplink", b"")
        if name(uplink) != answer.uplink:
            raise ProtocolError("the uplink is not the one that was signed")
        tensors = unseal(uplink, visit.expects, self.federation.wire, self.federation.places)
        return replace(arrival, reply=replace(reply, uplink=tensors)), self._rows(place, errand, answer, tensors)

    def _rows(self, place: int, errand: OutgoingTask, answer: Answer, tensors: Mapping[str, Tensor]) -> Rows:
        """Raises ProtocolError for a row that its silo did not sign, as its receivers will see it.

        Each of them would refuse its whole task for that row; so agreement, run and round are those of the task.
        """
        rows = []
        for tensor in self.relays:
            digest = name(pack(tensors[tensor], self.federation.wire, self.federation.places))
            signature = answer.rows.get(tensor, "")
            origin = Origin(silo=answer.silo, round=errand.task.number, tensor=tensor, signature=signature)
            said = row_statement(errand.task.agreement, self.run, origin, digest)
            try:
                self.book.require_signed(place, "row", said, signature)
            except ProtocolError as fault:
                raise ProtocolError(f"its row {tensor!r}, which others would get: {fault}") from None
            rows.append((digest, origin))
        return rows
