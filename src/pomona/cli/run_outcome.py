"""A run with its progress line, and what is printed of its result."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pomona.cli.output import activity, echo, print_table, size
from pomona.cli.progress import following, progress_display
from pomona.config import Config, resolve
from pomona.core.attack import Attack
from pomona.federation.callbacks import CallbackList
from pomona.privacy.settings import groups_note
from pomona.record.result import Result
from pomona.record.run_summary import attack_of
from pomona.results import table as result_table
from pomona.results.summary_table import run_table
from pomona.results.tables.participation import rounds_naming, spans
from pomona.results.wording import counted
from pomona.scenario import Scenario
from pomona.simulation import simulate
from pomona.tasks import TASKS


def prepared(config: Config, prepare: Callable[[Config], Scenario] = Scenario.prepare) -> Scenario:
    """Read the data of a run, saying so."""
    with activity(f"reading {config.data.name}"):
        return prepare(config)


def run_with_progress(
    scenario: Scenario, folder: Path, resume: bool = False, live: bool = False
) -> Result:
    """Run with a progress line, and optionally a live page."""
    with progress_display() as display, following(folder if live else None) as pages:
        progress = display(scenario.config)
        result = simulate(scenario, folder, CallbackList(progress, *pages), resume)
        progress.on_run_end(result)
        return result


def print_summary(result: Result, folder: Path, page: Path | None) -> None:
    """Print the table of a run, then its notes, a line each."""
    s, c = result.summary, result.config
    figures = s["models"].get(s["headline"])
    echo(
        f"{result.name} on {c['data']['name']}, {c['partition']['name']}, "
        f"{len(result.about['clients'])} clients"
    )
    if rows := result_table([result]):
        print_table(run_table(rows))
    report_path = f", report {page}" if page else ""
    echo(
        *_findings(result, figures),
        _effort(result),
        f"written  {folder}{report_path}",
        f"next     pomona compare {folder} OTHER..., or {_prediction(result, folder)}",
    )


def _findings(result: Result, figures: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield what the table of a run does not say, a line each."""
    s = result.summary
    if figures:
        undefined = f"test {result.metric.heading}: undefined for every client"
        yield _rounds(figures) if figures["last"] else undefined
    if constant := _constant(result):
        yield constant
    if attack := attack_of(result):
        yield from _attack_lines(result, attack, figures)
    if stopped := s.get("stopped"):
        yield stopped
    if diverging := s.get("diverging"):
        yield f"diverging: {diverging}"
    if unseen := s["unseen"].get(s["headline"]):
        yield _never_trained(result, unseen)
    if privacy := s.get("privacy"):
        yield _privacy_line(privacy)


def _rounds(figures: Mapping[str, Any]) -> str:
    """Return the rounds of the table's values for the headline model."""
    names = {"last": "last", "best_validation": "best on validation", "best_test": "best on test"}
    rounds = [f"{title} {figures[key]['round']}" for key, title in names.items() if figures[key]]
    return f"rounds   {', '.join(rounds)}"


def _prediction(result: Result, folder: Path) -> str:
    """Return the command that predicts with the run's models."""
    if result.config["data"].get("client_column") is not None:
        return f"pomona predict {folder} TABLE (each row by its own client's model)"
    name = result.about["clients"][0]
    return f"pomona predict {folder}/models/client-00.safetensors INPUT (the model of {name})"


def _attack_lines(
    result: Result, attack: Attack, figures: Mapping[str, Any] | None
) -> Iterator[str]:
    """Return lines on an attack: who lied, when it was noticed, and the honest clients' results."""
    detected = [(row.round, (*row.refused, *row.limited)) for row in result.rounds]
    names = [result.about["clients"][i] for i in attack.clients]
    detected_rounds = {name: rounds_naming(name, detected) for name in names}
    attackers = [
        f"{name.removeprefix('client ')} ({f'noticed in rounds {spans(r)}' if r else 'unnoticed'})"
        for name, r in detected_rounds.items()
    ]
    yield f"attackers: {attack.description}; clients {', '.join(attackers)}"
    if figures and figures.get("honest"):
        n, mean = len(attack.honest(result.clients)), figures["honest"]["mean"]
        yield (
            f"honest clients ({n}): mean {result.metric.title} {result.metric.text(mean)} in the "
            "last round"
        )
    if (share := (result.summary.get("backdoor") or {}).get("mean")) is not None:
        yield f"backdoor: {share:.1%} of their test samples of other classes, with the trigger"


def _never_trained(result: Result, unseen: Mapping[str, Any]) -> str:
    rounds, metric = resolve(result.config).adapt_rounds, result.metric
    return (
        f"clients not in training: {len(unseen['clients'])}, mean test {metric.title}"
        f" {metric.text(unseen['mean'])} after {rounds} round{'s' * (rounds > 1)} of local training"
    )


def _privacy_line(privacy: Mapping[str, Any]) -> str:
    epsilon, void = privacy["epsilon"], privacy["void"]
    bound = (
        "no bound" if epsilon is None else f"epsilon {epsilon:.3g} at delta {privacy['delta']:g}"
    )
    if own_noise := privacy.get("alone"):
        largest = "no bound" if None in own_noise else f"{max(own_noise):.3g}"
        bound += f" counting the other clients' noise in the sums, {largest} by its own alone"
    line = f"privacy: the client that spent most has {bound}, for one {privacy['unit']}"
    if (groups := privacy.get("groups")) and not void:
        line += f"; {groups_note(groups['rows'], groups['clients'])}"
    return line + (f"; {void}" if void else "")


def _effort(result: Result) -> str:
    """Rounds, time and traffic."""
    s, per_round = result.summary, max(1, len(result.rounds))
    seconds = sum(row.seconds for row in result.rounds)
    busy = f"; all workers busy {s['busy_share']:.0%} of the time" if "busy_share" in s else ""
    return (
        f"{counted(s['rounds'], 'round')} in {seconds:.1f} s of training; "
        f"{size(s['bytes_down'])} down, {size(s['bytes_up'])} up"
        f" ({size((s['bytes_down'] + s['bytes_up']) / per_round)} a round){busy}"
    )


def _constant(result: Result) -> str:
    """Return the score of a constant prediction, to compare with; empty if it is not recorded."""
    metric = result.metric
    mean = ((result.about.get("constant") or {}).get("own", {}).get(metric.name) or {}).get("mean")
    answer = TASKS[result.about["targets"]].constantly
    if mean is None:
        return ""
    return f"a client that always answers {answer} would score {metric.text(mean)} on average"
