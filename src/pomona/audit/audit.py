"""An audit of a recorded run: all attacks, on the run as it is and with differential privacy."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pomona.audit.budgets import at_epsilon
from pomona.audit.findings import Findings, assess
from pomona.audit.first_uplink import BATCHES, Reconstruction, reconstruct, unfit
from pomona.audit.shadows import Plan, run_all, scenario_with
from pomona.config import resolve
from pomona.core.files import safe_path, writing
from pomona.record.result import Result
from pomona.scenario import Scenario

RUNS = 32
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
