"""CFL: FedAvg that splits a cluster in two once its members' updates stay large but cancel out.

Sattler, Mueller, Samek. Clustered federated learning: model-agnostic distributed multitask
optimization under privacy constraints. IEEE TNNLS 2021 (arXiv 1910.01991).

    objective        one model theta_c per cluster c:  min sum_{i in c} F_i(theta_c), and the clusters themselves
    client           dW_i = SGD(theta_c; E epochs on D_i) - theta_c
    split            ||mean_i dW_i|| < e1 and max_i ||dW_i|| > e2 over the members of c: into the halves whose most
                     similar pair across, a = max cos(dW_i, dW_j), is least similar; if sqrt((1 - a)
                     / 2) > gamma
    server           theta_c <- theta_c + mean_{i in c} dW_i, unweighted, over the new clusters

The halves are the exact optimum (cutting the weakest edge of a maximum spanning tree: single
linkage). gamma bounds the part of an update that is noise; two clients of one distribution are then
more similar than 1 - 2 gamma^2, so that no such pair is taken apart. Early updates tell groups
apart best: late in training they are mostly noise.

Units of e1 and e2: update norms scale with the network and its step sizes, so ``eps_mean`` and
``eps_max`` are multiples of the mean update norm of the first round (``units="first-round"``).
``units="absolute"`` takes them as they are, as the published 0.4 and 1.6. The defaults are ours,
chosen on small networks: conflicting groups keep the largest update above that unit while their
mean falls below half of it; clients of one distribution lower both. The norms are in info: of a
client's own update, and of its cluster's mean and largest update in the round before (0 in round
1).

Splits wait for ``warmup_rounds``, and for clusters of more than two (20 and 2 in the authors'
notebook).

Partial participation: the mean of a cluster runs over those present, and a cluster with none keeps
its model. Updates from different rounds do not compare, so a cluster splits only in a round in
which all its members take part.

Differs from published code: that takes complete linkage, which is not the paper's optimum, and has
no gamma; it lowers its rate by 1 % a round and holds out a fifth of the data. Momentum starts at
zero in each round; models are evaluated in evaluation mode.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from pomona.core.lazy_torch import Tensor, torch
from pomona.methods import base
from pomona.methods.row_algebra import cosine_similarity
from pomona.storage.mapped_tensor import Chunked

UNASSIGNED = -1  # the cluster of clients that are not members
SMALLEST = 3
"""Minimum number of members for a split."""


class CFL(base.MethodSettings):
    """CFL's settings; symbols of the paper in brackets.

    Attributes:
        eps_mean: split while the mean update is shorter than this (epsilon_1)
        eps_max: split while the longest update exceeds this (epsilon_2)
        units: of both thresholds: mean update norm of the first round, or none
        gamma_max: largest share of noise in an update (gamma_max); 0 splits whatever the halves
        warmup_rounds: rounds before the first split
    """

    name: Literal["cfl"] = "cfl"
    eps_mean: float = Field(0.5, ge=0)
    eps_max: float = Field(1.0, ge=0)
    units: Literal["first-round", "absolute"] = "first-round"
    gamma_max: float = Field(0.69, ge=0, le=1)
    warmup_rounds: int = Field(5, ge=0, le=10**6)

    def method(self) -> base.Method:
        """Return the method: both halves and its card."""
        return base.Method(server(self), base.Client(base.stateless, train), CARD)


@dataclass(frozen=True)
class Clusters:
    """One model per cluster (V, d); each client's cluster (N,); and norms of each cluster's last
    round.

    ``norms`` (V, 2) float64 has the norm of the mean update and the largest norm; ``unit`` () is
    that of the thresholds, 0 before the first round.
    """

    models: Tensor
    labels: Tensor
    norms: Tensor
    unit: Tensor


def server(settings: CFL) -> base.Server:
    """Keep the clusters' models, average within clusters, and split them."""

    def start(initial: base.Initial, roster: base.Roster, seed: int) -> Clusters:
        labels = torch.where(roster.member_mask, 0, UNASSIGNED)
        norms, unit = torch.zeros(1, 2, dtype=torch.float64), torch.zeros((), dtype=torch.float64)
        return Clusters(initial().unsqueeze(0), labels, norms, unit)

    def downlink(
        state: Clusters, ids: base.Ids, roster: base.Roster, round_: base.Round
    ) -> base.Downlink:
        clusters = state.labels[list(ids)]
        names = torch.arange(len(state.models)).unsqueeze(1)
        return {
            "model": base.Rows(state.models, clusters),
            "cluster": base.Rows(names, clusters),
            "norms": base.Rows(state.norms, clusters),
        }

    def aggregate(
        state: Clusters, uplink: base.Uplink, ids: base.Ids, roster: base.Roster, round_: base.Round
    ) -> Clusters:
        index = torch.tensor(ids)
        state = replace(state, labels=state.labels.masked_fill(~roster.member_mask, UNASSIGNED))
        updates = Updates.from_models(uplink["model"], state.models, state.labels[index])
        if not state.unit:
            state = replace(state, unit=unit(settings, updates))
        for cluster in state.labels[index].unique().tolist():
            state = with_norms(state, cluster, updates)
            complete = bool(torch.isin((state.labels == cluster).nonzero(), index).all())
            is_warm = round_.number > settings.warmup_rounds
            if is_warm and complete and should_split(settings, state, cluster):
                state = split(settings, state, cluster, updates)
        return averaged(state, uplink["model"], index)

    def add_clients(state: Clusters, ids: base.Ids, roster: base.Roster) -> tuple[Clusters, Tensor]:
        sizes = torch.tensor(roster.sizes)
        largest = max(range(len(state.models)), key=lambda v: int(sizes[state.labels == v].sum()))
        labels = state.labels.index_fill(0, torch.tensor(ids), largest)
        return replace(state, labels=labels), state.models[largest]

    def uplink_form(state: Clusters) -> base.Uplink:
        return {"model": state.models[0]}

    return base.Server(start, downlink, aggregate, add_clients, uplink_form, closing=never_split)


