"""The structure of a method: server half, client half and card. No base classes.

A method is two halves of pure functions. The server half turns its state into downlinks and uplinks into its next
state; the client half turns its state and a downlink into its next state and an uplink. Both are written for rows: a
leading axis of clients, of length one in a silo.

Everything that a method needs is available here: ``from pomona.methods import base``.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from numpy.typing import NDArray
from pydantic import field_validator
from torch import Tensor

from pomona.core.optimizer import Optimizer, Steps
from pomona.core.round import Roster, Round
from pomona.core.settings import Settings
from pomona.core.weight_limit import SLACK, reweighted
from pomona.methods.row_algebra import (
    Copies,
    Rows,
    alike,
    cosines,
    head,
    insert,
    mean_of,
    mean_of_some,
    over_moments,
    placed,
    sgd,
    sgd_on,
    upper,
    weighted_mean,
    within,
    without,
)
from pomona.objective.objective import ConstantFeatures, Pull
from pomona.objective.optimizer_step import descend, moments_of
from pomona.objective.training import LocalTraining, When
from pomona.partition.partition import Partition
from pomona.privacy.epsilon_projection import Gradients
from pomona.privacy.releases import RELEASES, Release
from pomona.record.presentation import Presentation, Quantity
from pomona.storage.mapped_tensor import by_columns, filed, norms_by_columns, sum_by_columns

__all__ = [
    "RELEASES",
    "Card",
    "Client",
    "ConstantFeatures",
    "Copies",
    "Downlink",
    "Gradients",
    "Info",
    "Initial",
    "LocalTraining",
    "Method",
    "MethodSettings",
    "Optimizer",
    "Presentation",
    "Pull",
    "Quantity",
    "Received",
    "Release",
    "Roster",
    "Round",
    "Rows",
    "Server",
    "Trained",
    "Uplink",
    "alike",
    "averaging",
    "by_columns",
    "cosines",
    "descend",
    "forgetful",
    "head",
    "insert",
    "mean_of",
    "mean_of_some",
    "moments_of",
    "norms_by_columns",
    "nothing",
    "over_moments",
    "own_model",
    "placed",
    "reweighting",
    "sgd",
    "sgd_on",
    "silent",
    "sum_by_columns",
    "upper",
    "weighted_mean",
    "within",
    "without",
]


Downlink = Mapping[str, Rows]
Received = Mapping[str, Any]  # name -> rows (n, d) for an index (n,), a Rows or Copies for an index (n, M)
Uplink = dict[str, Tensor]  # name -> (n, ...)
Info = dict[str, Tensor]  # for the record: name -> (n, ...)
State = TypeVar("State")
Trained = tuple[State, Uplink, Info]  # the result of a client half's train


@dataclass(frozen=True)
class Initial:
    """Initial models from the run's seed, the same for every caller.

    ``initial()`` is the common one, ``initial(i)`` client i's own. ``layers`` are the slices of a row that hold one
    layer each, from input to output; ``norms`` those of the tensors of normalisation layers, in the order of the row;
    ``statistics`` (b,) are BatchNorm statistics sent with a global model, empty if there are none, and ``variances``
    the slices of these that are variances.
    """

    make: Callable[[int | None], Tensor]
    layers: tuple[slice, ...]
    norms: tuple[slice, ...] = ()
    statistics: Tensor = field(default_factory=lambda: torch.empty(0))
    variances: tuple[slice, ...] = ()

    def __call__(self, client: int | None = None) -> Tensor:
        """Return the common initial row (d,), or a client's own if given."""
        return self.make(client)

    def instead(self, row: Tensor | None) -> "Initial":
        """Return initial models with a given common row (d,), or unchanged if None."""
        return self if row is None else replace(self, make=lambda _: row.clone())

    def in_files(self, folder: Path) -> "Initial":
        """Return the same rows, each in a scratch file in a folder; results by columns are then there too."""
        return replace(self, make=lambda client: filed(self.make(client), folder))


def nothing(*_: Any) -> None:
    """Return None: the state of a half without one, and the note or warning of a method without one."""


def own_model(initial: Initial, roster: Roster, ids: tuple[int, ...], seed: int) -> Tensor:
    """Return the ``start`` of a client half whose state is its own model: (n, d), initially the common one."""
    return initial().repeat(len(ids), 1)


