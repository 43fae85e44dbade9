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
    """Entries of messages that are models: name -> the places (k,) of a row (d,) that it has.

    ``single``: entries of the downlink whose row j is client j's. ``size``: d.
    """

    up: Mapping[str, Tensor]
    down: Mapping[str, Tensor]
    single: frozenset[str]
    size: int

    @property
    def partial(self) -> bool:
        """Whether some of them are parts of models."""
        return any(len(own) < self.size for own in (*self.up.values(), *self.down.values()))

    @classmethod
    def of(cls, scenario: Scenario) -> "Readable":
        """Ask a scenario's method."""
        server, initial = scenario.config.method.method().server, scenario.initial
        roster = Roster(tuple(len(c.train) for c in scenario.partition.clients))
        marked = initial.instead(torch.arange(len(initial()), dtype=torch.float32))
        state = server.start(marked, roster, scenario.config.seed)
        down = server.down(state, roster.members, roster, round_of(scenario.config, 1))
        first = {n: rows.bank[0] for n, rows in down.items()}  # all are alike in the first round
        size = len(initial())
        models = _models(first, size)
        single = frozenset(name for name in models if down[name].index.dim() == 2)
        return cls(_models(server.expects(state), size), models, single, size)


def _models(entries: Mapping[str, Tensor], size: int) -> dict[str, Tensor]:
    """Return the places of a row (d,) that entries have, of those that begin with numbered
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
    def of(cls, scenario: Scenario) -> "Records":
        """Return each client's training and test rows."""
        held = [np.union1d(c.train, c.test) for c in scenario.partition.clients]
        owner = np.repeat(np.arange(len(held)), [len(rows) for rows in held])
        rows = np.concatenate(held)
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
        rest: (N, d) each client's model in a run of the attacker's own, for the part of a model
            that a message lacks; the initial one if not given.
        losses: by party (T, R): losses of each record under what the party receives of its own
            client, in T readings.
        sites: by party (N, R): losses of each record under every client's model, in the last
            reading; absent for a party that sees no single clients' models.
        others: each client's last message (D,), of those that have no model.
        changes: by client, how its first message changes the initial model (k,), and where.
    """

    scenario: Scenario
    records: Records
    watched: frozenset[int]
    rest: Tensor | None = None
    losses: dict[str, list[Array]] = field(default_factory=dict)
    sites: dict[str, Array] = field(default_factory=dict)
    others: dict[int, Array] = field(default_factory=dict)
    changes: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.readable = Readable.of(self.scenario)
        self._objective: Objective = self.scenario.objective()
        self._start = self.scenario.initial()
        initial = self._start.expand(self.scenario.config.clients, -1)
        self._rest = initial if self.rest is None else self.rest.to(initial)
        self._sent: dict[int, list[Tensor]] = {}

    def on_exchange(
        self, visit: ClientRequest, downlink: Downlink, arrivals: Sequence[Arrival]
    ) -> None:
        """Read one exchange; see ``federation.callbacks.ModelObserver``."""
        for arrival in arrivals if visit.trains else ():
            self._note(visit, downlink, arrival)
        last = not visit.trains and visit.ids == visit.roster.members
        if last or (visit.trains and visit.round.number in self.watched):
            self._read_server()
            if visit.round.number > 1:  # the first model is the seed's
                self._read_peers(visit.ids, downlink)

    def _note(self, visit: ClientRequest, down: Downlink, arrival: Arrival) -> None:
        """Keep a client's message: the models in it, or else its numbers."""
        client, uplink = arrival.reply.client, arrival.reply.uplink
        k, found = visit.ids.index(client), list[Tensor]()
        free = torch.zeros(self.readable.size, dtype=torch.bool)
        for name in sorted(self.readable.up.keys() & uplink.keys()):
            places = self.readable.up[name]
            part = self._model(uplink[name], places, down, k)
            self.changes.setdefault(client, (part - self._start[places], places))
            if free[places].all():  # another part of the same model
                found[-1] = self._whole(part, places, found[-1])
            else:
                found.append(self._whole(part, places, self._rest[client]))
                free[:] = True
            free[places] = False
        if found:
            self._sent[client] = found
        elif uplink:
            numbers = [t.flatten().double().cpu() for t in uplink.values()]
            self.others[client] = torch.cat(numbers).numpy()

    def _model(self, sent: Tensor, places: Tensor, down: Downlink, k: int) -> Tensor:
        """Return the part of a model (k,) that an entry is, or makes of the one that was received:
        a change is shorter than a model.
        """
        sent = sent[: len(places)]
        for name, own in self.readable.down.items():
            rows = down.get(name)
            if rows is not None and rows.index.dim() == 1 and torch.equal(own, places):
                base = rows.bank[rows.index[k]][: len(places)].to(sent)
                return sent if (sent - base).norm() <= sent.norm() else base + sent
        return sent

    def _whole(self, part: Tensor, places: Tensor, rest: Tensor) -> Tensor:
        """Complete a part of a model."""
        row = rest.clone()
        row[places] = part[: len(places)].to(row)
        return row

    def _read_server(self) -> None:
        """Add the losses under what the server has of each client."""
        under: dict[int, Array] = {}
        for client, models in self._sent.items():
            under[client] = self._fitting([self._losses(row) for row in models], client)
        if under:
            self._add("server", under)
            self.sites["server"] = self._matrix(under)

    def _read_peers(self, ids: Sequence[int], down: Downlink) -> None:
        """Add the losses under the model that tells others most of each client."""
        names = sorted(self.readable.down.keys() & down.keys())
        who = {key: r for n in names for key, r in received(n, down[n], ids).items()}

        @cache
        def losses(name: str, v: int, client: int) -> Array:
            part, places = down[name].bank[v], self.readable.down[name]
            return self._losses(self._whole(part, places, self._rest[client]))

        under: dict[int, Array] = {}
        for client in range(self.scenario.config.clients):
            rest = client if self.readable.partial else 0
            seen = [losses(*key, rest) for key, r in who.items() if self._tells(client, key, r)]
            if seen:
                under[client] = self._fitting(seen, client)
        if under:
            self._add("peer", under)
            if self.readable.single & down.keys():
                self.sites["peer"] = self._matrix(under)

    def _fitting(self, seen: Sequence[Array], client: int) -> Array:
        """Return the losses (R,) of those seen that are least on a client's records, whoever of
        these is a member.
        """
        own = self.records.client == client
        return min(seen, key=lambda losses: float(losses[own].mean()))

    def _tells(self, client: int, key: tuple[str, int], receivers: set[int]) -> bool:
        """Return whether others receive a row that may depend on a client's records."""
        name, v = key
        return bool(receivers - {client}) and (v == client or name not in self.readable.single)

    def _losses(self, row: Tensor) -> Array:
        """Return the losses (R,) of all records under a model (d,)."""
        found = np.empty(len(self.records))
        for client, held in enumerate(self.scenario.partition.clients):
            for split in ("train", "test"):
                places = np.searchsorted(self.records.rows, getattr(held, split))
                losses = self._objective.losses(row, client, split)
                found[places] = losses.double().cpu().numpy()
        return found

    def _add(self, party: str, under: Mapping[int, Array]) -> None:
        matrix = self._matrix(under)
        own = matrix[self.records.client, np.arange(len(self.records))]
        self.losses.setdefault(party, []).append(own)

    def _matrix(self, under: Mapping[int, Array]) -> Array:
        """Return losses (N, R) by client; NaN for a client that is not seen."""
        nothing = np.full(len(self.records), np.nan)
        return np.stack([under.get(i, nothing) for i in range(self.scenario.config.clients)])


def received(name: str, rows: Rows, ids: Sequence[int]) -> dict[tuple[str, int], set[int]]:
    """Return who receives each row of an entry of a downlink: (name, row) -> receivers."""
    found: dict[tuple[str, int], set[int]] = {}
    for receiver, index in zip(ids, rows.index, strict=True):
        for v in index.flatten().tolist():
            if index.dim() == 0 or v != receiver:  # its own id marks an empty place
                found.setdefault((name, v), set()).add(receiver)
    return found
