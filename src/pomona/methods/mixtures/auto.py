"""auto: four methods side by side, of which each client takes the best on its validation samples.

A choice of this package, not of a paper, for those who do not want to search for a method.

    alone            Separate's w_i
    average          FedAvg's w_i: the received model, fine-tuned on the client's samples
    shared           FedRep's (phi_i, h_i): lower layers of all, a head of its own
    mixed            APPLE's m_i, with its local step: a mixture of all clients' progress
    choice           the model, right after training, with the least mean loss on client i's validation samples

The four see the same batches, do not know of each other, and have no settings: each is what it is
as a run of its own, to the bit. The choice is made in every round; it stays with the client, and
nothing that is sent depends on it. Test samples choose nothing, so the score of ``personal`` on
them is honest. Its validation score is the best of four on the same samples, so it is too high,
most where they are few.

A round costs what the four cost together: four to five times FedAvg's training, the models of all
others and two more down, and nearly three up. Under privacy their gradients on one batch count as
four.

Named models: ``personal`` is the chosen one; ``alone``, ``average``, ``shared`` and ``mixed`` are
evaluated as well. Newcomers start all four from the initial model.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, TypeVar

from pomona.core.lazy_torch import Tensor, torch
from pomona.methods import base
from pomona.methods.mixtures.apple import APPLE
from pomona.methods.one_model.fedavg import FedAvgLocal
from pomona.methods.personal_regularisation.separate import Separate
from pomona.methods.shared_parts.fedrep import FedRep

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
        reveals = {
            f"mixed_{entry}": phrase
            for entry, phrase in methods["mixed"].card.exchange.reveals.items()
        }
        exchange = replace(
            CARD.exchange,
            reveals={**CARD.exchange.reveals, **reveals},
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


def flatten(nested: Mapping[str, Mapping[str, T]]) -> dict[str, T]:
    """Return the entries of the four under one name each."""
    return {f"{name}_{entry}": row for name, rows in nested.items() for entry, row in rows.items()}


def method_entries(entries: Mapping[str, T], name: str) -> dict[str, T]:
    """Return the entries of one of the four under their own names."""
    prefix = f"{name}_"
    return {
        entry.removeprefix(prefix): row
        for entry, row in entries.items()
        if entry.startswith(prefix)
    }


def all_four(make: Callable[[str], Any]) -> Four:
    """Return a state of what a function makes of each name."""
    return Four(**{name: make(name) for name in FOUR})


def server(servers: Mapping[str, base.Server]) -> base.Server:
    """Run the four servers; training alone has none, and in its place the initial model is kept."""

    def start(initial: base.Initial, roster: base.Roster, seed: int) -> Four:
        states = all_four(lambda name: servers[name].start(initial, roster, seed))
        return replace(states, alone=initial())

    def downlink(
        state: Four, ids: base.Ids, roster: base.Roster, round_: base.Round
    ) -> base.Downlink:
        return flatten(
            {
                name: inner.downlink(getattr(state, name), ids, roster, round_)
                for name, inner in servers.items()
            }
        )

    def aggregate(
        state: Four, uplink: base.Uplink, ids: base.Ids, roster: base.Roster, round_: base.Round
    ) -> Four:
        states = all_four(
            lambda name: servers[name].aggregate(
                getattr(state, name), method_entries(uplink, name), ids, roster, round_
            )
        )
        return replace(states, alone=state.alone)

    def add_clients(state: Four, ids: base.Ids, roster: base.Roster) -> tuple[Four, None]:
        states = all_four(
            lambda name: servers[name].add_clients(getattr(state, name), ids, roster)[0]
        )
        # where APPLE's own newcomers start from the mean, whose core the others would get
        cores = base.replace_rows(states.mixed.cores, ids, state.alone)
        return replace(states, mixed=replace(states.mixed, cores=cores)), None

    def uplink_form(state: Four) -> base.Uplink:
        return flatten(
            {name: inner.uplink_form(getattr(state, name)) for name, inner in servers.items()}
        )

    relays = {"mixed_cores": "mixed_core"}
    return base.Server(start, downlink, aggregate, add_clients, uplink_form, relays=relays)


def client(halves: Mapping[str, base.Client]) -> base.Client:
    """Train the four, and choose."""

    def start(initial: base.Initial, roster: base.Roster, ids: base.Ids, seed: int) -> Four:
        return all_four(lambda name: halves[name].start(initial, roster, ids, seed))

    def rounds(acts: Mapping[str, Act], *arguments: Any) -> base.Trained[Four]:
        state, received, training, round_ = arguments
        watched, training.watched = training.watched, frozenset({"trained"})
        states, uplinks, models = {}, {}, {}
        info: dict[str, Tensor] = {}
        for name, act in acts.items():
            training.observed = {}
            inputs = getattr(state, name), method_entries(received, name)
            states[name], uplinks[name], method_info = act(*inputs, training, round_)
            (models[name],) = training.observed.values()
            info |= method_info
        training.observed, training.watched = {}, watched
        losses = torch.stack([on_validation(training, W) for W in models.values()], 1)
        stacked = torch.stack([*models.values()], 1)
        chosen = stacked[torch.arange(len(stacked)), base.argmin_loss(losses)]
        training.observe("personal", chosen, "trained")
        for name, W in models.items():
            training.observe(name, W, "trained")
        return Four(**states), flatten(uplinks), {**info, "losses": losses}

    trains = {name: inner.train for name, inner in halves.items()}
    adapts = {name: inner.adapt or inner.train for name, inner in halves.items()}
    private = ("alone", *(name for inner in halves.values() for name in inner.private))
    return base.Client(
        start, partial(rounds, trains), private=private, adapt=partial(rounds, adapts)
    )


def on_validation(training: base.LocalTraining, W: Tensor) -> Tensor:
    """Return mean losses (n,) of rows W (n, d) on each client's validation samples.

    Through ``batchwise``, as a metric: the choice decides nothing that is sent, so privacy asks for
    ``metrics``, not ``validation-losses``.
    """
    objective = training.objective

    def batch_losses(outputs: Tensor, targets: Tensor) -> tuple[Tensor]:
        return (objective.criterion(outputs, targets),)

    per_client = [
        objective.batchwise(w, i, "validation", batch_losses)
        for w, i in zip(W, training.clients, strict=True)
    ]
    return torch.stack([losses[0].mean() for losses in per_client])


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
        up="nearly 3",
        private="its choice, what it has trained alone, and what FedRep and APPLE keep",
        keeps="what the four keep",
        reveals={
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