@dataclass(frozen=True)
class Server:
    """The server half.

    start(initial, roster, seed) -> state;
    down(state, ids, roster, round) -> downlink, receivers in the order of ids; entries, their dtypes and widths are
    those of the first round;
    aggregate(state, uplink, ids, roster, round) -> state, the uplink's leading axis being ids, ascending.
    welcome(state, ids, roster) -> state, row: clients join a federation of the members on the roster; the state has
    places for them, and ``row`` (d,) is the model they start from, None for the run's initial one.
    expects(state) -> examples of one client's uplink, by name: only uplinks with exactly these shapes and dtypes are
    accepted.
    flaw(uplink) -> a phrase on why a client's valid and finite uplink cannot be used, if so.
    limited(state, uplink, ids, roster, round) -> for each client whose weight ``aggregate`` limits, the reason, as a
    phrase.
    ``separable``: aggregate changes only what belongs to ids, so a copy of the state can serve a client whose results
    are not used by others.
    ``relays``: entries of the downlink whose rows are clients' uplinks, passed on unchanged, with the uplink's name.
    closing(state, roster, round) -> a closing note on the run from its last state and round, if any.
    ``global_model``: all clients build the same whole model from what they receive, and observe it as "global".
    ``averages``: the state is just the model or part of one (k,) that is sent, and becomes a mean of the uplinks; a
    server optimizer may then step towards that mean instead (``fedopt``).
    """

    start: Callable[[Initial, Roster, int], Any]
    down: Callable[[Any, tuple[int, ...], Roster, Round], Downlink]
    aggregate: Callable[[Any, Uplink, tuple[int, ...], Roster, Round], Any]
    welcome: Callable[[Any, tuple[int, ...], Roster], tuple[Any, Tensor | None]]
    expects: Callable[[Any], Uplink]
    separable: bool = False
    relays: Mapping[str, str] = field(default_factory=dict)
    global_model: bool = False
    averages: bool = False
    closing: Callable[[Any, Roster, Round], str | None] = nothing
    flaw: Callable[[Uplink], str | None] = nothing
    limited: Callable[[Any, Uplink, tuple[int, ...], Roster, Round], Mapping[int, str]] = lambda *_: {}


@dataclass(frozen=True)
class Client:
    """The client half.

    start(initial, roster, ids, seed) -> state: a record of tensors (n, ...), or None for a client without state;
    train(state, received, training, round) -> state, uplink, info. The given state may be changed.
    ``adapt``: train for a client whose results are not used by others, if it differs. ``private`` names the tensors of
    the state that never leave the client and that the record stores separately; a state that is one tensor is called
    "state". Info is for a simulation's record; in a deployment it stays with the client.
    ``keeps``: entries of the downlink, with an index (n, M), of which a client keeps the last row from every client:
    they are received as ``Copies``, with 0 for clients that are not members. keeps[name](initial, roster) -> Rows with
    an index (N,): the initial rows; of no clients if such an entry is not kept after all.
    ``constant``: whether the state never changes after the start.
    ``reads_alike``: whether clients read all received models in each step, and receive the same ones.
    ``rate``: the setting of a rate, besides lr, that may be too large if a client's training diverges.
    """

    start: Callable[[Initial, Roster, tuple[int, ...], int], Any]
    train: Callable[[Any, Received, LocalTraining, Round], Trained[Any]]
    private: tuple[str, ...] = ()
    adapt: Callable[[Any, Received, LocalTraining, Round], Trained[Any]] | None = None
    keeps: Mapping[str, Callable[[Initial, Roster], Rows]] = field(default_factory=dict)
    constant: bool = False
    reads_alike: bool = False
    rate: str | None = None


