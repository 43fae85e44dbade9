"""``pomona bench``: a table of methods and scenarios, tuned, run in parallel, resumable."""

import sys
from collections.abc import Container, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from time import monotonic
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Group as Rows
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from pomona.cli.output import EVERY, Figures, Json, console, echo, echo_stderr, emit, print_table
from pomona.config import Config, merge, read_overrides
from pomona.core.errors import ConfigError
from pomona.core.table import Table as Words
from pomona.core.toml import Tree
from pomona.experiments import Bench, read_suite, run
from pomona.experiments.bench_results import RESULTS, TIMING
from pomona.experiments.bench_table import at_the_edge, grid, heading, reasons, still_to_run, values
from pomona.experiments.executors import on_cluster
from pomona.experiments.grid import Group
from pomona.experiments.grid import plan as plan_of
from pomona.experiments.job import JobState
from pomona.experiments.suite import Size, Suite, suite_file, suites
from pomona.results.figures.plot import parse_formats
from pomona.storage.run_status import read_status

SEVERAL = Parameter(consume_multiple=(1, None), negative="", show_default=False)  # --methods a b


def bench(
    suite: str | None = None,
    *words: str,
    size: Annotated[Size, Parameter(help="which of the suite's sizes")] = "cpu",
    scenarios: Annotated[tuple[str, ...], SEVERAL, Parameter(help="run these scenarios only")] = (),
    methods: Annotated[tuple[str, ...], SEVERAL, Parameter(help="run these methods only")] = (),
    seeds: Annotated[
        tuple[str, ...], SEVERAL, Parameter(help="run these seeds in place of the suite's")
    ] = (),
    out: Annotated[
        Path | None, Parameter(help="folder of the bench; default runs/SUITE-SIZE")
    ] = None,
    cluster: Annotated[
        str | None,
        Parameter(
            help=(
                "a Ray cluster: host:port or ray, as in the setting cluster; its nodes must see "
                "--out and the data at the same paths"
            )
        ),
    ] = None,
    jobs: Annotated[
        int | None, Parameter(help="processes on this machine; default one per core")
    ] = None,
    retry: Annotated[bool, Parameter(negative="", help="run failed cells again")] = False,
    share: Annotated[
        bool,
        Parameter(
            negative="",
            help="share the runs with other processes on the same --out: for an array of jobs",
        ),
    ] = False,
    explain: Annotated[bool, Parameter(negative="", help="print what would run, and stop")] = False,
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
    settings = read_overrides((*words, *behind_scenarios, *behind_methods, *behind_seeds))
    plan = plan.seeded(seeds) if seeds else plan
    plan = plan.model_copy(update={"settings": merged(plan.settings, settings)})
    selection = {"scenarios": scenarios, "methods": methods}
    if explain:
        _explain(plan, size, scenarios, methods, json)
        return
    try:
        with ExitStack() as stack:
            workers = stack.enter_context(on_cluster(cluster, folder)) if cluster else None
            watch = (
                stack.enter_context(Board(folder, plan.title))
                if console.is_terminal
                else BenchLines()
            )
            outcome = run(
                plan,
                folder,
                workers,
                size=size,
                **selection,
                jobs=workers.cores if workers and jobs is None else jobs,
                retry=retry,
                share=share,
                watch=watch,
            )
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"the same command continues, finished cells are in {folder}"
        ) from None
    requested = outcome.select(**selection)
    page = _write_page(outcome, folder, formats) if formats else None
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
    rows = [
        [
            entry["scenario"],
            entry["method"],
            str(entry["runs"]),
            f"{entry['points']} points, {entry['seeds']} seeds"
            if entry["points"] > 1
            else f"{entry['seeds']} seeds",
            " ".join(
                f"{key}={setting}"
                for key, setting in {**entry["settings"], **entry["searched"]}.items()
            ),
        ]
        for entry in entries
    ]
    title = f"{suite.title}, size {size}: {sum(entry['runs'] for entry in entries)} runs"
    notes = ["Only settings that differ from the defaults are shown; [a, b] is a grid to search."]
    print_table(
        Words(
            "explained",
            title,
            notes,
            ["scenario", "method", "runs", "made of", "settings"],
            rows,
            {0, 1, 3, 4},
        )
    )


def own_settings(config: Config) -> Tree:
    """Return a run's non-default settings by dotted key, without its seed and the location of its
    data.
    """
    return {
        key: value
        for key, value in config.chosen.items()
        if key not in ("seed", "workers", "data.dir")
    }


def _write_page(outcome: Bench, folder: Path, formats: Sequence[str]) -> Path:
    from pomona.results.web.comparison_page import write

    return write(outcome, folder, formats)


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


def merged(tree: Tree, overrides: Tree) -> Tree:
    """Merge one tree over another."""
    combined: Tree = {}
    for layer in (tree, overrides):
        merge(combined, layer)
    return combined


def _list_suites(json: bool) -> None:
    """List the bundled suites."""
    bundled = {name: read_suite(file) for name, file in suites().items()}
    if json:
        emit(
            [
                {"suite": name, "title": s.title, "file": str(suites()[name])}
                for name, s in bundled.items()
            ]
        )
        return
    rows = [[name, s.title] for name, s in bundled.items()]
    print_table(
        Words(
            "suites",
            "Suites; run one with `pomona bench NAME`",
            [],
            ["suite", "title"],
            rows,
            range(2),
        )
    )


