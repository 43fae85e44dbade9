"""Server optimizers: FedAvgM, FedAdam, FedYogi and FedAdagrad, and the same for any method that
averages.

Hsu, Qi, Brown. Measuring the effects of non-identical data distribution for federated visual
classification. arXiv 1909.06335 (FedAvgM). Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar,
McMahan. Adaptive federated optimization. ICLR 2021 (arXiv 2003.00295), Algorithm 2 (FedAdagrad,
FedYogi, FedAdam).

    client           the method's own; FedAvg's under the four names here
    server           D = mean - w       from the model w that was sent to the mean that the method would take
    momentum         m <- beta m + D                                w <- w + eta m                       (FedAvgM)
    adagrad          v <- v + D^2                                   w <- w + eta m / (sqrt(v) + tau)
    yogi             v <- v - (1 - beta_2) D^2 sign(v - D^2)        the same
    adam             v <- beta_2 v + (1 - beta_2) D^2               the same
                     of all three  m <- beta_1 m + (1 - beta_1) D;  m starts at 0, v at tau^2

All products are by element. D is the negative pseudo-gradient. With eta = 1 and beta = 0 the step
of FedAvgM is D, and the method is the same as without an optimizer, to the bit.

A name followed by ``+momentum``, ``+adagrad``, ``+yogi`` or ``+adam`` (``fedrep+adam``,
``ditto+ala+yogi``) is that method with the optimizer at its server, for every method whose server
keeps only the mean of its uplinks' models, or of a part of them. Parts that stay with the clients
are not affected. Of the others SCAFFOLD, FedDyn and the four here have server steps of their own;
CFL and IFCA keep a mean for each cluster, FedCross several; PGFed keeps gradients in addition to
its mean, Floco regions, FedCAC models and masks, FedDBE, FedPAC and pFedFDA features; FedSelect
averages each parameter over those that share it; FedProto and FedTGP have features alone; APPLE,
FedFomo, FedAMP, pFedGraph and MOCHA keep models of single clients; auto has four servers, Separate
none.

Differs from the papers: D comes from the mean that the method has, FedAvg's weighted by samples
(Algorithm 2 prints a uniform one; the experiments weight by samples). eta is not changed by
``lr_decay`` and ``lr_schedule``, which set the clients' rates. Like the papers, no bias correction.
Nesterov's variant of FedAvgM is not implemented.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from pydantic import Field

from pomona.core.lazy_torch import Tensor, torch
from pomona.core.settings import Settings
from pomona.methods import base
from pomona.methods.one_model.fedavg import FedAvg
from pomona.methods.suffixes import require_mean, with_suffix


class Momentum(Settings):
    """Settings of server momentum; symbols of the papers in brackets.

    Attributes:
        server_lr: step of the server along its momentum (eta)
        server_momentum: share of the last step that is kept (beta)
    """

    server_lr: float = Field(1.0, gt=0)
    server_momentum: float = Field(0.9, ge=0, lt=1)


class Adagrad(Settings):
    """Settings of Adagrad at the server; symbols of the papers in brackets.

    Attributes:
        server_lr: step of the server: what a parameter moves in round 1 (eta)
        server_beta1: decay of the mean update (beta_1)
        server_tau: adaptivity: updates well below it are not enlarged (tau)
    """

    server_lr: float = Field(0.3, gt=0)
    server_beta1: float = Field(0.0, ge=0, lt=1)
    server_tau: float = Field(1e-3, gt=0)


class Adam(Adagrad):
    """Settings of Adam and Yogi at the server; symbols of the papers in brackets.

    Attributes:
        server_lr: step of the server: about what a parameter moves in a round (eta)
        server_beta1: decay of the mean update (beta_1)
        server_beta2: decay of the mean squared update (beta_2)
    """

    server_lr: float = Field(0.1, gt=0)
    server_beta1: float = Field(0.9, ge=0, lt=1)
    server_beta2: float = Field(0.99, ge=0, lt=1)


@dataclass(frozen=True)
class Moments:
    """State of an optimizer: m (k,), and v (k,), which is empty if unused."""

    first: Tensor
    second: Tensor


# settings, D (k,), moments -> step (k,), moments
Rule = Callable[[Any, Tensor, Moments], tuple[Tensor, Moments]]


def momentum(settings: Momentum, D: Tensor, moments: Moments) -> tuple[Tensor, Moments]:
    """Return the step of FedAvgM."""
    m = settings.server_momentum * moments.first + D
    return settings.server_lr * m, Moments(m, moments.second)


def adaptive(second: Callable[[Any, Tensor, Tensor], Tensor]) -> Rule:
    """Return the step of Algorithm 2 with a rule for v: settings, v (k,), D^2 (k,) -> v (k,)."""

    def rule(settings: Adagrad, D: Tensor, moments: Moments) -> tuple[Tensor, Moments]:
        m = settings.server_beta1 * moments.first + (1 - settings.server_beta1) * D
        v = second(settings, moments.second, D * D)
        return settings.server_lr * m / (v.sqrt() + settings.server_tau), Moments(m, v)

    return rule


def adagrad(settings: Adagrad, v: Tensor, square: Tensor) -> Tensor:
    """Add the square to v."""
    return v + square


def yogi(settings: Adam, v: Tensor, square: Tensor) -> Tensor:
    """Move v towards the square by a share of the square, whatever the distance."""
    return v - (1 - settings.server_beta2) * square * torch.sign(v - square)


def adam(settings: Adam, v: Tensor, square: Tensor) -> Tensor:
    """Move v towards the square by a share of the distance."""
    return settings.server_beta2 * v + (1 - settings.server_beta2) * square


OPTIMIZERS: Mapping[str, tuple[type[Settings], Rule]] = {
    "momentum": (Momentum, momentum),
    "adagrad": (Adagrad, adaptive(adagrad)),
    "yogi": (Adam, adaptive(yogi)),
    "adam": (Adam, adaptive(adam)),
}
"""Suffixes of a method's name: their settings and rules."""