@dataclass(frozen=True)
class Card:
    """The method's card, like a model card: all that the rest of the package knows about it.

    Attributes:
        presentation: title, colour, and the names for ``info``; stored in records.
        paper: the source, with its equations.
        summary: the method in one line.
        down, up: models per client and round.
        down_models: maximum models that a client receives in a round, as a function of the number of clients; None if
            ``down`` is a number, or a share of one model.
        private: data that stays with the client.
        headline: the (model, when) that its paper reports.
        keeps: a client's history, i.e. its state from round to round.
        joining: the effect on the method's numbers of clients that join, leave, or never train.
        gradients: all gradients on training data, from which the cost of privacy is projected.
        releases: information sent besides the noised gradients, to be acknowledged in private training.
        not_private: the reason why it cannot train privately, with a remedy; None if it can.
        needs: requirements of a round besides any cohort's training data.
        validates: whether every client needs validation samples.
        needs_total: whether a round depends on the number of rounds, so that a run cannot be extended.
        steps: the local steps that the update rule supports.
        judges: models that its clients observe besides the headline one and personal, global and local.
        batchwise: whether its criteria on outputs use only the samples of the batch, so that these may be patches.
        without_norms: the equivalent method for a network without normalisation layers, if any.
        tells: a phrase on what the server learns about a client from each entry of its uplink that is not a model.
    """

    presentation: Presentation
    paper: str
    summary: str
    down: str
    up: str
    private: str
    headline: tuple[str, When]
    keeps: str
    joining: str
    gradients: tuple[Gradients, ...]
    releases: tuple[Release, ...] = ()
    not_private: str | None = None
    needs: str = "any cohort"
    validates: bool = False
    needs_total: bool = False
    steps: Steps = "any"
    judges: tuple[str, ...] = ()
    batchwise: bool = False
    without_norms: str | None = None
    tells: Mapping[str, str] = field(default_factory=dict)
    down_models: Callable[[int], int] | None = None


@dataclass(frozen=True)
class Method:
    """A method with its settings: two halves and a card.

    caution(round, members) -> a warning before a run with such a round and number of clients, if any;
    share(partition, labels, seed) -> the partition in which clients also have samples of others, for methods that share
    samples; ``labels`` are class numbers of all rows.
    """

    server: Server
    client: Client
    card: Card
    caution: Callable[[Round, int], str | None] = nothing
    share: Callable[[Partition, NDArray[Any], int], Partition] | None = None

    @property
    def lasting(self) -> bool:
        """Return whether rounds of a client whose results are not used build on each other."""
        return self.server.separable or not (self.client.constant or self.client.start is nothing)


class MethodSettings(Settings, ABC):
    """The settings of a method; a subclass adds its own fields, and builds the method from them.

    ``name`` is the name for users: one of ``METHODS``; for a class outside the package ``module:Class``, derived from
    its location.
    """

    name: str = ""

    @field_validator("name")
    @classmethod
    def _address(cls, name: str) -> str:
        return name or f"{cls.__module__}:{cls.__qualname__}"

    @abstractmethod
    def method(self) -> Method:
        """Return the two halves and the card."""


def averaging(part: Callable[[Initial], Tensor] | None = None) -> Server:
    """Return FedAvg's server (McMahan et al. 2017): one common model w, w <- sum_i n_i / n w_i over the cohort.

    ``part`` takes the averaged part (k,) from the initial model, if clients keep the rest; joining clients then start
    from the run's initial model.
    """

    def start(initial: Initial, roster: Roster, seed: int) -> Tensor:
        return part(initial) if part else initial()

    def down(w: Tensor, ids: tuple[int, ...], roster: Roster, round_: Round) -> Downlink:
        return {"model": Rows.same(w, len(ids))}

    def aggregate(w: Tensor, uplink: Uplink, ids: tuple[int, ...], roster: Roster, round_: Round) -> Tensor:
        return weighted_mean(uplink["model"], roster.weights(ids))

    def expects(w: Tensor) -> Uplink:
        return {"model": w}

    def welcome(w: Tensor, ids: tuple[int, ...], roster: Roster) -> tuple[Tensor, Tensor | None]:
        return w, None if part else w

    return Server(start, down, aggregate, welcome, expects, global_model=part is None, averages=True)


Ratios = Callable[[Tensor, Uplink, Tensor, Round], Tensor]
Bounds = Mapping[str, tuple[Tensor, Tensor]]


