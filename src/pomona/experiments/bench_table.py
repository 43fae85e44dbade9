"""The table of a bench as Markdown and CSV: pure functions of ``results.json``."""

from collections.abc import Mapping
from typing import Any

from pomona.core.table import PLACEHOLDER, Table, csv_text, grouped, markdown_grid
from pomona.core.toml import is_number
from pomona.metrics.client_statistics import Spread, spread
from pomona.metrics.metric import ACCURACY, Metric, metric_named

Results = Mapping[str, Any]


def rows(results: Results) -> list[dict[str, Any]]:
    """Return one flat record per scenario and method: metrics of the headline model, over clients,
    then over seeds.

    All are on the test split except the one named ``validation``.
    """
    return [_row(r) for r in results["results"]]


def _row(result: Mapping[str, Any]) -> dict[str, Any]:
    finished = _figures(result)
    first = finished[0] if finished else {}
    validation = spread([*map(_validation, finished)])
    losses = over_seeds(result, "last", "loss")
    metrics = {
        "test_at_best_validation": over_seeds(result, "best_validation"),
        "test_at_last": over_seeds(result, "last"),
        "test_accuracy_at_best_validation": over_seeds(result, "best_validation", "accuracy"),
        "test_accuracy_at_last": over_seeds(result, "last", "accuracy"),
    }
    means = {
        "std_over_clients_last": over_seeds(result, "last", "std"),
        "worst_client_last": over_seeds(result, "last", "worst"),
        "percentile_10_last": over_seeds(result, "last", "percentile_10"),
        "loss_last": losses,
    }
    return {
        "scenario": result["scenario"],
        "method": result["method"],
        "state": result["state"],
        "model": first.get("headline"),
        "metric": first.get("metric"),
        "seeds": losses.n if losses else 0,
        "validation_at_best_validation_mean": validation and validation.mean,
        **{
            f"{name}_{field}": statistic and getattr(statistic, field)
            for name, statistic in metrics.items()
            for field in ("mean", "std")
        },
        **{f"{name}_mean": statistic and statistic.mean for name, statistic in means.items()},
        "rounds": first.get("rounds"),
        "bytes_down": first.get("bytes_down"),
        "bytes_up": first.get("bytes_up"),
        "points_tried": len(result["search"]),
        "chosen": point(result["chosen"] or {}),
    }


def over_seeds(result: Mapping[str, Any], moment: str, key: str = "mean") -> Spread | None:
    """Return a statistic over clients of the headline model on test data, over the finished seeds;
    None without a value.
    """
    moments = [f["models"].get(f["headline"], {}).get(moment) for f in _figures(result)]
    return spread([m["summary"][key] for m in moments if m])


def format_spread(value: Spread | None, metric: Metric, suffix: str = "") -> str:
    """Format mean ± standard deviation of a metric (with the number of seeds, and ``suffix``); a
    dash for None.
    """
    if value is None:
        return PLACEHOLDER
    mean_and_std = metric.numbers([v for v in (value.mean, value.std) if v is not None])
    return f"{' ± '.join(mean_and_std)} ({value.n}{suffix})"


def _validation(figures: Mapping[str, Any]) -> float | None:
    """Return the headline model's mean over clients in its best validation round; None without
    one.
    """
    chosen, curve = figures["validation"], figures["curve"]
    by_round = dict(zip(curve["round"], curve["validation_value"], strict=True))
    score: float | None = by_round.get(chosen["round"]) if chosen else None
    return score


def csv(results: Results) -> str:
    """Return ``table.csv``: ``rows`` with a header; empty fields are unknown."""
    return csv_text(rows(results))


def markdown(results: Results) -> str:
    """Return ``table.md``: the metric of each run, chosen settings, missing results with reasons,
    and versions.
    """
    blocks = [f"# {results['title']}", _introduction(results)]
    for moment, phrase in (
        ("best_validation", "the round best on validation"),
        ("last", "the last round"),
    ):
        blocks += [
            f"{heading(results)}, in {phrase}:",
            markdown_grid(grid(results, values(results, moment))),
        ]
    blocks += [*_choices(results), *_unfinished(results)]
    blocks += [text for text in (at_the_edge(results), still_to_run(results)) if text]
    blocks += [
        f"Made with {', '.join(f'{k} {v}' for k, v in versions.items())}."
        for versions in results["versions"]
    ]
    return "\n\n".join(blocks) + "\n"


def _choices(results: Results) -> list[str]:
    """Return what a search chose, below a heading; empty without a search."""
    entries = results["results"]
    if not any(r["search"] for r in entries):
        return []
    cells = {(r["method"], r["scenario"]): _choice(r) for r in entries}
    return ["Settings chosen, of so many tried:", markdown_grid(grid(results, cells))]


def _unfinished(results: Results) -> list[str]:
    """Return why cells have no result, below a heading; empty if all have one."""
    lines = [
        f"- {reason} ({len(folders)}: {', '.join(f'`{f}`' for f in folders)})"
        for reason, folders in reasons(results).items()
    ]
    return ["Without a result:", "\n".join(lines)] if lines else []


