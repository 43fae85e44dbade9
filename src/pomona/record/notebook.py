"""A result as a person sees it who works in Python: a few lines, a table, columns."""

from html import escape
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pomona.core.bounds import plain
from pomona.core.errors import PomonaError
from pomona.record.views import client_rows

if TYPE_CHECKING:
    from pomona.record.record import Result

HEADER = ("model", "when", "last", "best on validation", "best on test", "worst client", "loss")


def text(result: "Result") -> str:
    """Three lines: what was run, how far it came, where it lies."""
    figures, metric = _models(result).get(result.summary.get("headline", "")), result.metric
    if figures and figures["last"]:
        last = figures["last"]
        came = f"{metric.title} {metric.text(last['value'])} in round {last['round']}, mean over clients"
        came = f"model {result.summary['headline']}: test {came}"
    else:
        came = f"unfinished, {len(result.rounds)} rounds are done" if not result.summary else "nothing was tested"
    return f"<{_title(result)}\n {came}\n {result.folder or 'in memory'}>"


def html(result: "Result") -> str:
    """A table with a row for each named model, its test figures as means over clients."""
    metric = result.metric
    rows = [_row(name, f, metric.text) for name, f in _models(result).items()]
    head = "".join(f"<th>{escape(name)}</th>" for name in HEADER)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    caption = f"{_title(result)}: test {metric.title}, mean over clients (round)"
    return f"<table><caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def columns(result: "Result") -> dict[str, list[Any]]:
    """Columns of ``clients.csv``: a row for each client in each evaluation."""
    rows = list(client_rows(result))
    return {name: [row[name] for row in rows] for name in (rows[0] if rows else ())}


def frame(result: "Result") -> Any:
    """``columns`` as a pandas DataFrame. Raises PomonaError where pandas is not installed."""
    try:
        pandas = import_module("pandas")
    except ImportError:
        raise PomonaError("to_frame needs pandas, which is not installed; install it, or take columns()") from None
    return pandas.DataFrame(columns(result))


def _models(result: "Result") -> dict[str, Any]:
    models: dict[str, Any] = result.summary.get("models", {})
    return models


def _title(result: "Result") -> str:
    parts = (result.config.get(section, {}).get("name", "?") for section in ("data", "partition"))
    clients = len(result.about.get("clients", ()))
    return plain(f"{result.name} on {', '.join(map(str, parts))}, {clients} clients, {len(result.rounds)} rounds")


def _row(name: str, figures: dict[str, Any], shown: Any) -> list[str]:
    model, _, when = name.partition(", ")
    ats = (figures.get(key) for key in ("last", "best_validation", "best_test"))
    means = [f"{shown(at['value'])} ({at['round']})" if at else "-" for at in ats]
    loss = figures.get("loss")
    worst = shown((figures.get("clients") or {}).get("worst"))
    return [model, when, *means, worst, "-" if loss is None else f"{loss:.4g}"]