def reweighting(
    says: Mapping[str, float],
    ratios: Ratios,
    bounds: Callable[[tuple[int, ...], Roster, Round], Bounds] = lambda *_: {},
) -> Server:
    """Return FedAvg's server with further client weights: w <- w + sum_i c_i (w_i - w), c_i = p_i ratio_i.

    If shares are limited (``Roster.largest``), so are the c_i, and their sum is at most 1
    (``core.weight_limit.reweighted``). Clients that are limited, or whose number is outside its bounds, are named.

    ``says``: the numbers (1,) float64 that a client uploads with its model, with the lower bound of each.
    ratios(w, uplink, p, round) -> (n,), from the model sent (d,) and FedAvg's weights p (n,). If all ratios are 1 this
    is FedAvg, to the bit.
    bounds(ids, roster, round) -> by name the lower and upper bounds (n,) of a number, derived from what is known about
    the clients; a number outside is replaced by the nearest bound.
    """
    mean = averaging()

    def believed(uplink: Uplink, ids: tuple[int, ...], roster: Roster, round_: Round) -> Uplink:
        """Return the uplink with its numbers limited to their bounds."""
        within_bounds = {
            name: uplink[name].cpu().clamp(low.unsqueeze(1), high.unsqueeze(1))
            for name, (low, high) in bounds(ids, roster, round_).items()
        }
        return {**uplink, **within_bounds}

    def counted(w: Tensor, uplink: Uplink, p: Tensor, round_: Round) -> tuple[Tensor, Tensor]:
        """Return the ratios and the c_i of the method (n,), on the CPU."""
        ratio = ratios(w, uplink, p, round_).to(p)
        return ratio, p * ratio

    def limit(c: Tensor, p: Tensor, roster: Roster) -> Tensor:
        """Return the c_i (n,) after the limit."""
        return torch.tensor(reweighted(p.tolist(), c.tolist(), roster.largest), dtype=p.dtype)

    def aggregate(w: Tensor, uplink: Uplink, ids: tuple[int, ...], roster: Roster, round_: Round) -> Tensor:
        p, W = roster.weights(ids), uplink["model"]
        ratio, c = counted(w, believed(uplink, ids, roster, round_), p, round_)
        left = limit(c, p, roster)
        more = p * (ratio - 1) if torch.equal(left, c) else left - p
        return weighted_mean(W, p.to(w.device)) + by_columns(lambda rows, sent: more.to(rows) @ (rows - sent), W, w)

    def limited(w: Tensor, uplink: Uplink, ids: tuple[int, ...], roster: Roster, round_: Round) -> dict[int, str]:
        found, p = {}, roster.weights(ids)
        for name, (low, high) in bounds(ids, roster, round_).items():
            for i, said, least, most in zip(
                ids, uplink[name].squeeze(1).tolist(), low.tolist(), high.tolist(), strict=True
            ):
                if not least * (1 - SLACK) <= said <= most * (1 + SLACK):
                    found[i] = f"{name} {said:.4g}, and its samples make {least:.4g} to {most:.4g}; it counts by those"
        _, c = counted(w, believed(uplink, ids, roster, round_), p, round_)
        left = limit(c, p, roster)
        shares = (c / c.sum()).tolist(), (left / left.sum()).tolist()
        for k, (i, share, kept) in enumerate(zip(ids, *shares, strict=True)):
            if i not in found and kept < share * (1 - SLACK):
                numbers = ", ".join(f"{name} {float(uplink[name][k]):.4g}" for name in says)
                found[i] = (
                    f"{numbers}, by which it has {100 * share:.3g} % of the mean; it counts for {100 * kept:.3g} %"
                )
        return found

    def expects(w: Tensor) -> Uplink:
        return {"model": w, **{name: torch.zeros(1, dtype=torch.float64) for name in says}}

    def flaw(uplink: Uplink) -> str | None:
        low = [(name, float(uplink[name]), least) for name, least in says.items() if float(uplink[name]) < least]
        return f"tensor '{low[0][0]}' holds {low[0][1]:.3g}, where at least {low[0][2]:g} is possible" if low else None

    return replace(mean, aggregate=aggregate, expects=expects, flaw=flaw, limited=limited)


def silent() -> Server:
    """Return the server of methods without one."""
    return Server(nothing, lambda *_: {}, nothing, welcome=lambda *_: (None, None), expects=lambda _: {})


def forgetful(name: str, weight: float, round_: Round) -> str | None:
    """Warn if a method's pull on personal models, ``method.lambda``, is not small against a step."""
    if round_.lr * weight < 1:
        return None
    return (
        f"{name}: lr x lambda = {round_.lr * weight:.3g}; from 1 on every step forgets the personal model; "
        f"set method.lambda well below {1 / round_.lr:.3g}, or a smaller lr"
    )
