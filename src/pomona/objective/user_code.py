"""A user's own training code: its functions, what they return, and the optimizer that they step."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite, isnan
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from pomona.core.errors import ConfigError, DataError, listed
from pomona.core.round import Round
from pomona.core.training_settings import Adam, Passes
from pomona.core.training_settings import Optimizer as OptimizerSettings
from pomona.objective.paused_function import single

ABBREVIATIONS = {"accuracy": "acc", "auroc": "auc", "macro_f1": "f1"}
VARIANT = re.compile("balanced|micro|weighted|dynamic|integrated|adjusted|root|top[^a-z]?[0-9]")
Loaders = Mapping[str, Any]  # split -> a loader: iterates batches, again and again


@dataclass(frozen=True)
class UserCode:
    """A user's functions; one of ``step`` and ``train`` is given.

    Attributes:
        step: (model, batch) -> loss: one step of an optimizer.
        train: (model, loader) -> loss: a pass over the loader, or several.
        test: (model, loader) -> loss; (loss, metric); or both by name.
    """

    step: Callable[[nn.Module, Any], Any] | None = None
    train: Callable[[nn.Module, Any], Any] | None = None
    test: Callable[[nn.Module, Any], Any] | None = None

    def __post_init__(self) -> None:
        if (self.step is None) == (self.train is None):
            raise ConfigError(
                "give one of step, a function of (model, batch), and train, a function of (model, "
                "loader)"
            )

    def once(self, model: nn.Module, loader: Any, batch: Any) -> Any:
        """Train on one batch alone."""
        if self.step:
            return self.step(model, batch)
        assert self.train
        return self.train(model, single(loader, batch))


@dataclass(frozen=True)
class OptimizerRule:
    """The user's optimizer as far as settings name it, and the passes of a round; ``lr`` is NaN if
    they do not.
    """

    lr: float
    momentum: float
    weight_decay: float
    optimizer: OptimizerSettings
    passes: Passes

    @property
    def has_rate(self) -> bool:
        """Whether the settings name the rate."""
        return not isnan(self.lr)

    def other_rate(self, round_: Round) -> float | None:
        """Return the rate of a step in this round, None if it is that of the user's optimizer."""
        lr: float = vars(round_)["lr"]  # reading an unknown one as an attribute is refused
        return None if lr == self.lr or isnan(lr) else lr

    def mismatch(self, optimizer: Optimizer) -> str:
        """Return what to set, if an optimizer does not step as the settings say; else ""."""
        settings = {"lr": self.lr, "momentum": self.momentum, "weight_decay": self.weight_decay}
        for group in optimizer.param_groups:
            actual = {name: float(group.get(name, 0.0)) for name in settings}
            if actual != settings or not self._same_rule(optimizer, group):
                values = [f"{name}={value:g}" for name, value in actual.items() if value]
                rule = type(optimizer).__name__.lower()
                return ", ".join([*values, *([] if rule == "sgd" else [f"optimizer={rule!r}"])])
        return ""

    def _same_rule(self, optimizer: Optimizer, group: Mapping[str, Any]) -> bool:
        expected = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
        plain = not any(group.get(key) for key in ("nesterov", "dampening", "maximize", "amsgrad"))
        rule = self.optimizer
        is_type = type(optimizer) is expected[rule.name] and plain
        if not isinstance(rule, Adam):
            return is_type
        moments = (*group.get("betas", ()), group.get("eps"))
        return is_type and moments == (rule.beta1, rule.beta2, rule.eps)


def size_of(batch: Any) -> int:
    """Return a batch's number of samples: the length of its first tensor, by name or place."""
    first = batch
    while isinstance(first, Mapping | list | tuple) and len(first):
        first = next(iter(first.values() if isinstance(first, Mapping) else first))
    try:
        return max(1, len(first))
    except TypeError:
        return 1


def samples_in(loader: Any, name: str) -> int:
    """Return how many samples a loader has. Raises DataError without any."""
    if hasattr(loader, "dataset") and hasattr(loader.dataset, "__len__"):
        samples = len(loader.dataset)
    elif hasattr(loader, "__len__"):
        samples = sum(size_of(batch) for batch in loader)
    else:
        raise DataError(
            f"{name}: the loader has no length; give a DataLoader of a data set with one, or a "
            "list of batches"
        )
    if not samples:
        raise DataError(f"{name}: the loader has no samples; leave it out")
    return samples


def loss_of(value: Any) -> float | None:
    """Return the loss that a user's function returned: a number, the first of several, or the one
    whose name ends with "loss"; None if there is none.

    Raises ConfigError for what is not a number.
    """
    if isinstance(value, Mapping):
        value = next((v for name, v in value.items() if _names_loss(name)), None)
    if isinstance(value, list | tuple):
        value = value[0] if value else None
    return None if value is None else _number(value, "loss")


def _names_loss(name: Any) -> bool:
    return str(name).lower().endswith("loss")


def _number(value: Any, name: str) -> float:
    try:
        return float(value.detach() if isinstance(value, Tensor) else value)
    except (TypeError, ValueError, RuntimeError):
        raise ConfigError(
            f"your code returns a value of type {type(value).__name__} as its {name}; return one "
            "number"
        ) from None


def figures_of(value: Any) -> dict[str, Any]:
    """Return what a user's ``test`` returned, by name: the "loss", and figures as they are, that of
    a pair as "metric". A test returns a loss, (loss, metric), (loss, figures by name), or all by
    name.

    Raises ConfigError for other values.
    """
    values = tuple(value) if isinstance(value, list | tuple) else (value,)
    if not 1 <= len(values) <= 2:
        raise ConfigError(
            f"test returns {len(values)} values; return (loss, accuracy), or a dictionary"
        )
    loss = loss_of(values[0])
    if loss is None:
        raise ConfigError("test returns no loss; return (loss, accuracy), or a dictionary of both")
    figures: dict[str, Any] = {"loss": loss}
    if len(values) == 2 and not isinstance(values[1], Mapping):
        return figures | {"metric": values[1]}
    by_name = values[-1] if isinstance(values[-1], Mapping) else {}
    return figures | {str(name): v for name, v in by_name.items() if not _names_loss(name)}


def metric_of(figures: Mapping[str, Any], metric: str) -> float | None:
    """Return a metric, or the loss, among a user's figures, None where it is not finite: that of
    its name; else the only one whose name ends in the metric's or its short form, without a word
    that makes it another metric; else the figure of a pair.

    Raises ConfigError if there is none, or several.
    """
    names = [name for name in figures if name != "loss"]
    if not names and metric != "loss":
        raise ConfigError("test returns a loss alone; return (loss, accuracy), or set metric=loss")
    named = [name for name in names if _is_called(name, metric)]
    matching = [metric] if metric in figures else ["metric"] if names == ["metric"] else named
    if len(matching) != 1:
        raise ConfigError(
            f"test returns {listed(names, 10)}; name the one that is the metric {metric!r} so, or "
            "set metric to another (pomona settings metric)"
        )
    number = _number(figures[matching[0]], matching[0])
    return number if isfinite(number) else None


def _is_called(name: str, metric: str) -> bool:
    """Return whether a figure's name ends in a metric's name or its short form, without a word
    before that makes it another metric.
    """
    name = re.sub("(?<=[a-z])(?=[A-Z])", "_", name).lower()
    forms = "|".join(map(re.escape, (metric, ABBREVIATIONS.get(metric, metric))))
    match = re.search(f"(?:^|[^a-z0-9])(?:{forms})$", name)
    return match is not None and not VARIANT.search(name[: match.start()])
