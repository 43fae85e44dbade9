"""What a silo answers, read and held against its signatures: nothing of it is believed before."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from pomona.deploy.federation import Federation
from pomona.deploy.post import Parcel
from pomona.deploy.server.book import Book
from pomona.deploy.server.errand import Errand
from pomona.deploy.server.figures import figures
from pomona.deploy.wire import Answer, Origin, Refused, name, pack, read, row_statement, statement, unseal
from pomona.errors import ProtocolError
from pomona.federation.clients import Reply, Visit

Rows = list[tuple[str, Origin]]  # hashes of rows, and whose they are


@dataclass(frozen=True)
class Reader:
    """Reads the answers of a run.

    Attributes:
        relays: the tensors of an uplink that are passed on to other silos as they are.
    """

    federation: Federation
    run: str
    book: Book
    relays: Collection[str]

    def signed(self, place: int, errand: Errand, got: Parcel) -> Answer | Refused:
        """What the silo of a place has signed. Raises ProtocolError, also for an answer to another task."""
        if got.kind == "refused":
            refused: Refused = read(Refused, got.body)
            self.book.require_signed(place, "refused", statement(refused), got.signature)
            return refused
        answer: Answer = read(Answer, got.body)
        self.book.require_signed(place, "answer", statement(answer), got.signature)
        if answer.silo != self.book.entries[place].name or answer.task != errand.task.digest:
            raise ProtocolError("an answer to another task")
        return answer

    def reply(self, place: int, errand: Errand, answer: Answer, got: Parcel, visit: Visit) -> tuple[Reply, Rows]:
        """An answer as the round loop takes it, and the rows in it that others will get. Raises ProtocolError."""
        reply = Reply(
            place,
            loss=answer.loss,
            scores=figures(answer, visit.watched, self.federation),
            seconds=answer.seconds,
            fault=f"{answer.silo}: {answer.fault}" if answer.fault else "",
            claim=(answer.run, answer.number, answer.samples),
            sent=(errand.down, errand.up),
        )
        if reply.fault or not visit.trains:
            return reply, []
        uplink = got.enclosed.get("uplink", b"")
        if name(uplink) != answer.uplink:
            raise ProtocolError("the uplink is not the one that was signed")
        tensors = unseal(uplink, visit.expects, self.federation.wire, self.federation.places)
        return replace(reply, uplink=tensors), self._rows(place, errand, answer, tensors)

    def _rows(self, place: int, errand: Errand, answer: Answer, tensors: Mapping[str, Tensor]) -> Rows:
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
