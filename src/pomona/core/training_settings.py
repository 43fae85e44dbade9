"""Settings of training: section ``optimizer``, how a local step uses the gradient (applied by
``objective.optimizer_step``); its length; section ``stop``, early stopping; section
``secure_aggregation``, sums in fixed point (``core.fixed_point``). Loads no PyTorch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, SerializeAsAny

from pomona.core.bounds import MAX_CLIENTS, ROUNDS
from pomona.core.errors import ConfigError
from pomona.core.settings import Settings, require_name, validate_section


class Optimizer(Settings):
    """Stochastic gradient descent: what every local optimizer has besides lr, momentum and
    weight_decay.

    Attributes:
        name: rule of local steps: sgd, adam, adamw; moments are zero at the start of each round
        max_grad_norm: L2 norm to which a client's gradient is clipped in each step; off if unset
    """

    name: str = "sgd"
    max_grad_norm: float | None = Field(None, ge=1e-30, le=1e6)

    @property
    def plain(self) -> bool:
        """Return whether a step is lr times the gradient, apart from momentum and weight decay."""
        return self.name == "sgd" and self.max_grad_norm is None


class Adam(Optimizer):
    """Adam, and with decoupled weight decay AdamW; symbols as in Kingma and Ba (2015).

    Attributes:
        name: rule of local steps
        beta1: adam, adamw: decay of the mean gradient
        beta2: adam, adamw: decay of the mean squared gradient
        eps: adam, adamw: added to the root of the mean square
    """

    name: Literal["adam", "adamw"]
    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.999, ge=0, lt=1)
    eps: float = Field(1e-8, ge=1e-30, le=1)


OPTIMIZERS: dict[str, type[Optimizer]] = {"sgd": Optimizer, "adam": Adam, "adamw": Adam}


def _chosen(value: Any) -> Any:
    """Validate a section as the settings that its name selects.

    Raises ValidationError with every bad key or value.
    """
    if not isinstance(value, Mapping):
        return value
    section = {"name": "sgd", **value}
    settings_class = OPTIMIZERS[require_name(section, OPTIMIZERS)]
    adam_keys = [
        key
        for key in section
        if key in Adam.model_fields and key not in settings_class.model_fields
    ]
    return validate_section(
        settings_class,
        section,
        dict.fromkeys(adam_keys, f"only for adam and adamw, the optimizer is {section['name']}"),
    )


AnyOptimizer = Annotated[SerializeAsAny[Optimizer], BeforeValidator(_chosen)]

Steps = Literal["any", "sgd", "plain"]
"""Optimizers that a method supports: any; SGD; or SGD without momentum and clipping."""


def require_steps(method: str, allowed: Steps, momentum: float, optimizer: Optimizer) -> None:
    """Raise ConfigError for an optimizer that the method does not support, or for settings that
    exclude each other.
    """
    name = optimizer.name
    if name != "sgd" and allowed != "any":
        raise ConfigError(
            f"optimizer.name = {name!r}: the rule of {method} assumes sgd; set optimizer.name=sgd"
        )
    if name != "sgd" and momentum:
        raise ConfigError(
            f"momentum = {momentum}: {name} uses optimizer.beta1 instead; set momentum=0"
        )
    if allowed == "plain" and momentum:
        raise ConfigError(
            f"momentum = {momentum}: the rule of {method} assumes plain SGD; set momentum=0"
        )
    if allowed == "plain" and not optimizer.plain:
        norm = optimizer.max_grad_norm
        raise ConfigError(
            f"optimizer.max_grad_norm = {norm}: the rule of {method} assumes plain SGD; remove it"
        )


@dataclass(frozen=True)
class Passes:
    """Length of a client's training: passes over its samples, or the first ``steps`` batches of
    such passes.
    """

    epochs: int = 1
    steps: int | None = None

    def batches(self, per_epoch: int) -> int:
        """Return the number of batches of a client whose passes have ``per_epoch`` each."""
        return self.epochs * per_epoch if self.steps is None else self.steps

    def __str__(self) -> str:
        count, unit = (self.epochs, "epoch") if self.steps is None else (self.steps, "step")
        return f"{count} {unit}{'s' * (count != 1)}"


class Stop(Settings):
    """Early stopping on the clients' validation samples.

    Attributes:
        patience: a run ends after this many evaluations without a better headline metric on
            validation samples, mean over clients
        min_gain: an improvement counts if it exceeds this
        after: no run ends before the evaluation of this round
    """

    patience: int = Field(ge=1, le=ROUNDS)
    min_gain: float = Field(0.0, ge=0, le=1e6)
    after: int = Field(0, ge=0, le=ROUNDS)

    def should_stop(self, evaluations_since_best: int, number: int) -> bool:
        """Return whether a run ends after the evaluation of round ``number``."""
        return evaluations_since_best >= self.patience and number >= self.after


LEAST_IN_A_SUM = 3  # by default


class SecureAggregation(Settings):
    """The server learns the weighted mean of a round's changes, and no client's own; the symbols in
    brackets.

    Attributes:
        max_norm: L2 norm to which a client's change of the model in a round is clipped (C)
        minimum: smallest number of clients in a sum; fewer fail the round
        bits: bits per number in a sum (b): its error over n clients is at most n C / 2^31; 64:
            about that of float64, for twice the bytes
    """

    max_norm: float = Field(ge=1e-6, le=1e6)
    minimum: int = Field(LEAST_IN_A_SUM, ge=2, le=MAX_CLIENTS)
    bits: Literal[32, 64] = 32
