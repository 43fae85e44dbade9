"""Information of rows about a linear model's parameters: the score and the second derivatives of
the negative log-likelihood, in closed form and in double precision.

With outputs z_k = w_k x + b_k, a row's score is s_k = dL / dz_k and its curvature
h_kl = d2L / dz_k dz_l; by the parameters they are s_k (x, 1) and h_kl (x, 1)' (x, 1) (McCullagh and
Nelder, Generalized Linear Models, 1989, section 2.5).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from pomona.models.mlp import LOG_HAZARDS, PROPORTIONAL_HAZARDS
from pomona.models.parameter_space import ParameterSlice, ParameterSpace
from pomona.objective.dataset import EVALUATION_BATCH, DeviceDataset
from pomona.personal.contrasts import Floats, Outcome, directions
from pomona.personal.model import metadata
from pomona.scenario import Scenario

MAX_STEP = 0.75  # of a linear predictor by Newton, which is 1 or more at an infinite maximum
RANK_TOLERANCE = 1e-9  # share of the largest eigenvalue below which one is 0
UNIDENTIFIED = 1e-5  # share of a contrast outside the information's range


@dataclass(frozen=True)
class Information:
    """Of some rows about a model's parameters: ``gradient`` (d,) and second derivatives ``inverse``
    (d, d), a pseudo-inverse, of their negative log-likelihood; ``span`` (d, d) projects on the
    range.
    """

    gradient: Floats
    inverse: Floats
    span: Floats

    @classmethod
    def of(cls, gradient: Floats, second: Floats) -> "Information":
        """Decompose second derivatives (d, d), scaled to a diagonal of 1."""
        if not np.isfinite(second).all():  # of residuals without variance
            gradient, second = np.zeros_like(gradient), np.zeros_like(second)
        diagonal = np.diag(second)
        scale = np.where(diagonal > 0, 1 / np.sqrt(np.where(diagonal > 0, diagonal, 1)), 0.0)
        values, vectors = np.linalg.eigh(scale[:, None] * second * scale)
        determined = values > RANK_TOLERANCE * max(float(values.max(initial=0)), 0.0)
        values, vectors = values[determined], vectors[:, determined]
        inverse = scale[:, None] * ((vectors / values) @ vectors.T) * scale
        unscale = np.where(scale > 0, 1 / np.where(scale > 0, scale, 1), 0.0)
        span = unscale[:, None] * (vectors @ vectors.T) * scale
        return cls(gradient, inverse, span)

    @property
    def step(self) -> Floats:
        """Newton's step (d,), which leads to the maximum if subtracted."""
        return self.inverse @ self.gradient

    @property
    def distance(self) -> float:
        """Largest distance of a coefficient from the maximum, in its standard errors."""
        return float(np.sqrt(max(0.0, float(self.gradient @ self.step))))

    def errors(self, contrasts: Floats) -> list[float | None]:
        """Return the standard errors of contrasts (n, d); None where the rows do not determine
        one.
        """
        outside = np.linalg.norm(contrasts - contrasts @ self.span.T, axis=1)
        undetermined = outside > UNIDENTIFIED * np.linalg.norm(contrasts, axis=1)
        variances = ((contrasts @ self.inverse) * contrasts).sum(1)
        return [
            None if unknown else float(np.sqrt(variance))
            for unknown, variance in zip(undetermined, variances, strict=True)
        ]


