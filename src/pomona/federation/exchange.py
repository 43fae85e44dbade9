"""An exchange with clients: the request, a client's reply, and the reply as a transport received it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from pomona.core.errors import ProtocolError
from pomona.core.round import Roster, Round
from pomona.methods.base import Copies, Downlink, Received, Rows
from pomona.storage.mapped_tensor import stacked


@dataclass(frozen=True)
class ClientRequest:
    """A request to some clients.

    Attributes:
        roster: the members of the federation.
        ids: the clients asked, in the order of the downlink's leading axis.
        trains: False if clients only evaluate what they receive.
        watched: the moments to evaluate: "received", "trained".
        keep: keep the observed models, for the record.
        best: the best common round on validation so far; -1 before there is one.
        adapts: nobody learns from these clients.
        expects: the form of an uplink, by name, for a transport that reads it from bytes.
    """

    round: Round
    roster: Roster
    ids: tuple[int, ...]
    trains: bool = True
    watched: frozenset[str] = frozenset()
    keep: bool = False
    best: int = -1
    adapts: bool = False
    expects: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Score:
    """One client's scores for one named model on one split; None where its samples do not define them.

    ``value``: the run's metric; ``interval``: its 95 % confidence interval, where that was asked for and is defined.
    """

    model: str
    when: str
    split: str
    samples: int
    loss: float | None
    accuracy: float | None
    value: float | None
    interval: tuple[float, float] | None = None


@dataclass(frozen=True)
class Reply:
    """Message of one client; tensors without a client axis. ``fault``: the reason if nothing else is in it."""

    client: int
    uplink: dict[str, Tensor] = field(default_factory=dict)
    info: dict[str, Tensor] = field(default_factory=dict)
    loss: float | None = None
    scores: list[Score] = field(default_factory=list)
    seconds: float = 0.0
    fault: str = ""


@dataclass(frozen=True)
class Arrival:
    """A reply as a transport received it, not checked yet.

    Attributes:
        reply: its ``client`` is set by the transport, which knows the sender; all else is the sender's word.
        run, round, samples: of which run and round it is, and how many training samples its sender counts.
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


def received_bytes(down: Downlink, ids: tuple[int, ...]) -> tuple[int, ...]:
    """Bytes of models that each receiver of a downlink downloads: those of a bank that its index names."""
    totals = [0] * len(ids)
    for rows in down.values():
        for k, client in enumerate(ids):
            names = rows.index[k]
            totals[k] += rows.bank[0].nbytes * (int((names != client).sum()) if names.dim() else 1)
    return tuple(totals)


def cut(down: Mapping[str, Rows | Copies], places: Sequence[int]) -> Received:
    """Part of a downlink for the receivers at these places: rows (n, d) of their own, or their part of a bank."""
    return {
        name: rows.bank[rows.index[places]] if rows.index.dim() == 1 else rows.part(places)
        for name, rows in down.items()
    }


def one(received: Received, k: int) -> Received:
    """Part received by receiver ``k`` of a call."""
    return {
        name: got[k : k + 1].clone() if isinstance(got, Tensor) else got.part([k]) for name, got in received.items()
    }


def stack(replies: Sequence[Reply], what: Callable[[Reply], Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The replies' tensors with a leading client axis, in the order of the replies."""
    names = what(replies[0]) if replies else ()
    return {name: stacked([what(r)[name] for r in replies]) for name in names}
