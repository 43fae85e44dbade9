"""``pomona bench``: a table of methods and scenarios, tuned, run in parallel, resumable."""

import sys
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import nullcontext
from copy import deepcopy
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from pomona.cli.output import Figures, Flag, Json, StatusLine, echo, emit, print_table
from pomona.config import Config, merge, read_overrides
from pomona.core.errors import ConfigError
from pomona.core.table import of_records
from pomona.core.toml import Tree
from pomona.experiments import Bench, read_suite, run
from pomona.experiments.bench_results import RESULTS, TIMING
from pomona.experiments.bench_table import at_the_edge, grid, heading, reasons, still_to_run, values
from pomona.experiments.executors import on_cluster
from pomona.experiments.grid import Group
from pomona.experiments.grid import plan as plan_of
from pomona.experiments.job import JobState
from pomona.experiments.suite import Size, Suite, suite_file, suites
from pomona.results.comparison import comparison
from pomona.results.figures.plot import parse_formats
from pomona.results.tables.by_client import gains_table
from pomona.results.web.comparison_page import write

FILES = ("table.md", "table.csv", RESULTS)
SEVERAL = Parameter(consume_multiple=(1, None), negative="", show_default=False)  # --methods a b


def bench(
    suite: str | None = None,
    *words: str,
    size: Size = "cpu",
    scenarios: Annotated[tuple[str, ...], SEVERAL, Parameter(help="run these scenarios only")] = (),
    methods: Annotated[tuple[str, ...], SEVERAL, Parameter(help="run these methods only")] = (),
    seeds: Annotated[
        tuple[str, ...], SEVERAL, Parameter(help="run these seeds in place of the suite's")
    ] = (),
    out: Path | None = None,
    cluster: str | None = None,
    jobs: int | None = None,
    retry: Flag = False,
    share: Flag = False,
    explain: Flag = False,
    figures: Figures = "",
    json: Json = False,
) -> None:
    """Run or resume a suite: repeating the command keeps finished runs.

    Without a suite, list the known ones.

    Another part of the suite, or the whole, can be run in the same folder. Exit code 1 if a
    requested cell failed; the others are still finished and tabulated.

    Parameters
    ----------
    suite
        a suite's TOML file, or the name of one that comes with the package
    words
        key=value settings of every run, over those of the suite, for example rounds=10 device=cpu
    size
        which of the suite's sizes
    out
        folder of the bench; default runs/SUITE-SIZE
    cluster
        a Ray cluster: host:port or ray, as in the setting cluster; its nodes must see --out and the
        data at the same paths
    jobs
        processes on this machine; default one per core
    retry
        run failed cells again
    share
        share the runs with other processes on the same --out: for an array of jobs
    explain
        print what would run, and stop
    """
    formats = parse_formats(figures)
    if suite is None:
        _list_suites(json)
        return
    file = suite_file(suite)
    folder = out or Path("runs") / f"{file.stem}-{size}"
    plan = read_suite(file)
    scenarios, behind_scenarios = _split("--scenarios", scenarios, plan.scenario)
    methods, behind_methods = _split("--methods", methods, plan.method)
    seeds, behind_seeds = _split("--seeds", seeds, ())
    settings = deepcopy(plan.settings)
    merge(settings, read_overrides((*words, *behind_scenarios, *behind_methods, *behind_seeds)))
    plan = (plan.seeded(seeds) if seeds else plan).model_copy(update={"settings": settings})
    selection = {"scenarios": scenarios, "methods": methods}
    if explain:
        _explain(plan, size, scenarios, methods, json)
        return
    try:
        executor = on_cluster(cluster, folder) if cluster else nullcontext()
        with executor as workers, StatusLine() as line:
            outcome = run(
                plan,
                folder,
                workers,
                size=size,
                **selection,
                jobs=workers.cores if workers and jobs is None else jobs,
                retry=retry,
                share=share,
                watch=BenchProgress(line),
            )
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"run the same command again to continue; finished cells are in {folder}"
        ) from None
    requested = outcome.select(**selection)
    page = write(outcome, folder, formats) if formats else None
    _print_outcome(requested, still_to_run(outcome.results), page, json)
    if "failed" in requested.counts:
        sys.exit(1)


