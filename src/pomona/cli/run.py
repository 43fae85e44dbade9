"""``pomona run`` and ``pomona demo``.

What trains is imported when the command line and its files have been read.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pomona.cli.arguments import config_of, option, scenario_options
from pomona.cli.output import Figures, Flag, Json, echo_stderr, emit, respond
from pomona.core.errors import ConfigError
from pomona.results.figures.plot import parse_formats
from pomona.storage.run_status import last_round

if TYPE_CHECKING:
    from pomona.config import Config

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
    data: str | None = None,
    partition: str | None = None,
    data_dir: Path | None = None,
    out: Path | None = None,
    resume: Flag = False,
    report: bool = True,
    figures: Figures = "",
    live: Flag = False,
    dry_run: Flag = False,
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
    data
        data set, see `pomona data list`
    partition
        partition, see `pomona data list`
    data_dir
        folder of data sets; default POMONA_DATA
    out
        folder for the record; default runs/METHOD-DATA-TIME
    resume
        continue after the last committed round in --out
    report
        write the report page at the end
    live
        write the page after each round; an open page reloads
    dry_run
        print the resolved settings and stop
    """
    formats = _figure_formats(figures, report)
    config = _config(method, words, scenario_options(data, data_dir, partition))
    if dry_run:
        if json:
            emit(config.tree())
        else:
            print(config.toml(), end="")
        return
    from pomona.cli import run_outcome
    from pomona.results.web.report_page import write

    if resume and not out:
        raise ConfigError("--resume needs the folder of a run; name it with --out")
    folder = out or _default_folder(config)

    with _hint_if_interrupted(folder, config.rounds):
        scenario = run_outcome.prepared(config)
        if not out:
            echo_stderr(f"record: {folder}")  # whoever stops it needs the folder to continue
        result = run_outcome.run_with_progress(scenario, folder, resume, live)
    page = write([result], folder, formats) if report else None
    if json:
        lines = [note.text for note in result.notes]
        emit({**result.summary, "notes": lines, "folder": folder, "report": page})
        return
    run_outcome.print_summary(result, folder, page)


def _figure_formats(figures: str, report: bool) -> tuple[str, ...]:
    """Return the formats of figures as files."""
    formats = parse_formats(figures)
    if formats and not report:
        raise ConfigError("--figures go with the report page; leave --no-report out")
    return formats


def _config(
    method: str, arguments: Sequence[str], options: Sequence[Mapping[str, Any]]
) -> "Config":
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
    if completed:
        return f"{command} continues after round {completed} of {rounds}"
    return f"{command} starts again"


def _default_folder(config: "Config") -> Path:
    """Return the default folder of a run, named after method, data and time."""
    name = f"{config.method.name}-{config.data.name}".replace(":", ".")
    return Path("runs") / f"{name}-{datetime.now(UTC):%Y%m%d-%H%M%S-%f}"


def demo(*, out: Path | None = None, seed: int = 0, json: Json = False) -> None:
    """Compare training alone, FedAvg and four personalized methods on scikit-learn's digits.

    Twenty-four clients of about 32 training images in four hidden groups of six; each group's
    images are rotated by a different multiple of 90 degrees.

    Parameters
    ----------
    out
        folder for all output; default pomona-demo, pomona-demo-2, ...
    seed
        seed of all random numbers
    """
    from pomona.cli.run_outcome import prepared, run_with_progress
    from pomona.config import resolve
    from pomona.results import table as result_table
    from pomona.results.summary_table import run_table
    from pomona.results.web.report_page import write

    out = out or unused("pomona-demo")
    configs = [resolve(DEMO, settings, {"seed": seed}) for settings in DEMO_METHODS]
    results = [run_with_progress(prepared(c), out / c.method.name) for c in configs]
    page = write(results, out)
    rows = result_table(results)
    folders = [result.folder for result in results]
    respond(
        json,
        {"results": rows, "report": page, "runs": folders},
        run_table(rows),
        f"{DEMO['clients']} clients with about 32 training images each, 4 hidden groups, each "
        f"with its images rotated differently; {DEMO['rounds']} rounds, seed {seed}; clients "
        "with hundreds of images gain little",
        f"report   {page}",
        f"records  {', '.join(map(str, folders))}",
        f"next     pomona predict {out}/apple/models/client-00.safetensors IMAGE, or pomona "
        "run --help",
    )


def unused(name: str) -> Path:
    """Return the first of NAME, NAME-2, NAME-3, ... that does not exist."""
    names = chain((name,), (f"{name}-{n}" for n in count(2)))
    return next(path for path in map(Path, names) if not path.exists())
