"""An audit of a recorded run: all attacks, on the run as it is and with differential privacy."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pomona.audit.budgets import at_epsilon
from pomona.audit.findings import Findings, assess
from pomona.audit.first_uplink import BATCHES, Rebuilt, rebuilt, unfit
from pomona.audit.shadows import Plan, divided, run_all
from pomona.config import resolve
from pomona.core.files import own, writing
from pomona.record.result import Result
from pomona.scenario import Scenario

RUNS = 32
Told = Callable[[str, int, int], None]  # (what, done, of)


@dataclass(frozen=True)
class Measured:
    """What was found at one budget.

    Attributes:
        findings: the numbers.
        pictures: records rebuilt from first messages, by batch size.
    """

    findings: Findings
    pictures: dict[int, list[Rebuilt]]


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
    out: Path,
    runs: int = RUNS,
    epsilons: Sequence[float] = (),
    told: Told = lambda *_: None,
) -> Audit:
    """Attack a recorded run, making the shadow runs that ``out`` lacks.

    Args:
        result: the run, with its folder.
        out: folder for everything written.
        runs: how many runs are attacked, the recorded one among them.
        epsilons: also attack the run with differential privacy of each.
        told: called with what is done, how much of it, and of how much.

    Raises:
        ConfigError: the run cannot be audited.
    """
    plan = Plan.of(result, resolve(result.config), own(out, "shadows"))
    with writing(out):
        out.mkdir(parents=True, exist_ok=True, mode=0o700)  # its page may show records
    scenario = divided(plan.config, plan.partition, plan.folder)
    plans: list[tuple[float | None, Plan]] = [(None, plan)]
    for epsilon in epsilons:
        told(f"noise for epsilon {epsilon:g}", 0, 1)
        privacy = at_epsilon(scenario, epsilon)
        config = plan.config.model_copy(update={"privacy": privacy, "engine": "torch"})
        plans.append((epsilon, replace(plan, config=config)))
    reason = unfit(scenario)
    made = [_measured(each, runs, epsilon, not reason, told) for epsilon, each in plans]
    return Audit(result, scenario, made, out, f"{reason}" if reason else "")


def _measured(plan: Plan, runs: int, epsilon: float | None, pictures: bool, told: Told) -> Measured:
    """Attack the runs of one plan."""
    at = "" if epsilon is None else f" at epsilon {epsilon:g}"
    shadows = run_all(plan, runs, lambda done, of: told(f"shadow runs{at}", done, of))
    delta = plan.config.privacy.delta if plan.config.privacy else 0.0
    findings = assess(shadows, delta, epsilon)
    found: dict[int, list[Rebuilt]] = {}
    for done, batch in enumerate(BATCHES if pictures else ()):
        told(f"records from first messages{at}", done, len(BATCHES))
        found[batch] = rebuilt(plan.config, plan.partition, plan.folder, batch)
    return Measured(findings, found)
