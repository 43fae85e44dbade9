"""``pomona run`` and ``pomona demo``."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import chain, count
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from pomona.cli.output import (
    Figures,
    Json,
    config_of,
    console,
    echo,
    echo_stderr,
    emit,
    option,
    print_table,
    scenario_options,
    size,
)
from pomona.cli.progress import progress_display
from pomona.config import Config, resolve
from pomona.core.attack import Attack
from pomona.core.errors import ConfigError
from pomona.federation.callbacks import CallbackList
from pomona.privacy.settings import groups_note
from pomona.record.result import Result
from pomona.record.run_summary import attack_of
from pomona.results import table as result_table
from pomona.results.figures.plot import parse_formats
from pomona.results.summary_table import run_table
from pomona.results.tables.liars import rounds_naming, spans
from pomona.results.web.live_run_page import following
from pomona.results.web.report_page import write
from pomona.scenario import Scenario
from pomona.simulation import simulate
from pomona.storage.run_status import last_round
from pomona.tasks import TASKS

DEMO: dict[str, Any] = {
    "data": {"name": "digits", "test_share": 0.5},
    "partition": {"name": "iid", "turn_groups": 4},
    "model": {"name": "mlp", "hidden": [64]},
    "clients": 24,
    "rounds": 40,
    "batch_size": 16,
    "engine": "torch",  # the same numbers on every machine
    "checkpoint_every": 10,
}
# Rates and FedAMP's lambda are the best on validation data, see docs/results/demo.md
DEMO_METHODS: tuple[dict[str, Any], ...] = (
    {"method": {"name": "separate"}, "lr": 0.3},
    {"method": {"name": "fedavg"}, "lr": 1.0},
    {"method": {"name": "fedamp", "lambda": 0.1}, "lr": 0.3},
    {"method": {"name": "fedala"}, "lr": 1.0},
    {"method": {"name": "fedfomo"}, "lr": 0.3},
    {"method": {"name": "apple", "core_step": "local"}, "lr": 0.6},
)


def run(
    method: str,
    *words: str,
    data: Annotated[str | None, Parameter(help="data set, see `pomona data list`")] = None,
    partition: Annotated[str | None, Parameter(help="partition, see `pomona data list`")] = None,
    data_dir: Annotated[
        Path | None, Parameter(help="folder of data sets; default POMONA_DATA")
    ] = None,
    out: Annotated[
        Path | None, Parameter(help="folder for the record; default runs/METHOD-DATA-TIME")
    ] = None,
    resume: Annotated[
        bool, Parameter(negative="", help="continue after the last committed round in --out")
    ] = False,
    report: Annotated[bool, Parameter(help="write the report page at the end")] = True,
    figures: Figures = "",
    live: Annotated[
        bool, Parameter(negative="", help="write the page after each round; an open page reloads")
    ] = False,
    dry_run: Annotated[
        bool, Parameter(negative="", help="print the resolved settings and stop")
    ] = False,
    json: Json = False,
) -> None:
    """Train one federation and record it.

    Parameters
    ----------
    method
        a name from `pomona methods`, or your own module:Class; if left out, the first TOML file
        names it
    words
        TOML files and key=value settings, for example rounds=10 method.mu=0.1
    """
    formats = _figure_formats(figures, report)
    config = _config(method, words, scenario_options(data, data_dir, partition))
    if dry_run:
        emit(config.tree()) if json else print(config.toml(), end="")
        return
    if resume and not out:
        raise ConfigError("--resume needs the folder of a run; name it with --out")
    folder = out or _default_folder(config)
    if not out:
        echo_stderr(f"record: {folder}")  # whoever stops it needs the folder to continue
    with _hint_if_interrupted(folder, config.rounds):
        result = run_with_progress(config, folder, resume, live)
    page = write([result], folder, formats) if report else None
    if json:
        lines = [note.text for note in result.notes]
        emit({**result.summary, "notes": lines, "folder": folder, "report": page})
        return
    print_summary(result, folder, page)


def _figure_formats(figures: str, report: bool) -> tuple[str, ...]:
    """Return the formats of figures as files."""
    formats = parse_formats(figures)
    if formats and not report:
        raise ConfigError("--figures go with the report page; leave --no-report out")
    return formats


def _config(method: str, arguments: Sequence[str], options: Sequence[Mapping[str, Any]]) -> Config:
    """Return the settings of a run; the command line or its first file names the method."""
    if Path(method).suffix == ".toml":
        config = config_of((method, *arguments), *options)
        if "method" not in config.model_fields_set:
            raise ConfigError(
                f"{method} does not name a method; add method = 'NAME' to it, or run: pomona run "
                f"NAME {method}"
            )
        return config
    config = config_of(arguments, option("method", "name", method), *options)
    if config.method.name != method:
        raise ConfigError(f"run {method}, but method.name = {config.method.name}; name one method")
    return config


@contextmanager
def _hint_if_interrupted(folder: Path, rounds: int) -> Iterator[None]:
    """Say on Ctrl-C how to continue."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_resume_hint(folder, rounds)) from None


