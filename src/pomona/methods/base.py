"""The structure of a method: server half, client half and card. No base classes.

A method is two halves of pure functions. The server half turns its state into downlinks and uplinks
into its next state; the client half turns its state and a downlink into its next state and an
uplink. Both are written for rows: a leading axis of clients, of length one in a silo.

What most methods need is available here: ``from pomona.methods import base``.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from numpy.typing import NDArray
from pydantic import field_validator

from pomona.core.errors import ConfigError
from pomona.core.lazy_torch import Tensor, torch
from pomona.core.round import Ids, Roster, Round
from pomona.core.settings import Settings
from pomona.methods.card import Card, Exchange, Needs, PrivacyCost, reads_outputs
from pomona.methods.local_sgd import Cached, Loss, sgd
from pomona.methods.row_algebra import (
    Copies,
    Rows,
    floored,
    largest,
    members_mean,
    replace_rows,
    weighted_mean,
)
from pomona.models.parameter_space import Head, ParameterSlice, ParameterSpace
from pomona.objective.objective import Pull, RowCriterion
from pomona.objective.optimizer_step import optimizer_state, optimizer_step
from pomona.objective.training import LocalTraining
from pomona.partition.partition import Partition
from pomona.privacy.accounting import Gradients
from pomona.privacy.settings import RELEASES, Release
from pomona.record.presentation import Presentation, Quantity
from pomona.storage.mapped_tensor import chunked, filed

__all__ = [
    "RELEASES",
    "Cached",
    "Card",
    "Client",
    "Copies",
    "Downlink",
    "Exchange",
    "Gradients",
    "Head",
    "Ids",
    "Initial",
    "LocalTraining",
    "Loss",
    "Method",
    "MethodSettings",
    "Needs",
    "ParameterSlice",
    "Presentation",
    "PrivacyCost",
    "Pull",
    "Quantity",
    "Received",
    "Release",
    "Roster",
    "Round",
    "RowCriterion",
    "Rows",
    "Server",
    "Trained",
    "Uplink",
    "add_from_initial",
    "add_from_model",
    "chunked",
    "constant_server",
    "floored",
    "largest",
    "linear_head",
    "members_mean",
    "model_state",
    "optimizer_state",
    "optimizer_step",
    "reads_outputs",
    "replace_rows",
    "sgd",
    "stateless",
    "weighted_mean",
]


Downlink = Mapping[str, Rows]
# name -> rows (n, d) for an index (n,), a Rows or Copies for an index (n, M)
Received = Mapping[str, Any]
Uplink = dict[str, Tensor]  # name -> (n, ...)
Info = dict[str, Tensor]  # for the record: name -> (n, ...)
State = TypeVar("State")
Trained = tuple[State, Uplink, Info]  # the result of a client half's train


@dataclass(frozen=True)
class Initial:
    """Initial models from the run's seed, the same for every caller.

    ``initial()`` is the common one, ``initial(i)`` client i's own. ``layers`` are the slices of a
    row that hold one layer each, from input to output; ``norms`` those of the tensors of
    normalisation layers, in the order of the row; ``statistics`` (b,) are BatchNorm statistics sent
    with a global model, empty if there are none, and ``variances`` the slices of these that are
    variances. ``head`` is the last layer if it is linear, with a bias, and trained; ``parameters``
    are the slices of all tensors in a row, with their names.
    """

    make: Callable[[int | None], Tensor]
    layers: tuple[slice, ...]
    norms: tuple[slice, ...] = ()
    statistics: Tensor = field(default_factory=lambda: torch.empty(0))
    variances: tuple[slice, ...] = ()
    head: Head | None = None
    parameters: tuple[ParameterSlice, ...] = ()

    @classmethod
    def from_space(
        cls, space: ParameterSpace, make: Callable[[int | None], Tensor], statistics: Tensor
    ) -> "Initial":
        """Return initial models whose rows ``make`` gives, laid out as a space lays them out."""
        layout = space.variances, space.head, space.parameters
        return cls(make, space.layers, space.norms, statistics, *layout)

    def __call__(self, client: int | None = None) -> Tensor:
        """Return the common initial row (d,), or a client's own if given."""
        return self.make(client)

    def instead(self, row: Tensor | None) -> "Initial":
        """Return initial models with a given common row (d,), or unchanged if None."""
        return self if row is None else replace(self, make=lambda _: row.clone())

    def in_files(self, folder: Path) -> "Initial":
        """Return the same rows, each in a scratch file in a folder; results by columns are then
        there too.
        """
        return replace(self, make=lambda client: filed(self.make(client), folder))