@dataclass(frozen=True)
class Updates:
    """A round's updates (n, d) in double precision, never all of them in memory; the cluster (n,)
    of each.
    """

    rows: Chunked
    labels: Tensor

    @classmethod
    def from_models(cls, W: Tensor, models: Tensor, labels: Tensor) -> "Updates":
        """Return the updates by which received rows W (n, d) differ from their clusters' models (V,
        d).
        """
        changes = base.chunked(W) - base.chunked(models)[labels]
        return cls(changes.apply(lambda change: change.double().cpu()), labels)

    def within(self, cluster: int) -> Chunked:
        """Return the updates (m, d) of a cluster's members."""
        return self.rows[self.labels == cluster]

    @cached_property
    def norms(self) -> Tensor:
        """The norm (n,) of each update."""
        return self.rows.norms()

    def mean_norm(self, cluster: int) -> Tensor:
        """Return the norm () of the mean update of a cluster."""
        return (
            self.within(cluster).apply(lambda rows: rows.mean(0, keepdim=True)).norms().squeeze(0)
        )


def unit(settings: CFL, updates: Updates) -> Tensor:
    """Return the unit of the thresholds: the mean norm () of the first updates, or 1."""
    if settings.units == "first-round":
        return updates.norms.mean()
    return torch.ones((), dtype=torch.float64)


def with_norms(state: Clusters, cluster: int, updates: Updates) -> Clusters:
    """Return the state with a cluster's norms of this round."""
    norms = torch.stack(
        [updates.mean_norm(cluster), updates.norms[updates.labels == cluster].max()]
    )
    return replace(
        state, norms=state.norms.index_copy(0, torch.tensor([cluster]), norms.unsqueeze(0))
    )


def should_split(settings: CFL, state: Clusters, cluster: int) -> bool:
    """Apply the paper's test: near a stationary point of the cluster, but not of its members."""
    mean, largest = state.norms[cluster] / state.unit.clamp_min(torch.finfo(torch.float64).tiny)
    size = int((state.labels == cluster).sum())
    return (
        size >= SMALLEST and float(mean) < settings.eps_mean and float(largest) > settings.eps_max
    )