def _resume_hint(folder: Path, rounds: int) -> str:
    """Return how to continue after Ctrl-C; empty if the run has not started."""
    if not folder.exists():
        return ""
    command = f"the same command with --out {folder} --resume"
    completed = last_round(folder)
    return (
        f"{command} continues after round {completed} of {rounds}"
        if completed
        else f"{command} starts again"
    )


def _default_folder(config: Config) -> Path:
    """Return the default folder of a run, named after method, data and time."""
    name = f"{config.method.name}-{config.data.name}".replace(":", ".")
    return Path("runs") / f"{name}-{datetime.now(UTC):%Y%m%d-%H%M%S-%f}"


def demo(
    *,
    out: Annotated[
        Path | None,
        Parameter(help="folder for all output; default pomona-demo, pomona-demo-2, ..."),
    ] = None,
    seed: Annotated[int, Parameter(help="seed of all random numbers")] = 0,
    json: Json = False,
) -> None:
    """Compare training alone, FedAvg and four personalized methods on scikit-learn's digits.

    Twenty-four clients of about 32 training images in four hidden groups of six; each group's
    images are rotated by a different multiple of 90 degrees.
    """
    out = out or unused("pomona-demo")
    configs = [resolve(DEMO, settings, {"seed": seed}) for settings in DEMO_METHODS]
    results = [run_with_progress(config, out / config.method.name) for config in configs]
    page = write(results, out)
    rows = result_table(results)
    if json:
        emit({"results": rows, "report": page, "runs": [r.folder for r in results]})
        return
    print_table(run_table(rows))
    echo(
        (
            f"{DEMO['clients']} clients with about 32 training images each, 4 hidden groups, each "
            f"with its images rotated differently; {DEMO['rounds']} rounds, seed {seed}; clients "
            "with hundreds of images gain little"
        ),
        f"report   {page}",
        f"records  {', '.join(str(r.folder) for r in results)}",
        (
            f"next     pomona predict {out}/apple/models/client-00.safetensors IMAGE, or pomona "
            "run --help"
        ),
    )


def unused(name: str) -> Path:
    """Return the first of NAME, NAME-2, NAME-3, ... that does not exist."""
    names = chain((name,), (f"{name}-{n}" for n in count(2)))
    return next(path for path in map(Path, names) if not path.exists())


def run_with_progress(
    config: Config,
    folder: Path,
    resume: bool = False,
    live: bool = False,
    prepare: Callable[[Config], Scenario] = Scenario.prepare,
) -> Result:
    """Run with a progress line, and optionally a live page."""
    with console.status(f"reading {config.data.name}"):
        scenario = prepare(config)
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
        f"{s['rounds']} rounds in {seconds:.1f} s; {size(s['bytes_down'])} down, "
        f"{size(s['bytes_up'])} up"
        f" ({size((s['bytes_down'] + s['bytes_up']) / per_round)} a round){busy}"
    )


def _constant(result: Result) -> str:
    """Return the score of a constant prediction, to compare with; empty if it is not recorded."""
    metric = result.metric
    mean = ((result.about.get("constant") or {}).get("own", {}).get(metric.name) or {}).get("mean")
    answer = TASKS[result.about["targets"]].constantly
    return (
        ""
        if mean is None
        else f"a client that always answers {answer} has {metric.text(mean)} on average"
    )