def still_to_run(results: Results) -> str:
    """Name the methods and scenarios that wait for runs, in a sentence; empty if none."""
    missing: dict[str, list[str]] = {}
    for scenario in results["scenarios"]:
        states = {r["method"]: r["state"] for r in results["results"] if r["scenario"] == scenario}
        waiting = [method for method, state in states.items() if state == "waiting"]
        if waiting:
            missing.setdefault(
                "all methods" if len(waiting) == len(states) else ", ".join(waiting), []
            ).append(scenario)
    text = "; ".join(
        f"{methods} in {', '.join(scenarios)}" for methods, scenarios in missing.items()
    )
    return f"Still to run: {text}." if text else ""


def at_the_edge(results: Results) -> str:
    """Name the chosen numbers that are the first or the last of a grid of three or more, in a
    sentence; empty if none.

    A better value may lie beyond such a grid.
    """
    edges: dict[str, list[str]] = {}
    for result in results["results"]:
        space = results["methods"][result["method"]]["space"]
        for key, chosen in (result["chosen"] or {}).items():
            values = set(space.get(key, ()))
            is_range = len(values) >= 3 and all(is_number(v) for v in values)
            if is_range and chosen in {min(values), max(values)}:
                edges.setdefault(f"{key}={chosen}", []).append(
                    f"{result['method']} in {result['scenario']}"
                )
    text = "; ".join(f"{setting} of {', '.join(cells)}" for setting, cells in edges.items())
    if text:
        return f"Chosen at the edge of the grid, so that a better value may lie beyond it: {text}."
    return ""


def reasons(results: Results) -> dict[str, list[str]]:
    """Return why cells have no result: each reason with the folders of all its cells."""
    cells = {
        c["folder"]: c
        for r in results["results"]
        for c in (*r["search"], *r["cells"])
        if c["reason"]
    }
    return grouped((f"{c['state']}: {c['reason']}", folder) for folder, c in cells.items())


def _introduction(results: Results) -> str:
    reference = (
        f"To be compared with {results['reference']['title']}. " if results["reference"] else ""
    )
    tuning = results["tuning"]
    searched = any(r["search"] for r in results["results"])
    tuned = (
        f"Each method was tuned over at most {tuning['points']} points of its grid, on seed "
        f"{tuning['seed']}: chosen was {tuning['rule']}."
        if searched
        else "No settings were searched."
    )
    seeds = ", ".join(map(str, results["seeds"]))
    return (
        f"{reference}Size {results['size']}, seeds {seeds}. {tuned} A value is the mean over "
        "clients of the method's headline model, each client counting once; then mean ± standard "
        "deviation over seeds (how many of "
        f"them).{' ' + results['note'] if results['note'] else ''}"
    )


def metric(result: Mapping[str, Any]) -> Metric:
    """Return the metric of a result's runs."""
    return metric_named(next((f["metric"] for f in _figures(result)), ACCURACY.name))


def heading(results: Results) -> str:
    """Return the heading for the values of a grid; cells name their metric if there are several."""
    metrics = list(dict.fromkeys(metric(r) for r in _finished(results)))
    if len(metrics) == 1:
        return f"Test {metrics[0].heading}"
    return "On test data, each scenario in its own metric"


def value(result: Mapping[str, Any], moment: str, with_name: bool = False) -> str:
    """Format a result's metric as mean ± standard deviation (number of seeds), or the reason for
    its absence.

    ``with_name``: whether to add the metric's name.
    """
    statistic = over_seeds(result, moment)
    result_metric = metric(result)
    state = str(result["state"])
    if statistic is None:
        return PLACEHOLDER if state == "finished" else state
    heading = f"{result_metric.heading} " if with_name else ""
    return heading + format_spread(
        statistic, result_metric, "" if state == "finished" else f", others {state}"
    )


def values(results: Results, moment: str) -> dict[tuple[str, str], str]:
    """Return (method, scenario) -> the text of ``value``, with the metric's name if there are
    several metrics.
    """
    with_name = len({metric(r) for r in _finished(results)}) > 1
    return {(r["method"], r["scenario"]): value(r, moment, with_name) for r in results["results"]}


def _figures(result: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [c["figures"] for c in result["cells"] if c["figures"]]


def _finished(results: Results) -> list[Mapping[str, Any]]:
    return [r for r in results["results"] if _figures(r)]


def point(chosen: Mapping[str, Any]) -> str:
    """Format searched settings in one line."""
    return " ".join(f"{key}={setting}" for key, setting in chosen.items())


def _choice(result: Mapping[str, Any]) -> str:
    if not result["search"]:
        return "none searched"
    tried = f"{len(result['search'])} tried"
    if result["chosen"] is not None:
        return f"{point(result['chosen'])} ({tried})"
    return f"{tried}, none chosen"


def grid(results: Results, cells: Mapping[tuple[str, str], str], title: str = "") -> Table:
    """Return a table of (method, scenario) -> text, methods down and scenarios across."""
    scenarios = list(results["scenarios"])
    rows = [[m, *(cells.get((m, s), "") for s in scenarios)] for m in results["methods"]]
    return Table("results", title, [], ["method", *scenarios], rows, range(1 + len(scenarios)))
