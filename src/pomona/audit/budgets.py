"""The audited run with differential privacy of a given epsilon."""

from dataclasses import replace
from math import sqrt

from pomona.core.errors import ConfigError
from pomona.privacy.settings import Privacy, uncovered
from pomona.scenario import Scenario

WIDEST, HALVINGS = (0.1, 1000.0), 12  # noise multipliers that are tried
CLIPPING = 1.0  # norm of a sample's gradient, for a run without privacy


def at_epsilon(scenario: Scenario, epsilon: float) -> Privacy:
    """Return the settings of privacy with the least noise whose projected epsilon is at most this.

    Clipping, delta and accountant are the run's, if it has them; else norm 1, and delta a tenth of
    1 / n of the largest client with its test records. Everything that the bound does not cover is
    acknowledged.

    Raises:
        ConfigError: no epsilon bounds the method, or none as small.
    """
    config, card = scenario.config, scenario.config.method.method().card
    if card.privacy.not_private:
        raise ConfigError(card.privacy.not_private)
    if exact := [r for r in card.privacy.releases if r.exact]:
        raise ConfigError(
            f"no epsilon bounds {config.method.name}: {exact[0].content}; leave --epsilon out"
        )
    largest = max(len(c.train) + len(c.test) for c in scenario.partition.clients)
    base = config.privacy or Privacy(
        noise_multiplier=1.0, max_grad_norm=CLIPPING, delta=0.1 / largest
    )
    base = base.model_copy(update={"epsilon_budget": None, "seed": None})
    names = [
        r.name for r in uncovered(base, card.privacy.releases, scenario.dataset.kind, True, True)
    ]
    base = base.model_copy(
        update={"acknowledge": tuple(dict.fromkeys((*base.acknowledge, *names)))}
    )

    def noised(sigma: float) -> Privacy:
        return base.model_copy(update={"noise_multiplier": sigma})

    def fits(sigma: float) -> bool:
        changed = config.model_copy(update={"privacy": noised(sigma)})
        return max(replace(scenario, config=changed).epsilons()) <= epsilon

    low, high = WIDEST
    if not fits(high):
        raise ConfigError(f"--epsilon {epsilon:g} cannot be reached; give a larger one")
    for _ in range(HALVINGS):
        middle = sqrt(low * high)
        low, high = (low, middle) if fits(middle) else (middle, high)
    return noised(high)