class TimeLeft:
    """Estimated remaining time of a bench at its rate since the start."""

    def __init__(self) -> None:
        self._start, self._finished_before = monotonic(), -1  # runs finished before the start

    def __call__(self, settled: int, total: int) -> str:
        """Return a clause for "5 of 12 runs done"; empty before this start's first run is done, and
        at the end.
        """
        self._finished_before = settled if self._finished_before < 0 else self._finished_before
        if settled in (self._finished_before, total):
            return ""
        seconds = (
            (monotonic() - self._start) / (settled - self._finished_before) * (total - settled)
        )
        return (
            f", about {seconds / 60:.0f} min left"
            if seconds > 90
            else f", about {seconds:.0f} s left"
        )


class Board:
    """The live table: methods down, scenarios across, with the number of finished cells."""

    def __init__(self, folder: Path, title: str) -> None:
        self._folder, self._title = folder, title
        self._left = TimeLeft()
        self._live = Live(console=console, auto_refresh=False, transient=True)

    def __enter__(self) -> "Board":
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def __call__(self, groups: Sequence[Group], verdicts: Mapping[Path, JobState]) -> None:
        """Redraw the table."""
        states = [v for g in groups for v in _states(g, verdicts)]
        settled = sum(v.settled for v in states)
        table = Table(title=escape(self._title), title_justify="left", box=None, pad_edge=False)
        scenarios, methods = (
            dict.fromkeys(g.scenario for g in groups),
            dict.fromkeys(g.method for g in groups),
        )
        for name in ("method", *scenarios):
            table.add_column(name)
        texts = {(g.method, g.scenario): self._text(g, verdicts) for g in groups}
        for method in methods:
            table.add_row(method, *(texts.get((method, s), "") for s in scenarios))
        caption = f"{settled} of {len(states)} runs done{self._left(settled, len(states))}"
        self._live.update(Rows(table, Text(caption)), refresh=True)

    def _text(self, group: Group, verdicts: Mapping[Path, JobState]) -> str:
        states = _states(group, verdicts)
        failed = sum(v.state == "failed" for v in states)
        waiting = [c.folder for c in group.ready(verdicts) if not verdicts[c.folder].settled]
        rounds = [
            s.round
            for f in dict.fromkeys(waiting)
            if (s := read_status(self._folder / f)) and s.round
        ]
        return (
            "data missing"
            if any(v.state == "data missing" for v in states)
            else f"{sum(v.state == 'finished' for v in states)}/{len(states)}"
            + (f" [red]{failed} failed[/]" if failed else "")
            + (f" [dim]round {', '.join(map(str, rounds))}[/]" if rounds else "")
        )


class BenchLines:
    """Progress without a terminal: a line at the start, every few seconds if anything changed, and
    at the end.
    """

    def __init__(self) -> None:
        self._last_text, self._last_time = "", -EVERY
        self._left = TimeLeft()

    def __call__(self, groups: Sequence[Group], verdicts: Mapping[Path, JobState]) -> None:
        """Print the number of finished runs if it has changed."""
        states = [v for g in groups for v in _states(g, verdicts)]
        settled, failed = sum(v.settled for v in states), sum(v.state == "failed" for v in states)
        remaining = self._left(settled, len(states))
        text = f"{settled} of {len(states)} runs done" + (f", {failed} failed" if failed else "")
        if text != self._last_text and (
            monotonic() - self._last_time >= EVERY or settled == len(states)
        ):
            self._last_text, self._last_time = text, monotonic()
            echo_stderr(f"{text}{remaining}")


def _states(group: Group, verdicts: Mapping[Path, JobState]) -> list[JobState]:
    """Return the state of each run of a group; runs that wait for tuning are shown for the first
    point.
    """
    chosen = group.chosen(verdicts)
    cells = (*group.trials, *group.finals[chosen or 0])
    return [verdicts[folder] for folder in dict.fromkeys(c.folder for c in cells)]


def _print_outcome(outcome: Bench, remaining: str, page: Path | None, json: bool) -> None:
    """Print the outcome of the requested cells, what is left of the whole bench, and its paths."""
    paths = {
        name: str(outcome.folder / name) for name in ("table.md", "table.csv", RESULTS, TIMING)
    }
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
    cells = values(outcome.results, "best_validation")
    title = (
        f"{heading(outcome.results)}, mean over clients in the round best on validation, ± over "
        "seeds (how many)"
    )
    print_table(grid(outcome.results, cells, title))
    echo(*(f"note: {note.text}" for note in outcome.notes))
    for reason, (first, *rows) in reasons(outcome.results).items():
        suffix = f" and {len(rows)} more" if rows else ""
        print(f"{first}{suffix}: {reason}")
    print(", ".join(f"{n} {state}" for state, n in outcome.counts.items()))
    for text in filter(None, (at_the_edge(outcome.results), remaining)):
        print(text)
    print(
        f"written  {paths['table.md']}, {paths['table.csv']}, "
        f"{paths[RESULTS]}{f', report {page}' if page else ''}"
    )
    if not page:
        print(f"next     pomona report {outcome.folder}")
