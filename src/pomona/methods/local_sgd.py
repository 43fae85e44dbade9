"""Local SGD: passes of the optimizer's steps over the clients' training data, on the run's loss or
on others.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pomona.core.lazy_torch import Tensor, torch
from pomona.core.round import Round
from pomona.core.training_settings import Passes
from pomona.objective.objective import Objective, Pull, RowCriterion
from pomona.objective.optimizer_step import optimizer_state, optimizer_step
from pomona.objective.training import TRAINING, LocalTraining

# rows w (a, d) -> an extra gradient term (a, d); a Pull if it is affine
Term = Callable[[Tensor], Tensor]
# the samples (b,) of a batch -> (outputs, targets, features (b, f)) -> the mean loss () of one row
Loss = Callable[[Tensor], RowCriterion]


def sgd(
    training: LocalTraining,
    W: Tensor,
    round_: Round,
    epochs: int | None = None,
    pull: Pull | None = None,
    purpose: str = TRAINING,
    losses: Sequence[Loss] = (),
    term: Term | None = None,
    columns: slice | None = None,
) -> Tensor:
    """Take local steps on rows W (n, d), in place: ``epochs`` passes (the round's if None) over the
    training data.

    ``losses``, one per row, replace the run's own: from the samples (b,) of a batch to a function
    (outputs, targets, features (b, f)) -> the mean loss (). ``pull`` and ``term`` are added to the
    gradient: a pull where it is affine in the row, so that an engine can take the whole step. With
    ``columns``, which must end at a layer boundary, the rest of each row is fixed, and an empty
    part takes no steps.
    """
    if columns is not None and columns.start == columns.stop:
        return W
    passes = round_.passes if epochs is None else Passes(epochs)
    selected = columns or slice(0, None)
    state = optimizer_state(W[:, selected], round_)
    for batch, w, moments in training.steps(passes, W, state, purpose=purpose):
        if losses or term:
            row_losses = [loss(index) for loss, index in zip(losses, batch.indices, strict=False)]
            _, g = training.gradient(w, batch, row_losses or None, above=selected.start)
            optimizer_step(w[:, selected], _sum(g, w, pull, term)[:, selected], moments, round_)
        else:
            training.step(w, batch, moments, round_, pull, columns)
    return W


def _sum(g: Tensor, w: Tensor, *terms: Term | None) -> Tensor:
    """Return gradients g (a, d) with further terms at rows w (a, d)."""
    for term in terms:
        g = g if term is None else g + term(w)
    return g


@dataclass(frozen=True)
class Cached:
    """A model's outputs or features on a client's training samples.

    They are computed once a round for all batches, for losses that compare with a fixed model.
    ``rows`` (m,) are the samples, ascending; ``values`` (m, ...) the model's outputs or features on
    each, computed as in an evaluation: without augmentation and in evaluation mode.
    """

    rows: Tensor
    values: Tensor

    @classmethod
    def outputs(cls, objective: Objective, row: Tensor, client: int) -> "Cached":
        """Return the outputs (m, K) under one row (d,)."""
        return cls._ordered(objective, client, objective.outputs(row, client, "train")[0])

    @classmethod
    def features(cls, objective: Objective, row: Tensor, client: int) -> "Cached":
        """Return the last layer's inputs (m, f) under one row (d,).

        Raises ConfigError if training uses patches.
        """
        return cls._ordered(objective, client, objective.features(row, client, "train"))

    @classmethod
    def _ordered(cls, objective: Objective, client: int, values: Tensor) -> "Cached":
        rows, order = objective.data.rows["train"][client].sort()
        return cls(rows, values[order])

    def lookup(self, index: Tensor) -> Tensor:
        """Return the values (b, ...) of the samples ``index`` (b,) of the client."""
        return self.values[torch.searchsorted(self.rows, index)]