def _explain(
    suite: Suite, size: Size, scenarios: tuple[str, ...], methods: tuple[str, ...], json: bool
) -> None:
    """Print the runs of each method in each scenario, with the settings that differ from the
    defaults.
    """
    pairs = suite.pairs(size, scenarios, methods)
    groups = [group for group in plan_of(suite, size) if (group.scenario, group.method) in pairs]
    entries: list[dict[str, Any]] = [
        {
            "scenario": group.scenario,
            "method": group.method,
            "points": len(group.points),
            "seeds": len(group.finals[0]),
            "runs": len({cell.folder for cell in (*group.trials, *group.finals[0])}),
            "searched": {
                key: list(values) for key, values in suite.space(size, group.method).items()
            },
            "settings": own_settings(group.finals[0][0].config),
        }
        for group in groups
    ]
    if json:
        emit(entries)
        return
    title = f"{suite.title}, size {size}: {sum(entry['runs'] for entry in entries)} runs"
    notes = ["Only settings that differ from the defaults are shown; [a, b] is a grid to search."]
    rows = [_explained(entry) for entry in entries]
    print_table(of_records(rows, title, notes))


def _explained(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return a method's runs in a scenario as a row for people."""
    points = f"{entry['points']} points, " if entry["points"] > 1 else ""
    settings = {**entry["settings"], **entry["searched"]}
    return {
        **{key: entry[key] for key in ("scenario", "method", "runs")},
        "made of": f"{points}{entry['seeds']} seeds",
        "settings": " ".join(f"{key}={setting}" for key, setting in settings.items()),
    }


def own_settings(config: Config) -> Tree:
    """Return a run's non-default settings by dotted key, without its seed and the location of its
    data.
    """
    omitted = ("seed", "workers", "data.dir")
    return {key: value for key, value in config.chosen.items() if key not in omitted}


def _split(
    option: str, arguments: tuple[str, ...], known_names: Container[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Split an option's words into names and key=value settings; a known name may contain a =."""
    settings = tuple(
        argument for argument in arguments if "=" in argument and argument not in known_names
    )
    names = tuple(argument for argument in arguments if argument not in settings)
    if settings and not names:
        raise ConfigError(f"{option} {' '.join(settings)}: no name; put one after {option}")
    return names, settings


def _list_suites(json: bool) -> None:
    """List the bundled suites."""
    rows = [
        {"suite": name, "title": read_suite(file).title, "file": str(file)}
        for name, file in suites().items()
    ]
    if json:
        emit(rows)
    else:
        titles = [{key: row[key] for key in ("suite", "title")} for row in rows]
        print_table(of_records(titles, "Suites; run one with `pomona bench NAME`"))


class BenchProgress:
    """Shows how many runs are done, how many failed, and the time left."""

    def __init__(self, line: StatusLine) -> None:
        self._line = line

    def __call__(self, groups: Sequence[Group], verdicts: Mapping[Path, JobState]) -> None:
        """Update the line."""
        states = [state for group in groups for state in _states(group, verdicts)]
        settled = sum(state.settled for state in states)
        failed = sum(state.state == "failed" for state in states)
        text = f"{settled} of {len(states)} runs done" + (f", {failed} failed" if failed else "")
        self._line.show(text, settled, len(states))


def _states(group: Group, verdicts: Mapping[Path, JobState]) -> list[JobState]:
    """Return the state of each run of a group; runs that wait for tuning are shown for the first
    point.
    """
    chosen = group.chosen(verdicts)
    cells = (*group.trials, *group.finals[chosen or 0])
    return [verdicts[folder] for folder in dict.fromkeys(c.folder for c in cells)]


def _print_outcome(outcome: Bench, remaining: str, page: Path | None, json: bool) -> None:
    """Print the outcome of the requested cells, what is left of the whole bench, and its paths."""
    paths = {name: str(outcome.folder / name) for name in (*FILES, TIMING)}
    paths |= {"report": str(page)} if page else {}
    if json:
        emit(
            {
                "folder": outcome.folder,
                "counts": outcome.counts,
                "rows": outcome.rows,
                "failures": outcome.failures,
                "notes": [note.text for note in outcome.notes],
                **paths,
            }
        )
        return
    results = outcome.results
    caption = "mean over clients in the round best on validation, ± over seeds (how many)"
    print_table(grid(results, values(results, "best_validation"), f"{heading(results)}, {caption}"))
    if gains := gains_table(comparison(outcome)):
        print_table(gains)
    echo(*(f"note: {note.text}" for note in outcome.notes))
    counts = ", ".join(f"{n} {state}" for state, n in outcome.counts.items())
    texts = filter(None, (at_the_edge(results), remaining))
    print(*_unfinished(results), counts, *texts, sep="\n")
    print(f"written  {', '.join(paths[name] for name in FILES)}", end="")
    print(f", report {page}" if page else f"\nnext     pomona report {outcome.folder}")


def _unfinished(results: Mapping[str, Any]) -> Iterator[str]:
    """Yield why cells have no result, a line for each reason."""
    for reason, (first, *others) in reasons(results).items():
        suffix = f" and {len(others)} more" if others else ""
        yield f"{first}{suffix}: {reason}"