@dataclass(frozen=True)
class LinearModel:
    """The layout of a linear network's parameters, and the data of a scenario.

    Attributes:
        weight, bias: W (R, F) and b (K,) in a row of parameters.
        proportional: whether all outputs share one row of W, as logarithms of hazards.
    """

    weight: ParameterSlice
    bias: ParameterSlice
    proportional: bool
    data: DeviceDataset
    steps: int  # coefficients of an outcome, without the intercept

    @classmethod
    def of(cls, scenario: Scenario) -> "LinearModel":
        """Return the network of a scenario whose network is ``linear``."""
        parameters = ParameterSpace(scenario.module()).parameters
        slices = {p.name.rpartition(".")[2]: p for p in parameters}
        proportional = scenario.config.model.name == PROPORTIONAL_HAZARDS
        steps = len(directions(metadata(scenario, 0, ("", ""))))
        return cls(slices["weight"], slices["bias"], proportional, scenario.resident, steps)

    def batches(self, rows: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield inputs and targets of rows (n,), in double precision."""
        for index in rows.split(EVALUATION_BATCH):
            x, y = self.data.gather(index)
            yield x.double(), y.double() if y.is_floating_point() else y

    def outputs(self, theta: Tensor, x: Tensor) -> Tensor:
        """Return the linear outputs (b, K) of parameters (d,)."""
        return x @ self.weight.view(theta).T + self.bias.view(theta)

    def residual_variance(self, theta: Tensor, rows: Tensor) -> Tensor:
        """Return the variance (K,) of numbers around the outputs, over the remaining degrees of
        freedom.
        """
        squares = sum(((self.outputs(theta, x) - y) ** 2).sum(0) for x, y in self.batches(rows))
        return torch.as_tensor(squares) / self.freedom(rows)

    def freedom(self, rows: Tensor) -> int:
        """Return the residuals' degrees of freedom."""
        return max(1, len(rows) - self.steps - 1)

    def information(self, theta: Tensor, rows: Tensor) -> Information:
        """Return the information of rows (n,) about parameters (d,)."""
        size, outputs = len(theta), self.bias.shape[0]
        w, b = slice(self.weight.start, self.weight.stop), slice(self.bias.start, self.bias.stop)
        gradient, second = theta.new_zeros(size), theta.new_zeros(size, size)
        uses = theta.new_ones(1, outputs) if self.proportional else torch.eye(outputs).to(theta)
        precision = None
        if self.data.targets == "regression":
            precision = 1 / self.residual_variance(theta, rows)
        for x, y in self.batches(rows):
            score, curvature = self._derivatives(self.outputs(theta, x), y, precision)
            by_row = uses @ curvature
            gradient[w] += (uses @ score.T @ x).flatten()
            gradient[b] += score.sum(0)
            of_weights = (by_row @ uses.T).unsqueeze(-1) * x[:, None, None]
            products = torch.einsum("nrqi,nj->riqj", of_weights, x)
            second[w, w] += products.flatten(2).flatten(0, 1)
            second[w, b] += torch.einsum("nrk,ni->rik", by_row, x).flatten(0, 1)
            second[b, b] += curvature.sum(0)
        second[b, w] = second[w, b].T
        return Information.of(gradient.cpu().numpy(), second.cpu().numpy())

    def _derivatives(
        self, outputs: Tensor, y: Tensor, precision: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return the score (n, K) and curvature (n, K, K) of outputs (n, K) and targets;
        ``precision`` (K,): of numbers.
        """
        if self.data.targets == "classes":
            p = outputs.softmax(1)
            curvature = p.diag_embed() - p[:, :, None] * p[:, None]
            return p - nn.functional.one_hot(y, p.shape[1]), curvature
        if precision is not None:
            return precision * (outputs - y), precision.expand_as(outputs).diag_embed()
        reached, events = (
            y.unbind(1) if self.data.targets == "survival" else (torch.ones_like(y), y)
        )
        if self.proportional:
            return of_log_hazards(outputs, reached, events)
        p = outputs.sigmoid()
        return reached * p - events, (reached * p * (1 - p)).diag_embed()

    def separated(self, step: Floats, rows: Tensor, compared: Sequence[Outcome]) -> bool:
        """Return whether columns separate the answers of rows (n,), so that the likelihood has no
        finite maximum: a Newton step (d,) of any model near it changes a linear predictor by 1.
        """
        if self.data.targets == "regression":
            return False
        change = self.weight.view(torch.from_numpy(step)).numpy()
        directions = np.stack([outcome.weights @ change for outcome in compared], 1)
        moves = np.concatenate([x.cpu().numpy() @ directions for x, _ in self.batches(rows)])
        return bool(np.ptp(moves, axis=0).max() > MAX_STEP)

    def events(self, rows: Tensor) -> int:
        """Return how often the rarer answer, or an observed event, occurs in rows (n,); the number
        of rows, for numbers.
        """
        y = self.data.y[rows]
        if self.data.targets == "classes":
            return int(torch.bincount(y.long(), minlength=self.bias.shape[0]).min())
        if self.data.targets == "multilabel":
            return int(torch.minimum(y.sum(0), (1 - y).sum(0)).min())
        if self.data.targets == "survival":
            events = y[:, 1].sum(0)
            return int(events.sum() if self.proportional else events.min())
        return len(rows)


def of_log_hazards(outputs: Tensor, reached: Tensor, events: Tensor) -> tuple[Tensor, Tensor]:
    """Return the derivatives of L = sum_k (a_k - e_k) c_k - e_k log(1 - exp(-c_k)), with the
    cumulative hazard c_k = exp(z_k) of interval k, and a_k and e_k as in ``hazard_surprise``.
    """
    hazard = outputs.clamp(*LOG_HAZARDS).exp()
    ratio = hazard / hazard.expm1()
    survived = (reached - events) * hazard
    curvature = survived + events * ratio * (hazard + ratio - 1)
    return survived - events * ratio, curvature.diag_embed()
