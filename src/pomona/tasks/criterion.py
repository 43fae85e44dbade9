"""The loss of a run: its task's, or a user's own."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from pomona.core.errors import ConfigError
from pomona.core.registry import Registry
from pomona.models import ModelSettings
from pomona.tasks.task import Task

Loss = Callable[[Tensor, Tensor], Tensor]  # (outputs (B, *S), targets (B, ...)) -> losses (B,)


def criterion(settings: ModelSettings, task: Task) -> Loss:
    """The loss per sample: (outputs (B, *S), targets (B, ...)) -> (B,).

    Raises ConfigError for a name that is neither ``auto`` nor an importable ``module:function``, and for smoothed
    labels where they are not defined.
    """
    share = settings.label_smoothing
    if share and (not task.smooths or settings.loss != "auto"):
        raise ConfigError(f"model.label_smoothing = {share} is for classes and model.loss = auto; take it out here")
    loss: Callable[..., Tensor] = Registry("loss", {"auto": task.loss}).resolve(settings.loss)
    return partial(loss, smoothing=share) if share else loss


def require_per_sample(loss: Loss, name: str, task: Task, n_outputs: int, input_shape: tuple[int, ...]) -> None:
    """Raise ConfigError unless a loss, named in a message, returns one number for each of two samples."""
    shape = (2, *task.output_shape(n_outputs, input_shape))
    target = torch.from_numpy(task.no_target(n_outputs, input_shape))
    try:
        got = loss(torch.zeros(shape), torch.stack([target, target]))
    except (RuntimeError, ValueError, TypeError, IndexError) as fault:
        raise ConfigError(f"model.loss={name} fails on outputs of shape {shape}: {fault}") from fault
    if not isinstance(got, Tensor) or tuple(got.shape) != (2,):
        what = f"shape {tuple(got.shape)}" if isinstance(got, Tensor) else type(got).__name__
        raise ConfigError(
            f"model.loss={name} returned {what} for 2 samples; return one loss a sample, (2,): reduction='none'"
        )