@dataclass(frozen=True)
class Stepped:
    """The model or part of one that is sent (k,), and the optimizer's moments."""

    model: Tensor
    moments: Moments


def stepping(inner: base.Server, rule: Rule, settings: Any) -> base.Server:
    """Return an averaging server that takes an optimizer's step towards its mean instead of the
    mean itself.
    """

    def start(initial: base.Initial, roster: base.Roster, seed: int) -> Stepped:
        w = inner.start(initial, roster, seed)
        tau = getattr(settings, "server_tau", None)
        second = w.new_empty(0) if tau is None else torch.full_like(w, tau**2)
        return Stepped(w, Moments(torch.zeros_like(w), second))

    def aggregate(
        state: Stepped, uplink: base.Uplink, ids: base.Ids, roster: base.Roster, round_: base.Round
    ) -> Stepped:
        mean = inner.aggregate(state.model, uplink, ids, roster, round_)
        D = mean - state.model
        step, moments = rule(settings, D, state.moments)
        return Stepped(mean + (step - D), moments)  # w + step; exactly the mean if the step is D

    def add_clients(
        state: Stepped, ids: base.Ids, roster: base.Roster
    ) -> tuple[Stepped, Tensor | None]:
        w, row = inner.add_clients(state.model, ids, roster)
        return replace(state, model=w), row

    return replace(
        inner,
        start=start,
        aggregate=aggregate,
        add_clients=add_clients,
        downlink=lambda state, *args: inner.downlink(state.model, *args),
        uplink_form=lambda state: inner.uplink_form(state.model),
        closing=lambda state, *args: inner.closing(state.model, *args),
        capped_clients=lambda state, *args: inner.capped_clients(state.model, *args),
        averages=False,
    )


@cache
def optimized(
    settings_class: type[base.MethodSettings], optimizer: str, title: str | None = None
) -> type[base.MethodSettings]:
    """Return settings that combine a method's with a server optimizer's in one section.

    Returns the same class at each call. Raises ConfigError for a method whose server state is not
    just a mean.

    Args:
        settings_class: the method's settings.
        optimizer: a name of ``OPTIMIZERS``.
        title: title of the new method, whose name is the title in lower case; NAME+optimizer if
            None.
    """
    require_mean(settings_class, optimizer, "a server optimizer steps towards")
    extra_settings, rule = OPTIMIZERS[optimizer]

    def method(settings: Any) -> base.Method:
        inner = settings_class.method(settings)
        server = stepping(inner.server, rule, settings)
        rates = " and ".join(filter(None, (inner.client.rate, "method.server_lr")))
        client, card = replace(inner.client, rate=rates), _card(inner.card, optimizer, title)
        return replace(inner, server=server, client=client, card=card)

    return with_suffix(settings_class, optimizer, extra_settings, method, title)


def _card(card: base.Card, optimizer: str, title: str | None) -> base.Card:
    presentation = card.presentation
    source = "Reddi et al., ICLR 2021, Algorithm 2"
    if optimizer == "momentum":
        source = "Hsu et al., arXiv 1909.06335"
    return replace(
        card,
        presentation=base.Presentation(
            title or f"{presentation.title}+{optimizer}", quantities=presentation.quantities
        ),
        paper=source if title else f"{card.paper}; server: {source}",
        summary=f"{card.summary}; the server steps towards that mean with {_TITLES[optimizer]}",
    )


_TITLES = {"momentum": "momentum", "adagrad": "Adagrad", "yogi": "Yogi", "adam": "Adam"}

FedAvgM = optimized(FedAvg, "momentum", "FedAvgM")
FedAdagrad = optimized(FedAvg, "adagrad", "FedAdagrad")
FedYogi = optimized(FedAvg, "yogi", "FedYogi")
FedAdam = optimized(FedAvg, "adam", "FedAdam")
