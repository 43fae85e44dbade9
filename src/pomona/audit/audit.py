"""An audit of a recorded run: all attacks, on the run as it is and with differential privacy."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from pathlib import Path

from pomona.audit import RUNS
from pomona.audit.findings import Findings, assess
from pomona.audit.first_uplink import BATCHES, Reconstruction, reconstruct, unfit
from pomona.audit.shadows import Plan, run_all, scenario_with
from pomona.config import resolve
from pomona.core.errors import ConfigError
from pomona.core.files import safe_path, writing
from pomona.privacy.settings import Privacy, uncovered
from pomona.record.result import Result
from pomona.scenario import Scenario
from pomona.scenario.description import epsilons

ProgressCallback = Callable[[str, int, int], None]  # (stage, count, total)


@dataclass(frozen=True)
class Measured:
    """Results at one budget.

    Attributes:
        findings: the numbers.
        pictures: records rebuilt from first messages, by batch size.
    """

    findings: Findings
    pictures: dict[int, list[Reconstruction]]


@dataclass(frozen=True)
class Audit:
    """An audit of a run.

    Attributes:
        result: the run.
        scenario: its data, partition and network.
        measured: of the run as it is, then with each epsilon.
        folder: of its files.
        unfit: why no records were rebuilt; empty if they were.
    """

    result: Result
    scenario: Scenario
    measured: list[Measured]
    folder: Path
    unfit: str = ""


def audit(
    result: Result,
    folder: Path,
    runs: int = RUNS,
    epsilons: Sequence[float] = (),
    report_progress: ProgressCallback = lambda *_: None,
) -> Audit:
    """Attack a recorded run, making the shadow runs that are missing in ``folder``.

    Args:
        result: the run, with its folder.
        folder: for everything written.
        runs: how many runs are attacked, the recorded one among them.
        epsilons: also attack the run with differential privacy of each.
        report_progress: called with the stage, the count so far and the total.

    Raises:
        ConfigError: the run cannot be audited.
    """
    plan = Plan.for_run(result, resolve(result.config), safe_path(folder, "shadows"))
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)  # its page may show records
    scenario = scenario_with(plan.config, plan.partition, plan.folder)
    plans: list[tuple[float | None, Plan]] = [(None, plan)]
    for epsilon in epsilons:
        report_progress(f"noise for epsilon {epsilon:g}", 0, 1)
        privacy = at_epsilon(scenario, epsilon)
        config = plan.config.model_copy(update={"privacy": privacy, "engine": "torch"})
        plans.append((epsilon, replace(plan, config=config)))
    reason = unfit(scenario)
    measurements = [
        _measure(budget_plan, runs, epsilon, not reason, report_progress)
        for epsilon, budget_plan in plans
    ]
    return Audit(result, scenario, measurements, folder, f"{reason}" if reason else "")


def _measure(
    plan: Plan, runs: int, epsilon: float | None, pictures: bool, report_progress: ProgressCallback
) -> Measured:
    """Attack the runs of one plan."""
    suffix = "" if epsilon is None else f" at epsilon {epsilon:g}"
    shadows = run_all(
        plan, runs, lambda count, total: report_progress(f"shadow runs{suffix}", count, total)
    )
    delta = plan.config.privacy.delta if plan.config.privacy else 0.0
    findings = assess(shadows, delta, epsilon)
    reconstructions: dict[int, list[Reconstruction]] = {}
    for count, batch in enumerate(BATCHES if pictures else ()):
        report_progress(f"records from first messages{suffix}", count, len(BATCHES))
        reconstructions[batch] = reconstruct(plan.config, plan.partition, plan.folder, batch)
    return Measured(findings, reconstructions)


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
        return max(epsilons(replace(scenario, config=changed))) <= epsilon

    low, high = WIDEST
    if not fits(high):
        raise ConfigError(f"--epsilon {epsilon:g} cannot be reached; give a larger one")
    for _ in range(HALVINGS):
        middle = sqrt(low * high)
        low, high = (low, middle) if fits(middle) else (middle, high)
    return noised(high)