def stateless(*_: Any) -> None:
    """Return None: the ``start`` of a half without state."""


def _return_none(*_: Any) -> None:
    """Return None: no note, no warning, nothing invalid."""


def model_state(initial: Initial, roster: Roster, ids: Ids, seed: int) -> Tensor:
    """Return the ``start`` of a client half whose state is its own model: (n, d), initially the
    common one.
    """
    return initial().repeat(len(ids), 1)


def add_from_initial(state: State, ids: Ids, roster: Roster) -> tuple[State, None]:
    """Return the state as it is: the ``add_clients`` of a server half whose newcomers start from
    the run's initial model.
    """
    return state, None


def add_from_model(state: Any, ids: Ids, roster: Roster) -> tuple[Any, Tensor]:
    """Return the state as it is, and its ``model`` (d,): the ``add_clients`` of a server half whose
    newcomers start from the global model.
    """
    return state, state.model


def argmin_loss(losses: Tensor) -> Tensor:
    """Return the index (n,) of the smallest loss in each row (n, M); NaN, the loss of a model
    whose outputs overflow, is chosen only if all are.
    """
    largest = torch.finfo(losses.dtype).max
    return losses.nan_to_num(nan=torch.inf, posinf=largest).argmin(1)


def linear_head(row: Initial | LocalTraining) -> Head:
    """Return the last layer of rows as weight and bias.

    Raises ConfigError if it is not linear, with a bias, and trained.
    """
    if row.head is None:
        raise ConfigError(
            "the method needs a last layer that is linear, has a bias and is trained; use a "
            "network that ends with nn.Linear, and train it"
        )
    return row.head


@dataclass(frozen=True)
class Server:
    """The server half.

    Attributes:
        start: (initial, roster, seed) -> state, which is None, a tensor or a dataclass of such, all
            without gradients.
        downlink: (state, ids, roster, round) -> downlink, receivers in the order of ids; entries,
            their dtypes and widths are those of the first round.
        aggregate: (state, uplink, ids, roster, round) -> state, the uplink's leading axis being
            ids, ascending.
        add_clients: (state, ids, roster) -> state, row: clients join a federation of the members on
            the roster; the state has rows for them, and ``row`` (d,) is the model they start from,
            None for the run's initial one.
        uplink_form: (state) -> examples of one client's uplink, by name: only uplinks with exactly
            these shapes and dtypes are accepted.
        separable: aggregate changes only what belongs to ids, so a copy of the state can serve a
            client whose results are not used by others.
        relays: entries of the downlink whose rows are clients' uplinks, passed on unchanged, with
            the uplink's name.
        global_model: all clients build the same whole model from what they receive, and observe it
            as "global".
        averages: the state is just the model or part of one (k,) that is sent, and becomes a mean
            of the uplinks; a server optimizer may then step towards that mean instead (``fedopt``).
        sums: all clients receive the same, and ``aggregate`` uses their uplinks, of floats, only in
            their mean by ``roster.weights(ids)``: secure aggregation can hide the single ones.
        deals: which of the server's models a client receives is drawn anew each round.
        mirrors: what the state adds up of every client's uplinks as the client's own state does, if
            anything: a client that loses rounds can no longer agree with it.
        closing: (state, roster, round) -> a closing note on the run from its last state and round,
            if any.
        invalid: (uplink) -> a phrase on why a client's valid and finite uplink cannot be used, if
            so.
        capped_clients: (state, uplink, ids, roster, round) -> the reason, as a phrase, for each
            client whose weight ``aggregate`` limits.
    """

    start: Callable[[Initial, Roster, int], Any]
    downlink: Callable[[Any, Ids, Roster, Round], Downlink]
    aggregate: Callable[[Any, Uplink, Ids, Roster, Round], Any]
    add_clients: Callable[[Any, Ids, Roster], tuple[Any, Tensor | None]]
    uplink_form: Callable[[Any], Uplink]
    separable: bool = False
    relays: Mapping[str, str] = field(default_factory=dict)
    global_model: bool = False
    averages: bool = False
    sums: bool = False
    deals: bool = False
    mirrors: str = ""
    closing: Callable[[Any, Roster, Round], str | None] = _return_none
    invalid: Callable[[Uplink], str | None] = _return_none
    capped_clients: Callable[[Any, Uplink, Ids, Roster, Round], Mapping[int, str]] = lambda *_: {}


