"""What each party of a run receives, read as models, and the losses of all records under them.

Nothing here is about single methods. Which entries of a message are models, and which part of one,
follows from the method itself: its server half is started with a model whose parameters are the
numbers 0, 1, 2, ..., and the entries in which these come back are models.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pomona.core.round import Roster
from pomona.federation.callbacks import NullCallback
from pomona.federation.exchange import Arrival, ClientRequest
from pomona.federation.round_plan import round_of
from pomona.methods.base import Downlink, Rows
from pomona.metrics.nan_safe import Array
from pomona.objective.objective import Objective
from pomona.scenario import Scenario

EXACT = 2**24  # float32 counts as far


@dataclass(frozen=True)
class Readable:
    """Entries of messages that are models: name -> the positions (k,) of a row (d,) that it has.

    ``single``: entries of the downlink whose row j is client j's. ``size``: d.
    """

    uplink: Mapping[str, Tensor]
    downlink: Mapping[str, Tensor]
    single: frozenset[str]
    size: int

    @property
    def partial(self) -> bool:
        """Whether some entries are parts of models."""
        return any(
            len(positions) < self.size
            for positions in (*self.uplink.values(), *self.downlink.values())
        )

    @classmethod
    def build(cls, scenario: Scenario) -> "Readable":
        """Find the entries of a scenario's method."""
        server, initial = scenario.config.method.method().server, scenario.initial
        roster = Roster(tuple(len(c.train) for c in scenario.partition.clients))
        marked = initial.instead(torch.arange(len(initial()), dtype=torch.float32))
        state = server.start(marked, roster, scenario.config.seed)
        downlink = server.downlink(state, roster.members, roster, round_of(scenario.config, 1))
        # all are alike in the first round
        first = {n: rows.bank[0] for n, rows in downlink.items()}
        size = len(initial())
        models = _models(first, size)
        single = frozenset(name for name in models if downlink[name].index.dim() == 2)
        return cls(_models(server.uplink_form(state), size), models, single, size)


def _models(entries: Mapping[str, Tensor], size: int) -> dict[str, Tensor]:
    """Return the positions of a row (d,) that entries have, of those that begin with numbered
    parameters; what they have beyond a model is left out.

    Such numbers rise: zeros, counts and masks do not.
    """
    rows = {name: t.cpu()[:size] for name, t in entries.items() if t.dim() == 1 and len(t) > 1}
    return {
        name: t.long()
        for name, t in rows.items()
        if t.is_floating_point() and size < EXACT and bool((t.diff() >= 1).all()) and t[0] >= 0
    }


@dataclass
class Records:
    """The records of an audit: rows of the data set (R,), ascending, and the client of each."""

    rows: NDArray[np.int64]
    client: NDArray[np.int64]

    @classmethod
    def build(cls, scenario: Scenario) -> "Records":
        """Return each client's training and test rows."""
        pools = [np.union1d(c.train, c.test) for c in scenario.partition.clients]
        owner = np.repeat(np.arange(len(pools)), [len(rows) for rows in pools])
        rows = np.concatenate(pools)
        order = np.argsort(rows)
        return cls(rows[order], owner[order])

    def __len__(self) -> int:
        return len(self.rows)


