"""What a simulation records at its end: answers, metrics, coefficients, privacy, in the summary."""

from collections.abc import Callable, Sequence
from functools import partial
from math import isfinite
from typing import Any

from pomona.config import Config
from pomona.core.bounds import Stage
from pomona.core.notes import Note
from pomona.federation import client_queries
from pomona.federation.client import ClientRuntime
from pomona.federation.noise_in_sums import noise_adds_up
from pomona.federation.transport import Inline
from pomona.federation.workers import Workers
from pomona.personal.coefficients import coefficients, linear, recorded_rows
from pomona.personal.collect import backdoor
from pomona.record.run_folder import RunRecord
from pomona.scenario import Scenario
from pomona.scenario.description import groups_of_test_rows, largest_groups, unprotected_groups


def collect_totals(
    scenario: Scenario,
    transport: Inline | Workers,
    record: RunRecord,
    headline: tuple[str, Stage],
    best: int,
) -> dict[str, Any]:
    """Record the clients' answers and final metrics; return further content of the summary.

    ``best``: the best common validation round, to which they refer with ``keep = best``.
    """
    config = scenario.config
    clients = tuple(range(config.clients))
    results = transport.collect(
        partial(client_queries.final_metrics, model=headline, best=best), clients
    )
    record.answers(
        {i: answers for i, (answers, _) in enumerate(results) if answers is not None},
        groups_of_test_rows(scenario),
    )
    for _, metrics in results:
        for values in metrics:
            record.event("final", **values)
    if linear(scenario):
        models = transport.collect(partial(recorded_rows, best=best), clients)
        for values in coefficients(scenario, models):
            record.event("coefficients", **values)
            if not values["terms"]:
                record.note(Note(f"no coefficients: {values['reason']}", "training"))

    filed = sum(transport.collect(client_queries.filed, clients)) + transport.copies.filed
    content: dict[str, Any] = {"state_files_bytes": filed}
    if (share := transport.busy_share) is not None:
        content["busy_share"] = share
    if config.attack and config.attack.kind == "backdoor":
        content["backdoor"] = backdoor(scenario, config.attack, transport, headline, best)
    return content | _privacy_section(scenario, transport, clients)


def _privacy_section(
    scenario: Scenario, transport: Inline | Workers, clients: Sequence[int]
) -> dict[str, Any]:
    """Return the summary's privacy section from the clients' ledgers; empty without privacy."""

    def answers(query: Callable[[ClientRuntime, int], Any], applies: object) -> list[Any] | None:
        return transport.collect(query, clients) if applies else None

    config = scenario.config
    epsilons = answers(client_queries.epsilon, config.privacy)
    local_epsilons = answers(client_queries.epsilon_alone, noise_adds_up(config))
    by_groups = answers(client_queries.epsilon_by_groups, unprotected_groups(scenario))
    section = privacy(config, epsilons, local_epsilons)
    if section and by_groups:
        rows, bounds = largest_groups(scenario), _bounded(by_groups)
        section["privacy"]["groups"] = {"rows": rows, "clients": bounds}
    return section


def privacy(
    config: Config, epsilons: Sequence[float] | None, local_epsilons: Sequence[float] | None = None
) -> dict[str, Any]:
    """Return the summary's privacy section: each client's epsilon, None if unbounded, and its unit;
    where the noise of several clients adds up, also by its own noise alone.
    """
    if not config.privacy or epsilons is None:
        return {}
    bounded = _bounded(epsilons)
    worst = None if None in bounded else max(epsilons)
    p = config.privacy
    section = {
        "epsilon": worst,
        "delta": p.delta,
        "unit": p.unit,
        "clients": bounded,
        "void": config.void,
    }
    return {"privacy": section | ({"alone": _bounded(local_epsilons)} if local_epsilons else {})}


def _bounded(epsilons: Sequence[float]) -> list[float | None]:
    return [e if isfinite(e) else None for e in epsilons]
