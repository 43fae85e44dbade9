"""Section ``optimizer``: how a local step uses the gradient; applied by ``methods.row_algebra.descend``."""

from typing import Literal, Self

from pydantic import Field, model_validator

from pomona.core.errors import ConfigError
from pomona.core.settings import Settings, refuse_idle


class Optimizer(Settings):
    """Settings of the local optimizer besides lr, momentum and weight_decay; symbols as in Kingma and Ba (2015)."""

    name: Literal["sgd", "adam", "adamw"] = Field(
        "sgd", description="rule of local steps; moments are zero at the start of each round"
    )
    beta1: float = Field(0.9, ge=0, lt=1, description="adam, adamw: decay of the mean gradient")
    beta2: float = Field(0.999, ge=0, lt=1, description="adam, adamw: decay of the mean squared gradient")
    eps: float = Field(1e-8, ge=1e-30, le=1, description="adam, adamw: added to the root of the mean square")
    max_grad_norm: float | None = Field(
        None, ge=1e-30, le=1e6, description="L2 norm to which a client's gradient is clipped in each step; off if unset"
    )

    @model_validator(mode="after")
    def _placed(self) -> Self:
        if self.name == "sgd":
            refuse_idle(self, "optimizer.", ("beta1", "beta2", "eps"), "is for adam and adamw, the optimizer is sgd")
        return self

    @property
    def plain(self) -> bool:
        """Return whether a step is lr times the gradient, apart from momentum and weight decay."""
        return self.name == "sgd" and self.max_grad_norm is None


Steps = Literal["any", "sgd", "plain"]
"""Optimizers that a method supports: any; SGD; or SGD without momentum and clipping."""


def require_steps(method: str, allowed: Steps, momentum: float, optimizer: Optimizer) -> None:
    """Raise ConfigError for an optimizer that the method does not support, or for settings that exclude each other."""
    name = optimizer.name
    if name != "sgd" and allowed != "any":
        raise ConfigError(f"optimizer.name = {name!r}: the rule of {method} holds for sgd; set optimizer.name=sgd")
    if name != "sgd" and momentum:
        raise ConfigError(f"momentum = {momentum}: {name} has optimizer.beta1 in its place; set momentum=0")
    if allowed == "plain" and momentum:
        raise ConfigError(f"momentum = {momentum}: the rule of {method} holds for plain SGD; set momentum=0")
    if allowed == "plain" and not optimizer.plain:
        norm = optimizer.max_grad_norm
        raise ConfigError(f"optimizer.max_grad_norm = {norm}: the rule of {method} holds for plain SGD; remove it")
