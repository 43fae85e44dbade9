"""A bench's table for Python: the value of each method with its gain over another and the gain's
interval, as a frame or in HTML.
"""

from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from pomona.core.errors import ConfigError
from pomona.core.table import NOTHING
from pomona.experiments.bench_table import metric
from pomona.metrics.metric import Metric
from pomona.record.paired_gain import Gain, gains
from pomona.record.run_folder import load

Results = Mapping[str, Any]


def rows(folder: Path, results: Results, base: str) -> list[dict[str, Any]]:
    """Return a record for each scenario and method: its test value, mean over clients and seeds,
    after the last round, and its mean gain over ``base`` on the same test samples.

    A gain is None for the base itself, where runs or their folders lack, over seeds of which each
    has other test samples, and where clients lie: a bench's values are of the honest ones, gains of
    all.
    """
    own = results["results"]
    bases = {r["scenario"]: r for r in own if r["method"] == base}
    return [_row(folder, result, bases.get(result["scenario"])) for result in own]


def _row(folder: Path, result: Results, base: Results | None) -> dict[str, Any]:
    done = [cell for cell in result["cells"] if cell["figures"]]
    value = result["over_seeds"]["last"]["value"]
    gain = _gain(folder, result, base) if base and base is not result else None
    return {
        "scenario": result["scenario"],
        "method": result["method"],
        "state": result["state"],
        "metric": metric(result).name if done else None,
        "seeds": len(done),
        "test": value["mean"],
        "std_over_seeds": value["std"],
        "gain": gain and gain.value,
        "low": gain and gain.low,
        "high": gain and gain.high,
        "p": gain and gain.p,
        "verdict": gain and gain.verdict,
    }


def _gain(folder: Path, result: Results, base: Results) -> Gain | None:
    """Return the mean gain over the seeds that both have finished; None if it is undefined."""
    mine, its = (
        {
            cell["seed"]: folder / cell["folder"]
            for cell in each["cells"]
            if cell["figures"] and (folder / cell["folder"]).is_dir()
        }
        for each in (result, base)
    )
    seeds = sorted(mine.keys() & its.keys())
    lies = any("attack" in (each["settings"] or {}) for each in (result, base))
    if not seeds or lies or metric(result) != metric(base):
        return None
    try:
        return gains([load(mine[s]) for s in seeds], [load(its[s]) for s in seeds])[1]
    except ConfigError:
        return None


def shown(row: Mapping[str, Any], judge: Metric) -> list[str]:
    """Return a record's gain, its interval and its verdict as text."""
    ends = [judge.number(row[end], "+") for end in ("low", "high") if row[end] is not None]
    return [judge.gap(row["gain"]), " to ".join(ends) or NOTHING, row["verdict"] or NOTHING]


def html(folder: Path, results: Results, base: str) -> str:
    """Return ``rows`` as an HTML table."""
    head = ("scenario", "method", "metric", "test", f"gain over {base}", "95 % interval", "verdict")
    judges = [metric(r) for r in results["results"]]
    body = []
    for row, judge in zip(rows(folder, results, base), judges, strict=True):
        cells = [row["scenario"], row["method"], row["state"], *[NOTHING] * 4]
        if row["metric"] is not None:
            cells[2:] = [judge.title, judge.text(row["test"]), *shown(row, judge)]
        body.append("".join(f"<td>{escape(cell)}</td>" for cell in cells))
    top = "".join(f"<th>{escape(name)}</th>" for name in head)
    caption = f"<caption>{escape(results['title'])}: test values after the last round</caption>"
    lines = "".join(f"<tr>{line}</tr>" for line in body)
    return f"<table>{caption}<thead><tr>{top}</tr></thead><tbody>{lines}</tbody></table>"