@dataclass(frozen=True)
class Client:
    """The client half.

    Attributes:
        start: (initial, roster, ids, seed) -> state: a record of tensors (n, ...), or None for a
            client without state.
        train: (state, received, training, round) -> state, uplink, info. The given state may be
            changed. Uplink and info are tensors (n, ...) by name; info is for a simulation's
            record, in a deployment it stays with the client.
        private: the tensors of the state that never leave the client and that the record stores
            separately; a state that is one tensor is called "state".
        adapt: train for a client whose results are not used by others, if it differs.
        keeps: entries of the downlink, with an index (n, M), of which a client keeps the last row
            from every client: they are received as ``Copies``, with 0 for clients that are not
            members. keeps[name](initial, roster) -> Rows with an index (N,): the initial rows; of
            no clients if such an entry is not kept after all.
        constant: whether the state never changes after the start.
        reads_alike: whether clients read all received models in each step, and receive the same
            ones.
        rate: the settings of rates, besides lr, that may be too large if a client's training
            diverges, in words.
        sends_step: a round of one step of SGD sends the received model after that step, and nothing
            else: w less lr times one gradient at w, and what w alone determines.
    """

    start: Callable[[Initial, Roster, Ids, int], Any]
    train: Callable[[Any, Received, LocalTraining, Round], Trained[Any]]
    private: tuple[str, ...] = ()
    adapt: Callable[[Any, Received, LocalTraining, Round], Trained[Any]] | None = None
    keeps: Mapping[str, Callable[[Initial, Roster], Rows]] = field(default_factory=dict)
    constant: bool = False
    reads_alike: bool = False
    rate: str | None = None
    sends_step: bool = False


@dataclass(frozen=True)
class Method:
    """A method with its settings: two halves and a card.

    caution(round, members) -> a warning before a run with such a round and number of clients, if
    any; share(partition, labels, seed) -> the partition in which clients also have samples of
    others, for methods that share samples; ``labels`` are class numbers of all rows.
    """

    server: Server
    client: Client
    card: Card
    caution: Callable[[Round, int], str | None] = _return_none
    share: Callable[[Partition, NDArray[Any], int], Partition] | None = None

    @property
    def lasting(self) -> bool:
        """Return whether rounds of a client whose results are not used build on each other."""
        return self.server.separable or not (self.client.constant or self.client.start is stateless)


class MethodSettings(Settings, ABC):
    """The settings of a method; a subclass adds its own fields, and builds the method from them.

    ``name`` is the name for users: one of ``METHODS``; for a class outside the package
    ``module:Class``, derived from its location.
    """

    name: str = ""

    @field_validator("name")
    @classmethod
    def _address(cls, name: str) -> str:
        return name or f"{cls.__module__}:{cls.__qualname__}"

    @abstractmethod
    def method(self) -> Method:
        """Return the two halves and the card."""


def constant_server() -> Server:
    """Return the server half of methods without one: nothing is sent."""
    return Server(
        stateless,
        downlink=lambda *_: {},
        aggregate=stateless,
        add_clients=add_from_initial,
        uplink_form=lambda _: {},
    )
