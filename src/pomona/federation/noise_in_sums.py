"""Noise that adds up in secure sums: when other clients' noise counts (``privacy.honest``).

What a client sends has to be a fixed linear function of its one noised sum of clipped gradients: a
step of SGD from the received model, not clipped after the noise, of numbers so fine that rounding
each client's change is like rounding the sum (Kairouz, Liu and Steinke, The distributed discrete
Gaussian mechanism, ICML 2021, for integers). What the noise then counts for is ``effective`` in
``privacy.accounting``.
"""

import math
from collections.abc import Mapping

from torch import Tensor

from pomona.config import Config
from pomona.core.errors import ConfigError
from pomona.core.fixed_point import scale
from pomona.core.round import Roster
from pomona.privacy.settings import in_sums


def require_honest(config: Config) -> None:
    """Raise ConfigError for ``privacy.honest`` where sums do not have the noise of several
    clients.
    """
    if not noise_adds_up(config):
        return
    assert config.privacy
    terms, method, honest = config.secure_aggregation, config.method.method(), config.privacy.honest
    max_honest = terms.minimum - 1 if terms else 1
    faults = (
        (terms is None, "other clients' noise protects only inside a sum: set secure_aggregation"),
        (
            honest > max_honest,
            "some client in a sum knows its own noise: set at most "
            f"secure_aggregation.minimum - 1 = {max_honest}",
        ),
        (
            not method.client.sends_step or method.share,
            f"{config.method.name} sends more, or something else, than one step from the received "
            "model: take fedavg, fedprox, or one of these with a server optimizer",
        ),
        (
            method.card.headline[1] == "trained",
            f"{config.method.name} reports models that one client has trained; only that client's "
            "noise protects their scores: use fedavg",
        ),
        (
            config.local_steps != 1,
            "a second step starts from what a client's own noise has made: set local_steps = 1",
        ),
        (
            not config.optimizer.plain,
            "a sum of steps is a step of the sum for sgd without clipping: leave section optimizer "
            "out",
        ),
        (
            config.largest_share < 1,
            "with limited shares, other clients' noise may have almost no weight: set "
            "largest_share = 1",
        ),
    )
    for violated, reason in faults:
        if violated:
            raise ConfigError(f"privacy.honest = {honest}: {reason}")


def noise_adds_up(config: Config) -> bool:
    """Return whether the noise of several clients in a sum counts."""
    return bool(config.privacy and config.privacy.honest > 1)


def against(config: Config) -> str:
    """Return, as an apposition, whom a client's epsilon is a bound against, if others' noise
    counts; else "".
    """
    if not noise_adds_up(config):
        return ""
    assert config.privacy
    assert config.secure_aggregation
    return in_sums(config.privacy.honest, config.secure_aggregation.minimum)


def coarse(
    received: Mapping[str, Tensor], samples: int, roster: Roster, lr: float, config: Config
) -> str:
    """Return why a client's change cannot be sent, where others' noise counts: numbers of its model
    or of the sum are too coarse for its noise; "" if it can.

    The noise in a change has standard deviation s = lr sigma C / L. A sum of Gaussians rounded to
    multiples of h is a rounded Gaussian but for e^(-(pi s / h)^2), which is 1e-17 at h = s / 2; an
    h of s / 4 leaves room for numbers that the step makes longer. A step with weight decay also
    rounds lr weight_decay w, which may be longer than the model w.
    """
    if not noise_adds_up(config):
        return ""
    privacy, terms = config.privacy, config.secure_aggregation
    assert privacy
    assert terms
    step = lr * privacy.max_grad_norm
    noise = step * privacy.noise_multiplier / min(config.batch_size, samples)
    largest = max(float(row.abs().max()) for row in received.values() if row.numel())
    longest = step + (1 + lr * config.weight_decay) * largest
    of_model = math.ulp(longest) * 2**29  # float32 has 29 bits less than float64
    of_sum = sum(roster.sizes) / (samples * scale(terms))
    if max(of_model, of_sum) <= noise / 4 or not noise:  # without noise there is no bound
        return ""
    remedy = "set secure_aggregation.bits = 64, or lower max_norm" if of_sum > of_model else ""
    return (
        f"numbers of {max(of_model, of_sum):.2g} are too coarse for noise of {noise:.2g}, so that "
        f"privacy.honest does not hold; {remedy or 'raise lr, or lower weight_decay or batch_size'}"
    )
