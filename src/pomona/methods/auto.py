"""auto: four methods side by side, of which each client takes what is best on its validation samples.

A choice of this package, not of a paper, for those who do not want to search for a method.

    alone            Separate's w_i
    average          FedAvg's w_i: the received model, fine-tuned on the client's samples
    shared           FedRep's (phi_i, h_i): lower layers of all, a head of its own
    mixed            APPLE's m_i, with its local step: a mixture of all clients' progress
    choice           the model, right after training, with the least mean loss on client i's validation samples

The four see the same batches, do not know of each other, and have no settings: each is what it is as
a run of its own, to the bit. The choice is made in every round; it stays with the client, and nothing
that is sent depends on it. Test samples choose nothing, so the score of ``personal`` on them
is honest. Its validation score is the best of four on the same samples, so it is too high, most
where they are few.

A round costs what the four cost together: four to five times FedAvg's training, the models of all
others and two more down, and nearly three up. Under privacy their gradients on one batch count as
four.

Named models: ``personal`` is the chosen one; ``alone``, ``average``, ``shared`` and ``mixed`` are
evaluated beside it. Newcomers start all four from the initial model.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from pomona.methods import base
from pomona.methods.apple import APPLE
from pomona.methods.fedavg import FedAvgLocal
from pomona.methods.fedrep import FedRep
from pomona.methods.separate import Separate

FOUR: Mapping[str, base.MethodSettings] = {
    "alone": Separate(),
    "average": FedAvgLocal(),
    "shared": FedRep(),
    "mixed": APPLE(core_step="local"),
}
"""What a client chooses among."""
T = TypeVar("T")
Act = Callable[..., base.Trained[Any]]  # a client half's train or adapt


class Auto(base.MethodSettings):
    """The choice has no settings."""

    name: Literal["auto"] = "auto"

    def method(self) -> base.Method:
        """Return the method: both halves and its card."""
        methods = {name: settings.method() for name, settings in FOUR.items()}
        gradients = tuple(g for m in methods.values() for g in m.card.privacy.gradients)
        tells = {
            f"mixed_{entry}": what for entry, what in methods["mixed"].card.exchange.tells.items()
        }
        exchange = replace(
            CARD.exchange,
            tells={**CARD.exchange.tells, **tells},
            down_models=lambda clients: clients + 1,
        )
        card = replace(CARD, privacy=base.PrivacyCost(gradients=gradients), exchange=exchange)
        servers = {name: m.server for name, m in methods.items()}
        halves = {name: m.client for name, m in methods.items()}
        return base.Method(server(servers), client(halves), card)


@dataclass(frozen=True)
class Four:
    """The states of the four, of a server or of clients."""

    alone: Any
    average: Any
    shared: Any
    mixed: Any


def entries(of: Mapping[str, Mapping[str, T]]) -> dict[str, T]:
    """Return the entries of the four under one name each."""
    return {f"{name}_{entry}": row for name, own in of.items() for entry, row in own.items()}


def part(named: Mapping[str, T], name: str) -> dict[str, T]:
    """Return the entries of one of the four under their own names."""
    start = f"{name}_"
    return {
        entry.removeprefix(start): row for entry, row in named.items() if entry.startswith(start)
    }


def all_four(of: Callable[[str], Any]) -> Four:
    """Return a state of what a function makes of each name."""
    return Four(**{name: of(name) for name in FOUR})


def server(servers: Mapping[str, base.Server]) -> base.Server:
    """Run the four servers; training alone has none, and in its place the initial model is kept."""

    def start(initial: base.Initial, roster: base.Roster, seed: int) -> Four:
        own = all_four(lambda name: servers[name].start(initial, roster, seed))
        return replace(own, alone=initial())

    def down(
        state: Four, ids: tuple[int, ...], roster: base.Roster, round_: base.Round
    ) -> base.Downlink:
        return entries(
            {
                name: own.down(getattr(state, name), ids, roster, round_)
                for name, own in servers.items()
            }
        )

    def aggregate(
        state: Four,
        uplink: base.Uplink,
        ids: tuple[int, ...],
        roster: base.Roster,
        round_: base.Round,
    ) -> Four:
        own = all_four(
            lambda name: servers[name].aggregate(
                getattr(state, name), part(uplink, name), ids, roster, round_
            )
        )
        return replace(own, alone=state.alone)

    def welcome(state: Four, ids: tuple[int, ...], roster: base.Roster) -> tuple[Four, None]:
        own = all_four(lambda name: servers[name].welcome(getattr(state, name), ids, roster)[0])
        # where APPLE's own newcomers start from the mean, whose core the others would get
        cores = base.replace_rows(own.mixed.cores, ids, state.alone)
        return replace(own, mixed=replace(own.mixed, cores=cores)), None

    def expects(state: Four) -> base.Uplink:
        return entries({name: own.expects(getattr(state, name)) for name, own in servers.items()})

    relays = {"mixed_cores": "mixed_core"}
    return base.Server(start, down, aggregate, welcome, expects, relays=relays)


def client(halves: Mapping[str, base.Client]) -> base.Client:
    """Train the four, and choose."""

    def start(initial: base.Initial, roster: base.Roster, ids: tuple[int, ...], seed: int) -> Four:
        return all_four(lambda name: halves[name].start(initial, roster, ids, seed))

    def rounds(acts: Mapping[str, Act], *about: Any) -> base.Trained[Four]:
        state, received, training, round_ = about
        watched, training.watched = training.watched, frozenset({"trained"})
        states, sent, models = {}, {}, {}
        info: dict[str, Tensor] = {}
        for name, act in acts.items():
            training.observed = {}
            own = getattr(state, name), part(received, name)
            states[name], sent[name], told = act(*own, training, round_)
            (models[name],) = training.observed.values()
            info |= told
        training.observed, training.watched = {}, watched
        losses = torch.stack([on_validation(training, W) for W in models.values()], 1)
        each = torch.stack([*models.values()], 1)
        chosen = each[torch.arange(len(each)), base.least(losses)]
        training.observe("personal", chosen, "trained")
        for name, W in models.items():
            training.observe(name, W, "trained")
        return Four(**states), entries(sent), {**info, "losses": losses}

    trains = {name: half.train for name, half in halves.items()}
    adapts = {name: half.adapt or half.train for name, half in halves.items()}
    private = ("alone", *(name for half in halves.values() for name in half.private))
    return base.Client(
        start, partial(rounds, trains), private=private, adapt=partial(rounds, adapts)
    )


def on_validation(training: base.LocalTraining, W: Tensor) -> Tensor:
    """Return mean losses (n,) of rows W (n, d) on each client's validation samples.

    Through ``batchwise``, as a metric: the choice decides nothing that is sent, so privacy asks for
    ``metrics``, not ``validation-losses``.
    """
    own = training.objective

    def each(outputs: Tensor, targets: Tensor) -> tuple[Tensor]:
        return (own.criterion(outputs, targets),)

    found = [
        own.batchwise(w, i, "validation", each) for w, i in zip(W, training.clients, strict=True)
    ]
    return torch.stack([losses[0].mean() for losses in found])


QUANTITIES = (
    base.Quantity(
        "losses",
        "values",
        "What each client chooses by",
        "loss on validation samples",
        "the mean loss on validation samples of the models trained alone, averaged, with shared "
        "layers, and mixed, in this order; a client takes the least.",
        entries="model",
    ),
    *FOUR["mixed"].method().card.presentation.quantities,
)

CARD = base.Card(
    presentation=base.Presentation("auto", QUANTITIES),
    paper="a choice of this package",
    summary="each client takes the best on its validation samples of training alone, FedAvg, "
    "FedRep and APPLE's local step",
    exchange=base.Exchange(
        down="N + 1",
        up="3, nearly",
        private="its choice, what it has trained alone, and what FedRep and APPLE keep",
        keeps="what the four keep",
        tells={
            "average_model": "its model of FedAvg",
            "shared_model": "its lower layers of FedRep",
            "mixed_core": "its core of APPLE",
        },
    ),
    headline=("personal", "trained"),
    models=tuple(FOUR),
    joining="newcomers and unseen clients start all four from the initial model",
    privacy=base.PrivacyCost(gradients=()),
    needs=base.Needs(cohort="any cohort, a validation split", validation=True),
)
