"""Floco: a last layer for each corner of a simplex, and for each client a region of that simplex.

Grinwald, Wiesner, Nakajima. Federated learning over connected modes. NeurIPS 2024 (arXiv
2403.03333), Algorithm 1.

    network          (phi, h_a),   h_a = sum_m a_m t_m,   a in the simplex; t_1, ..., t_M its corners
    client           in each step, with a drawn anew from its region:
                     phi_i <- phi_i - lr dF_i / dphi,     t_mi <- t_mi - lr a_m dF_i / dh    at (phi_i, h_a)
    server           (phi, t_1, ..., t_M) <- sum_i n_i / n (phi_i, t_1i, ..., t_Mi)
    regions          up to round tau the whole simplex; from then on |a - b_i|_1 <= rho
    centres          x_i = first M principal components of client i's change of (t_1, ..., t_M) in round tau
                     b_i = P_z(x_i) / z,   P_z the nearest point with a >= 0 and sum_m a_m = z
                     z  = argmin over 1000 values from 0 to 1 of  sum_{i < j} |b_i - b_j|^-2

Named models: ``global`` is (phi, h_a) at the centre of the simplex, ``personal`` at that of the
client's region, as received and trained; up to round tau they are one. Clients that have no part in
round tau stay with the whole simplex. With one corner this is FedAvg, to the bit.

The equations are those of the published code; the paper's text was not at hand. Differs from the
paper: Floco+, which adds Ditto, is left out. Differs from published code: that sends every client's
model a second time at round tau for the centres; draws points of a region that may lie outside the
simplex, here points on the way from b_i to one drawn from the simplex; and has one bias, here a
corner is a whole layer. From the same models the centres are those of that code, to the bit (30
random draws). The first corner starts as the initial last layer, the others are drawn as it was.
For 100 clients that code has 10 or 20 corners; n clients have at most n - 1 components that are not
0.
"""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from pomona.core.bounds import FirstRound
from pomona.core.lazy_torch import Tensor, torch
from pomona.core.rng import stream
from pomona.methods import base
from pomona.methods.row_algebra import TINY, onto_simplex

SIZES = np.linspace(1e-4, 1, 1000)
"""Candidates for z."""
NEAREST = 1e-4
"""Distance below which two centres count as this far apart."""
WHOLE_SIMPLEX = 2.0
"""Radius of a region that is the whole simplex: no two of its points are further apart."""

Float64 = NDArray[np.float64]


class Floco(base.MethodSettings):
    """Floco's settings; symbols of the paper in brackets.

    Attributes:
        corners: last layers, corners of the simplex (M)
        region_round: round after which clients have regions (tau)
        radius: largest L1 distance from a region's centre (rho)
    """

    name: Literal["floco"] = "floco"
    corners: int = Field(5, ge=1, le=100)
    region_round: FirstRound = 10
    radius: float = Field(0.1, ge=0, lt=WHOLE_SIMPLEX)

    def method(self) -> base.Method:
        """Return the method: both halves and its card."""
        return base.Method(server(self), client(self.corners), CARD)


@dataclass(frozen=True)
class Simplex:
    """The body followed by the corners (k + M h,), with the body's length k (1,), and each client's
    region: its centre (N, M) and radius (N, 1).
    """

    model: Tensor
    body: Tensor
    centres: Tensor
    radii: Tensor


def server(settings: Floco) -> base.Server:
    """Average body and corners, and place the clients once."""
    M = settings.corners

    def start(initial: base.Initial, roster: base.Roster, seed: int) -> Simplex:
        columns, N = initial.layers[-1], len(roster)
        corners = [initial(m)[columns] for m in range(M - 1)]
        centres = torch.full((N, M), 1 / M, dtype=torch.float64)
        return Simplex(
            torch.cat([initial(), *corners]),
            torch.tensor([columns.start]),
            centres,
            torch.full_like(centres[:, :1], WHOLE_SIMPLEX),
        )

    def downlink(
        state: Simplex, ids: base.Ids, roster: base.Roster, round_: base.Round
    ) -> base.Downlink:
        return {
            "model": base.Rows.broadcast(state.model, len(ids)),
            "centre": base.Rows(state.centres, torch.tensor(ids)),
            "radius": base.Rows(state.radii, torch.tensor(ids)),
        }

    def aggregate(
        state: Simplex, uplink: base.Uplink, ids: base.Ids, roster: base.Roster, round_: base.Round
    ) -> Simplex:
        mean = base.weighted_mean(uplink["model"], roster.weights(ids))
        if round_.number != settings.region_round:
            return replace(state, model=mean)
        changes = (uplink["model"] - state.model)[:, int(state.body) :]
        centres = torch.from_numpy(spread(components(changes.double().cpu().numpy(), M)))
        return placed(replace(state, model=mean), ids, centres, settings.radius)

    def add_clients(state: Simplex, ids: base.Ids, roster: base.Roster) -> tuple[Simplex, None]:
        return placed(state, ids, torch.full_like(state.centres[0], 1 / M), WHOLE_SIMPLEX), None

    def uplink_form(state: Simplex) -> base.Uplink:
        return {"model": state.model}

    return base.Server(start, downlink, aggregate, add_clients, uplink_form)