@dataclass
class Recorder(NullCallback):
    """Callback that reads what the parties receive in some rounds of a run.

    Attributes:
        scenario: of the run; engine torch.
        records: of the audit.
        watched: the rounds that are read, besides the last with the models handed out after it.
        fallback: (N, d) each client's model in a run of the attacker's own, for the part of a model
            that a message lacks; the initial one if not given.
        losses: by party (T, R): losses of each record under what the party receives of its own
            client, in T readings.
        sites: by party (N, R): losses of each record under every client's model, in the last
            reading; absent for a party that sees no single clients' models.
        messages: each client's last message (D,), of those that have no model.
        changes: by client, how its first message changes the initial model (k,), and where.
    """

    scenario: Scenario
    records: Records
    watched: frozenset[int]
    fallback: Tensor | None = None
    losses: dict[str, list[Array]] = field(default_factory=dict)
    sites: dict[str, Array] = field(default_factory=dict)
    messages: dict[int, Array] = field(default_factory=dict)
    changes: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.readable = Readable.build(self.scenario)
        self._objective: Objective = self.scenario.objective()
        self._start = self.scenario.initial()
        initial = self._start.expand(self.scenario.config.clients, -1)
        self._fallback = initial if self.fallback is None else self.fallback.to(initial)
        self._sent: dict[int, list[Tensor]] = {}

    def on_exchange(
        self, visit: ClientRequest, downlink: Downlink, arrivals: Sequence[Arrival]
    ) -> None:
        """Read one exchange; see ``federation.callbacks.ModelObserver``."""
        for arrival in arrivals if visit.trains else ():
            self._store_message(visit, downlink, arrival)
        last = not visit.trains and visit.ids == visit.roster.members
        if last or (visit.trains and visit.round.number in self.watched):
            self._read_server()
            if visit.round.number > 1:  # the first model is the seed's
                self._read_peers(visit.ids, downlink)

    def _store_message(self, visit: ClientRequest, downlink: Downlink, arrival: Arrival) -> None:
        """Store a client's message: the models in it, or else its numbers."""
        client, uplink = arrival.reply.client, arrival.reply.uplink
        k, models = visit.ids.index(client), list[Tensor]()
        free = torch.zeros(self.readable.size, dtype=torch.bool)
        for name in sorted(self.readable.uplink.keys() & uplink.keys()):
            positions = self.readable.uplink[name]
            entries = self._received_model(uplink[name], positions, downlink, k)
            self.changes.setdefault(client, (entries - self._start[positions], positions))
            if free[positions].all():  # another part of the same model
                models[-1] = self._completed(entries, positions, models[-1])
            else:
                models.append(self._completed(entries, positions, self._fallback[client]))
                free[:] = True
            free[positions] = False
        if models:
            self._sent[client] = models
        elif uplink:
            numbers = [t.flatten().double().cpu() for t in uplink.values()]
            self.messages[client] = torch.cat(numbers).numpy()

    def _received_model(
        self, entry: Tensor, positions: Tensor, downlink: Downlink, k: int
    ) -> Tensor:
        """Return the part of a model (k,) that an entry is, or makes of the one that was received:
        a change is shorter than a model.
        """
        entry = entry[: len(positions)]
        for name, entry_positions in self.readable.downlink.items():
            rows = downlink.get(name)
            if (
                rows is not None
                and rows.index.dim() == 1
                and torch.equal(entry_positions, positions)
            ):
                base = rows.bank[rows.index[k]][: len(positions)].to(entry)
                return entry if (entry - base).norm() <= entry.norm() else base + entry
        return entry

    def _completed(self, entries: Tensor, positions: Tensor, base: Tensor) -> Tensor:
        """Complete a part of a model."""
        row = base.clone()
        row[positions] = entries[: len(positions)].to(row)
        return row

    def _read_server(self) -> None:
        """Add the losses under the models that the server has of each client."""
        by_client: dict[int, Array] = {}
        for client, models in self._sent.items():
            by_client[client] = self._fitting([self._losses(row) for row in models], client)
        if by_client:
            self._add("server", by_client)
            self.sites["server"] = self._matrix(by_client)

    def _read_peers(self, ids: Sequence[int], downlink: Downlink) -> None:
        """Add the losses under the model that tells other clients most about each client."""
        names = sorted(self.readable.downlink.keys() & downlink.keys())
        receivers = {key: r for n in names for key, r in received(n, downlink[n], ids).items()}

        @cache
        def losses(name: str, v: int, client: int) -> Array:
            entries, positions = downlink[name].bank[v], self.readable.downlink[name]
            return self._losses(self._completed(entries, positions, self._fallback[client]))

        by_client: dict[int, Array] = {}
        for client in range(self.scenario.config.clients):
            fallback_client = client if self.readable.partial else 0
            candidates = [
                losses(*key, fallback_client)
                for key, r in receivers.items()
                if self._informative(client, key, r)
            ]
            if candidates:
                by_client[client] = self._fitting(candidates, client)
        if by_client:
            self._add("peer", by_client)
            if self.readable.single & downlink.keys():
                self.sites["peer"] = self._matrix(by_client)

    def _fitting(self, candidates: Sequence[Array], client: int) -> Array:
        """Return the losses (R,) of those seen that are least on a client's records, whoever of
        these is a member.
        """
        mask = self.records.client == client
        return min(candidates, key=lambda losses: float(losses[mask].mean()))

    def _informative(self, client: int, key: tuple[str, int], receivers: set[int]) -> bool:
        """Return whether others receive a row that may depend on a client's records."""
        name, v = key
        return bool(receivers - {client}) and (v == client or name not in self.readable.single)

    def _losses(self, row: Tensor) -> Array:
        """Return the losses (R,) of all records under a model (d,)."""
        values = np.empty(len(self.records))
        for client, rows in enumerate(self.scenario.partition.clients):
            for split in ("train", "test"):
                positions = np.searchsorted(self.records.rows, getattr(rows, split))
                losses = self._objective.losses(row, client, split)
                values[positions] = losses.double().cpu().numpy()
        return values

    def _add(self, party: str, by_client: Mapping[int, Array]) -> None:
        matrix = self._matrix(by_client)
        own_losses = matrix[self.records.client, np.arange(len(self.records))]
        self.losses.setdefault(party, []).append(own_losses)

    def _matrix(self, by_client: Mapping[int, Array]) -> Array:
        """Return losses (N, R) by client; NaN for a client that is not seen."""
        missing = np.full(len(self.records), np.nan)
        return np.stack([by_client.get(i, missing) for i in range(self.scenario.config.clients)])


def received(name: str, rows: Rows, ids: Sequence[int]) -> dict[tuple[str, int], set[int]]:
    """Return who receives each row of an entry of a downlink: (name, row) -> receivers."""
    receivers: dict[tuple[str, int], set[int]] = {}
    for receiver, index in zip(ids, rows.index, strict=True):
        for v in index.flatten().tolist():
            if index.dim() == 0 or v != receiver:  # its own id marks an empty place
                receivers.setdefault((name, v), set()).add(receiver)
    return receivers
