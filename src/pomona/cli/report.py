"""``pomona compare``, ``coefficients``, ``elsewhere``, ``report`` and others: viewing runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from pomona.cli.output import (
    Figures,
    Flag,
    Json,
    StatusLine,
    activity,
    echo,
    emit,
    print_table,
    printable,
    respond,
    stdout,
)
from pomona.core.errors import ConfigError, StorageError
from pomona.core.files import safe_path
from pomona.core.registry import own_code_barred
from pomona.record.result import Result
from pomona.record.run_folder import load
from pomona.results.figures.plot import parse_formats


def compare(*runs: Path, latex: Flag = False, markdown: Flag = False, json: Json = False) -> None:
    """Compare recorded runs in one table.

    Parameters
    ----------
    runs
        folders that `pomona run` or `pomona demo` wrote
    latex
        the table in LaTeX, with booktabs rules
    markdown
        the table in Markdown
    """
    if latex + markdown + json > 1:
        raise ConfigError("--latex, --markdown and --json are three forms of one table; give one")
    with activity("comparing the runs"):
        results = _load(runs)
        # late: what follows imports PyTorch
        from pomona.core.table import markdown as as_markdown
        from pomona.results import table as result_table
        from pomona.results.run_numbers import runs as prepare
        from pomona.results.summary_table import gain_columns, run_table
        from pomona.results.tables.latex import latex as as_latex
        from pomona.results.text.joint_cautions import mixed_rounds
        from pomona.results.text.narrative import basis

        rows, prepared = result_table(results), prepare(results)
    if json:
        columns = gain_columns(prepared, mixed_rounds(prepared))
        emit([{**row, **columns[row["run"]]} for row in rows])
    elif latex or markdown:
        print(as_latex(run_table(rows)) if latex else as_markdown(run_table(rows)), end="")
    else:
        print_table(run_table(rows))
        echo(*basis(prepared), *mixed_rounds(prepared))


def coefficients(
    run: Path, *, client: str | None = None, per: tuple[str, ...] = (), json: Json = False
) -> None:
    """Show what each column changes in a run's linear models of a table, in its own units.

    Odds ratios of `logistic`, hazard ratios of `proportional-hazards`, differences of numbers, for
    the model that all clients share and for each client's own.

    Parameters
    ----------
    run
        a folder that `pomona run` wrote
    client
        name or number of one client; without it all, and the model they share
    per
        COLUMN=STEP: the change by another step than 1, such as age=10
    """
    from pomona.cli.predict import client_index
    from pomona.record.coefficients import coefficients as of_run
    from pomona.results.tables.coefficients import table

    steps = dict(map(_step, per))
    with activity(f"reading {run}"):
        result = load(run)
        rows = of_run(result, steps)
    if client is not None:
        names = result.about["clients"]
        name = names[client_index(client, names)]
        rows, shared = [row for row in rows if row.client == name], rows
        if shared and not rows:
            raise ConfigError(f"{name} has no model of its own in {run}; leave --client out")
    if not rows:
        reasons = dict.fromkeys(event["reason"] for event in result.coefficients)
        remedy = (
            "train a linear model of a table on this machine, as a federation's server has no "
            "rows: model.name = logistic, or proportional-hazards for times"
        )
        raise ConfigError(f"{run} has no coefficients: {'; '.join(reasons) or remedy}")
    respond(json, [vars(row) for row in rows], table([("", rows)]))


def _step(text: str) -> tuple[str, float]:
    """Parse COLUMN=STEP. Raises ConfigError."""
    column, _, step = text.rpartition("=")
    try:
        return column, float(step)
    except ValueError:
        raise ConfigError(f"--per {text}: write COLUMN=STEP, such as age=10") from None


def report(
    *runs: Path,
    folder: Annotated[Path | None, Parameter(name="--out")] = None,
    figures: Figures = "",
    scenarios: Flag = False,
    reference: Path | None = None,
    json: Json = False,
) -> None:
    """Write the report page of recorded runs, or of a bench, next to the reference numbers that its
    suite names.

    Parameters
    ----------
    runs
        folders that `pomona run` or `pomona demo` wrote, or one that `pomona bench` wrote
    folder
        folder for the page; the first run's, or the bench's, if not given
    scenarios
        for a bench: also a report of each scenario, of one seed, in scenarios/
    reference
        for a bench: TOML file of reference numbers to show next to ours; the suite's if not given
    """
    formats = parse_formats(figures)
    is_bench = _is_bench(runs)
    if not is_bench and (reference or scenarios):
        raise ConfigError(
            f"--{'reference' if reference else 'scenarios'} is for the page of a bench; give a "
            "folder that `pomona bench` wrote"
        )
    with activity("drawing the report"):
        if is_bench:
            pages = _write_bench(runs[0], folder or runs[0], formats, reference, scenarios)
        else:
            results = _load(runs)
            from pomona.results.web.report_page import write  # late: it imports PyTorch

            pages = [write(results, folder or runs[0], formats)]
    scenario_pages = {"scenarios": pages[1:]} if pages[1:] else {}
    respond(json, {"report": pages[0], **scenario_pages}, *pages)


def _is_bench(runs: tuple[Path, ...]) -> bool:
    """Return whether the argument is a bench.

    Raises ConfigError for a bench among other folders.
    """
    benches = [run for run in runs if (run / "results.json").exists()]
    if benches and len(runs) > 1:
        raise ConfigError(f"{benches[0]} is a bench; give one bench, or run folders")
    return bool(benches)


def _write_bench(
    bench: Path, folder: Path, formats: Sequence[str], reference: Path | None, scenarios: bool
) -> list[Path]:
    """Write a bench's page; with ``scenarios`` also reports of the runs behind its table: for each
    scenario, every method's first finished seed.
    """
    from pomona.experiments import load as load_bench
    from pomona.experiments.reference import read_reference
    from pomona.results.web import comparison_page, report_page

    numbers = read_reference(reference) if reference else None
    loaded = load_bench(bench)
    pages = [comparison_page.write(loaded, folder, formats, numbers)]
    first: dict[str, list[Path]] = {}
    for row in loaded.results["results"] if scenarios else ():
        runs = [bench / cell["folder"] for cell in row["cells"] if cell["state"] == "finished"]
        first.setdefault(row["scenario"], []).extend(runs[:1])
    for name, runs in first.items():
        if runs:
            place = safe_path(folder, "scenarios", name)
            pages.append(report_page.write([load(run) for run in runs], place, formats))
    return pages


def elsewhere(run: Path, *, own_code: Flag = False, json: Json = False) -> None:
    """Evaluate each client's model on the other clients' test rows.

    The run's data are read again. The scores are kept in the run's folder, and its report shows
    them.

    Parameters
    ----------
    run
        a folder that `pomona run` wrote
    own_code
        allow the run to import modules that it names
    """
    result = load(run)
    with own_code_barred(not own_code), StatusLine() as line:
        line.show(f"reading the data of {printable(str(run))}", 0, 1, "reading")
        from pomona.personal.elsewhere import elsewhere as evaluate  # late: it imports PyTorch
        from pomona.results.run_numbers import runs as prepare
        from pomona.results.tables.elsewhere import elsewhere_table

        def show(completed: int, total: int) -> None:
            line.show(f"models evaluated: {completed} of {total}", completed, total)

        evaluations = evaluate(result, report_progress=show)
    fields = {"clients": result.about["clients"], **evaluations.model_dump(mode="json")}
    respond(
        json,
        {**fields, "means": evaluations.means(), "failing": evaluations.failing},
        elsewhere_table(prepare([result])[0]),
        f"pomona report {run} shows them as a picture",
    )


def methods(*, json: Json = False) -> None:
    """List the methods: paper, cost per client and round in models, what stays private, the
    headline model.
    """
    with activity("reading the methods"):
        from pomona.methods import installed  # late: it imports every method

        built = {name: settings().method() for name, settings in installed().items()}
    cards = {name: method.card for name, method in built.items()}
    if json:
        emit({n: {**vars(card), "sums": built[n].server.sums} for n, card in cards.items()})
        return
    for name, card in cards.items():
        exchange = card.exchange
        rows = {
            "paper": card.paper,
            "models": f"{exchange.down} down, {exchange.up} up, per client and round",
            "private": exchange.private,
            "headline": ", ".join(card.headline),
            "needs": f"{', '.join((*card.tasks, card.needs.cohort))}; a client keeps "
            f"{exchange.keeps}",
            "joining": card.joining,
        }
        if built[name].server.sums:
            rows["sums"] = "are enough for the server: secure_aggregation can hide models"
        stdout.print(f"[bold]{name}[/]  {card.summary}", highlight=False)
        for label, text in rows.items():
            stdout.print(f"  {label:<8} {text}", highlight=False, markup=False)


def _load(runs: tuple[Path, ...]) -> list[Result]:
    """Load the runs; a folder that contains runs stands for all of them."""
    if not runs:
        raise StorageError("no run folder given; name folders that `pomona run` wrote")
    folders = []
    for run in runs:
        nested = sorted(p.parent for p in run.glob("*/events.jsonl"))
        folders += [run] if (run / "events.jsonl").exists() or not nested else nested
    return [load(folder) for folder in folders]