def split(settings: CFL, state: Clusters, cluster: int, updates: Updates) -> Clusters:
    """Return the state with a cluster split; the half with the lowest id keeps its number, the
    other gets the next.

    Unchanged if the halves are too similar to be distinguished from noise.
    """
    similarity = cosine_similarity(updates.within(cluster)).numpy()
    new_half = bipartition(similarity)
    across = float(similarity[np.ix_(new_half, ~new_half)].max())
    if math.sqrt(max(1 - across, 0) / 2) <= settings.gamma_max:
        return state
    members = (state.labels == cluster).nonzero().squeeze(1)
    split_off = members[torch.from_numpy(new_half)]
    return Clusters(
        torch.cat([state.models, state.models[cluster : cluster + 1]]),
        state.labels.index_fill(0, split_off, len(state.models)),
        torch.cat([state.norms, state.norms[cluster : cluster + 1]]),
        state.unit,
    )


def bipartition(similarity: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return the mask (n,) of the half without the first client, from similarities (n, n).

    It minimises the largest similarity across the halves.
    """
    # imported late: a second in every silo process
    from sklearn.cluster import AgglomerativeClustering

    halves = AgglomerativeClustering(n_clusters=2, metric="precomputed", linkage="single")
    labels = halves.fit_predict(1 - similarity)
    return np.asarray(labels != labels[0])


def never_split(state: Clusters, roster: base.Roster, round_: base.Round) -> str | None:
    """Return a note for a run that never split and so was FedAvg with a uniform mean."""
    if len(state.models) > 1:
        return None
    mean, largest = state.norms[0] / state.unit.clamp_min(torch.finfo(torch.float64).tiny)
    return (
        "cfl never split its cluster: this was FedAvg with a uniform mean (last mean update "
        f"{mean:.2g}, largest {largest:.2g}, in the units of eps_mean and eps_max); there may be "
        "no groups, or other thresholds are needed"
    )


def averaged(state: Clusters, W: Tensor, index: Tensor) -> Clusters:
    """Return the state with each cluster's model set to the mean of its members' rows in W (n, d)
    of ``index``.
    """
    models, labels = state.models.clone(), state.labels[index]
    for cluster in labels.unique().tolist():
        members = labels == cluster
        p = torch.full((int(members.sum()),), 1 / int(members.sum()), dtype=torch.float64)
        models[cluster] = base.weighted_mean(base.chunked(W)[members], p)
    return replace(state, models=models)


def train(
    state: None, received: base.Received, training: base.LocalTraining, round_: base.Round
) -> base.Trained[None]:
    """Run local SGD from the cluster's model."""
    model = received["model"]
    training.observe("personal", model, "received")
    W = base.sgd(training, model.clone(), round_)
    training.observe("local", W, "trained")
    info = {
        "cluster": received["cluster"].squeeze(1),
        "update_norm": (W - model).norm(dim=1),
        "cluster_norms": received["norms"],
    }
    return None, {"model": W}, info


QUANTITIES = (
    base.Quantity(
        "cluster",
        "clusters",
        "Which cluster each client is in",
        "cluster",
        "the cluster whose model each client received.",
    ),
    base.Quantity(
        "update_norm",
        "values",
        "How long the clients' updates are",
        "norm of the update",
        "the norm of each client's update. With units = first-round the thresholds eps_mean and "
        "eps_max are multiples of its mean in round 1.",
    ),
    base.Quantity(
        "cluster_norms",
        "values",
        "What decides on splits",
        "norm",
        "of each client's cluster, 1 the norm of its mean update in the round before, 2 the "
        "largest norm of an update. Members disagree where updates are long and their mean is "
        "short: a cluster splits while 1 is below eps_mean and 2 above eps_max.",
        entries="norm",
    ),
)

CARD = base.Card(
    presentation=base.Presentation("CFL", QUANTITIES),
    paper="Sattler et al., IEEE TNNLS 2021, Algorithm 3",
    summary="FedAvg in clusters that split where members' updates point apart",
    exchange=base.Exchange(down="1", up="1", private="nothing but the data", keeps="nothing"),
    headline=("personal", "received"),
    joining=(
        "newcomers and unseen clients join the cluster with the most samples; a leaver leaves its "
        "own"
    ),
    privacy=base.PrivacyCost(gradients=(base.Gradients(),)),
    needs=base.Needs(cohort="any cohort; to split a cluster, all its members"),
)