def placed(state: Simplex, ids: base.Ids, centres: Tensor, radius: float) -> Simplex:
    """Return the state with other regions of some clients: centres (n, M), or one for all (M,)."""
    return replace(
        state,
        centres=base.replace_rows(state.centres, ids, centres),
        radii=base.replace_rows(state.radii, ids, torch.full_like(state.radii[0], radius)),
    )


def components(changes: Float64, M: int) -> Float64:
    """Return the first M principal components (n, M) of rows (n, m), 0 where there are fewer; the
    largest loading of each is positive.
    """
    U, s, V = np.linalg.svd(changes - changes.mean(0), full_matrices=False)
    largest = np.abs(V).argmax(1)
    signs = np.where(V[range(len(V)), largest] < 0, -1.0, 1.0)
    scores = (U * s * signs)[:, :M]
    padded: Float64 = np.pad(scores, ((0, 0), (0, M - scores.shape[1])))
    return padded


def spread(X: Float64) -> Float64:
    """Return the centres (n, M) of points X (n, M) that have the least energy."""
    nearest = [onto_simplex(torch.from_numpy(X), z).numpy() for z in SIZES]
    candidates: list[Float64] = [b / b.sum(1, keepdims=True) for b in nearest]
    return candidates[int(np.argmin([energy(b) for b in candidates]))]


def energy(B: Float64) -> float:
    """Return the sum of |b_i - b_j|^-2 over pairs of points (n, M)."""
    first, second = np.triu_indices(len(B), 1)
    distances = np.linalg.norm(B[first] - B[second], axis=1).clip(min=NEAREST)
    return float((distances**-2.0).sum())


def client(M: int) -> base.Client:
    """Train body and corners at points of the client's region."""

    def train(
        state: None, received: base.Received, training: base.LocalTraining, round_: base.Round
    ) -> base.Trained[None]:
        W, columns = received["model"].clone(), training.layers[-1]
        centre, radius = received["centre"], received["radius"].squeeze(1).tolist()
        middle = torch.full_like(centre, 1 / M)

        def mix_corners(rows: Tensor, points: Tensor) -> Tensor:
            corners = rows[:, columns.start :].unflatten(1, (M, -1))
            h = (points.to(rows).unsqueeze(2) * corners).sum(1)
            return torch.cat([rows[:, : columns.start], h], 1)

        training.observe("global", mix_corners(W, middle), "received")
        training.observe("personal", mix_corners(W, centre), "received")
        draws = [stream(round_.seed, "simplex", round_.number, c) for c in training.clients]
        regions = [*zip(draws, centre.cpu().numpy(), radius, strict=True)]
        moments = base.optimizer_state(W, round_)
        for batch, w, state_w in training.steps(round_.passes, W, moments):
            points = torch.from_numpy(np.stack([point(*r) for r in regions[: len(w)]])).to(w)
            _, g = training.gradient(mix_corners(w, points), batch)
            corners = (points.unsqueeze(2) * g[:, columns].unsqueeze(1)).flatten(1)
            slopes = torch.cat([g[:, : columns.start], corners], 1)
            base.optimizer_step(w, slopes, state_w, round_)
        training.observe("personal", mix_corners(W, centre), "trained")
        return None, {"model": W}, {"centre": centre}

    return base.Client(base.stateless, train)


def point(draw: np.random.Generator, centre: Float64, radius: float) -> Float64:
    """Draw a point (M,) of a region: of the simplex uniformly, or on the way to such a point."""
    target = draw.exponential(size=len(centre))
    target /= target.sum()
    if radius >= WHOLE_SIMPLEX:
        return target
    direction = target - centre
    length = np.abs(direction).sum()
    mixture: Float64 = centre + min(1.0, draw.uniform(0, radius) / max(length, TINY)) * direction
    return mixture


QUANTITIES = (
    base.Quantity(
        "centre",
        "values",
        "Where in the simplex each client's model is",
        "weight of a corner",
        "the centre of each client's region: the weights of the last layers at the simplex' corners "
        "in its personal one.",
        entries="corner",
    ),
)

CARD = base.Card(
    presentation=base.Presentation("Floco", QUANTITIES),
    paper="Grinwald et al., NeurIPS 2024, Algorithm 1",
    summary="lower layers shared, and several last layers, of which each client has a mixture",
    exchange=base.Exchange(
        down="1, and M - 1 last layers",
        up="1, and M - 1 last layers",
        private="nothing but the data",
        keeps="nothing",
    ),
    headline=("personal", "received"),
    joining=(
        "newcomers, unseen clients and those absent in round tau have the mean of the corners"
    ),
    privacy=base.PrivacyCost(gradients=(base.Gradients(),)),
)
