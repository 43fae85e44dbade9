"""What a scenario's privacy settings protect, and how well, before it is run."""

from functools import cache

from pomona.objective.dataset import groups_of
from pomona.objective.dataset import largest_groups as largest_groups_of
from pomona.privacy.accounting import epsilon, of_groups, projected
from pomona.scenario.scenario import Scenario


def unprotected_groups(scenario: Scenario) -> bool:
    """Return whether epsilon is of a row, and some client has several training rows of a group."""
    privacy = scenario.config.privacy
    return privacy is not None and privacy.unit == "row" and max(largest_groups(scenario)) > 1


def largest_groups(scenario: Scenario) -> list[int]:
    """Return the most training samples that one group has, for each client."""
    return largest_groups_of(groups_of(scenario.dataset), scenario.partition)


def epsilons(scenario: Scenario, own_noise_only: bool = False, groups: bool = False) -> list[float]:
    """Return upper bounds of each client's epsilon for the whole run.

    Args:
        scenario: with privacy.
        own_noise_only: by its own noise alone.
        groups: for all training samples of any one of its groups.

    Raises:
        ConfigError: the accountants are not installed.
    """
    c = scenario.config
    assert c.privacy
    settings = c.privacy.alone if own_noise_only else c.privacy
    gradients, unseen = c.method.method().card.privacy.gradients, c.membership.unseen
    clients = scenario.partition.clients
    rows = largest_groups(scenario) if groups else [1] * len(clients)

    @cache
    def cost(n: int, rounds: int, rows: int) -> float:
        history = projected(settings, n, c.batch_size, gradients, c.passes, rounds)
        return epsilon(settings, of_groups(history, rows))

    return [
        cost(len(client.train), c.adapt_rounds if i in unseen else c.rounds, rows[i])
        for i, client in enumerate(clients)
    ]
