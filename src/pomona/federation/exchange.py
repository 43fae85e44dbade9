"""An exchange with clients: the request, a client's reply, and the reply as received by a
transport.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from torch import Tensor

from pomona.core.errors import ProtocolError
from pomona.core.round import Ids, Roster, Round
from pomona.methods.base import Copies, Downlink, Received, Rows
from pomona.metrics.metric import Score
from pomona.storage.mapped_tensor import let_go, mapped, stacked

# groups of clients that train in one call, each with the longest pass first
Groups = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class ClientRequest:
    """A request to some clients.

    Attributes:
        roster: the members of the federation.
        ids: the clients asked, in the order of the downlink's leading axis.
        trains: False if clients only evaluate the received models.
        watched: the stages to evaluate: "received", "trained".
        keep_models: whether to keep the observed models, for the record.
        best: the best common validation round so far; -1 before there is one.
        adapts: whether these clients' results are not used by others.
        expects: the form of an uplink, by name, for a transport that reads it from bytes.
    """

    round: Round
    roster: Roster
    ids: Ids
    trains: bool = True
    watched: frozenset[str] = frozenset()
    keep_models: bool = False
    best: int = -1
    adapts: bool = False
    expects: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Reply:
    """Message of one client; tensors have no client axis.

    ``fault``: the reason if there is nothing else.
    """

    client: int
    uplink: dict[str, Tensor] = field(default_factory=dict)
    info: dict[str, Tensor] = field(default_factory=dict)
    loss: float | None = None
    scores: list[Score] = field(default_factory=list)
    seconds: float = 0.0
    fault: str = ""


def with_name(fault: str, client: int, name: str) -> str:
    """Return a client's fault with its name in front, in place of the number that it has for
    itself.
    """
    for start in (f"client {client}", name):
        rest = fault.removeprefix(start)
        if rest != fault and not rest[:1].isalnum():
            return f"{name}{rest}"
    return f"{name}: {fault}"


@dataclass(frozen=True)
class Arrival:
    """A reply as received by a transport, before any checks.

    Attributes:
        reply: its ``client`` is set by the transport, which knows the sender; all else is the
            sender's claim.
        run, round, samples: the run and round, and the sender's number of training samples.
        bytes_down, bytes_up: bytes exchanged with this client.
        unread: why the uplink cannot be read.
    """

    reply: Reply
    run: str
    round: int
    samples: int
    bytes_down: int = 0
    bytes_up: int = 0
    unread: ProtocolError | None = None


def received_bytes(downlink: Downlink, ids: Ids) -> tuple[int, ...]:
    """Return the bytes of models that each receiver of a downlink downloads: for a bank, those in
    its index.
    """
    totals = [0] * len(ids)
    for rows in downlink.values():
        for k, client in enumerate(ids):
            senders = rows.index[k]
            totals[k] += rows.bank[0].nbytes * (
                int((senders != client).sum()) if senders.dim() else 1
            )
    return tuple(totals)


def downlink_part(downlink: Mapping[str, Rows | Copies], positions: Sequence[int]) -> Received:
    """Return the part of a downlink for the receivers at these places: their rows (n, d), or their
    part of a bank.
    """
    return {
        name: rows.bank[rows.index[positions]] if rows.index.dim() == 1 else rows.select(positions)
        for name, rows in downlink.items()
    }


def stack(
    replies: Sequence[Reply], select: Callable[[Reply], Mapping[str, Tensor]]
) -> dict[str, Tensor]:
    """Stack the replies' tensors along a leading client axis, in the order of the replies."""
    names = select(replies[0]) if replies else ()
    return {name: stacked([select(r)[name] for r in replies]) for name in names}


@dataclass(frozen=True)
class UplinkSpool:
    """The uplinks of one visit: one tensor (n, ...) per name, row k for the k-th client asked.

    ``exchange.stack`` then has the rows of all clients without a copy, or moves those of some
    together.
    """

    ids: Ids
    rows: Mapping[str, Tensor]

    @classmethod
    def allocate(cls, request: ClientRequest, folder: Path) -> "UplinkSpool":
        """Allocate space for all answers to a request.

        Raises StorageError if a folder has too little.
        """
        n = len(request.ids)
        rows = {
            name: mapped((n, *example.shape), example.dtype, folder)
            for name, example in request.expects.items()
        }
        return cls(request.ids, rows)

    def store(self, reply: Reply) -> Reply:
        """Return a reply whose uplink, of the requested form, is in the files."""
        k, uplink = self.ids.index(reply.client), {}
        for name, tensor in reply.uplink.items():
            uplink[name] = self.rows[name][k].copy_(tensor)
            let_go(uplink[name])
        return replace(reply, uplink=uplink)
