"""Scores from model outputs: accuracy in every round, all metrics for the last models."""

from typing import Any

import numpy as np
from torch import Tensor

from pomona.core.rng import stream
from pomona.metrics.classification import evaluate
from pomona.metrics.regression import evaluate_multilabel, evaluate_regression
from pomona.models import Targets


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
    values, truth = outputs.double().cpu().numpy(), np.asarray(targets.cpu())
    match kind:
        case "classes":
            probabilities = outputs.double().softmax(1).cpu().numpy()
            return evaluate(probabilities, truth, stream(seed, "bootstrap", client))
        case "multilabel":
            return evaluate_multilabel(outputs.double().sigmoid().cpu().numpy(), truth)
        case "regression":
            return evaluate_regression(values, truth)
