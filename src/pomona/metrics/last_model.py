"""Scores from model outputs: accuracy in every round, all metrics for the last models."""

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from pomona.core.rng import stream
from pomona.metrics.classification import evaluate
from pomona.metrics.outcomes import Judged, evaluate_outcomes
from pomona.metrics.regression import evaluate_multilabel, evaluate_regression
from pomona.models import Targets

Answers = tuple[Tensor, Tensor]  # outputs (n, K) and targets of one model on one client's split


def score(outputs: Tensor, targets: Tensor, kind: Targets) -> float | None:
    """Accuracy of outputs (b, K): share of right classes, or of right flags among b * K; None for regression."""
    match kind:
        case "classes":
            return float((outputs.argmax(1) == targets).double().mean())
        case "multilabel":
            return float(((outputs > 0) == (targets > 0.5)).double().mean())
        case "regression":
            return None


def full_metrics(outputs: Tensor, targets: Tensor, kind: Targets, *, seed: int, client: int) -> dict[str, Any]:
    """Every metric that the task defines, with confidence intervals; None where a client's data cannot define one."""
    truth = np.asarray(targets.cpu())
    match kind:
        case "classes":
            return evaluate(_natural(outputs, kind), truth, stream(seed, "bootstrap", client))
        case "multilabel":
            return evaluate_multilabel(_natural(outputs, kind), truth)
        case "regression":
            return evaluate_regression(_natural(outputs, kind), truth)


def outcome_metrics(
    tested: Answers, held_out: Answers | None, kind: Targets, *, seed: int, client: int
) -> dict[str, Any]:
    """Under ``outcomes`` the figures of each class or label at a threshold from ``held_out``; nothing of numbers.

    ``tested``, ``held_out``: outputs (n, K) and targets on the test and on the validation samples.
    """
    if kind == "regression":
        return {}
    chosen_on = _judged(held_out, kind) if held_out else None
    draws = partial(stream, seed, "bootstrap", client)
    return {"outcomes": evaluate_outcomes(_judged(tested, kind), chosen_on, draws)}


def _judged(answers: Answers, kind: Targets) -> Judged:
    return _natural(answers[0], kind), np.asarray(answers[1].cpu())


def _natural(outputs: Tensor, kind: Targets) -> NDArray[np.float64]:
    """Outputs (n, K) of a network as probabilities, or as the numbers they are."""
    match kind:
        case "classes":
            scaled = outputs.double().softmax(1)
        case "multilabel":
            scaled = outputs.double().sigmoid()
        case "regression":
            scaled = outputs.double()
    return np.asarray(scaled.cpu())
