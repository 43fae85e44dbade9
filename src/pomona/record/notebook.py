"""Display of a result in a Python session: a short text, an HTML table, a data frame."""

from collections.abc import Mapping, Sequence
from html import escape
from importlib import import_module
from pathlib import Path
from typing import Any

from pomona.core.errors import PomonaError
from pomona.metrics.metric import Metric

HEADER = ("model", "when", "last", "best on validation", "best on test", "worst client", "loss")


def text(title: str, rounds: int, metric: Metric, summary: Mapping[str, Any], folder: Path | None) -> str:
    """Return three lines: the run, its headline model's last test value, its folder; ``rounds`` are completed ones."""
    figures = summary.get("models", {}).get(summary.get("headline", ""))
    if figures and figures["last"]:
        last = figures["last"]
        came = f"{metric.title} {metric.text(last['test'])} in round {last['round']}, mean over clients"
        came = f"model {summary['headline']}: test {came}"
    else:
        came = "nothing was tested" if summary else f"unfinished, {rounds} rounds are done"
    return f"<{title}\n {came}\n {folder or 'in memory'}>"


def html(title: str, metric: Metric, summary: Mapping[str, Any]) -> str:
    """Return an HTML table with one row per named model: its test metrics, averaged over clients."""
    rows = [_row(name, f, metric.text) for name, f in summary.get("models", {}).items()]
    head = "".join(f"<th>{escape(name)}</th>" for name in HEADER)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    caption = f"{title}: test {metric.title}, mean over clients (round)"
    return f"<table><caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def frame(columns: Mapping[str, Sequence[Any]]) -> Any:
    """Convert columns to a pandas DataFrame. Raises PomonaError if pandas is not installed."""
    try:
        pandas = import_module("pandas")
    except ImportError:
        raise PomonaError("to_frame needs pandas, which is not installed; install it, or take columns()") from None
    return pandas.DataFrame(columns)


def _row(name: str, figures: Mapping[str, Any], shown: Any) -> list[str]:
    model, _, when = name.partition(", ")
    ats = (figures.get(key) for key in ("last", "best_validation", "best_test"))
    means = [f"{shown(at['test'])} ({at['round']})" if at else "-" for at in ats]
    loss = figures.get("loss")
    worst = shown((figures.get("clients") or {}).get("worst"))
    return [model, when, *means, worst, "-" if loss is None else f"{loss:.4g}"]
