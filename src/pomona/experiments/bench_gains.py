"""A bench's table for Python: the values of each method with its gain over another and the gain's
interval, as a frame or in HTML.
"""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from pomona.core.errors import ConfigError, DataError, StorageError
from pomona.core.table import PLACEHOLDER
from pomona.experiments import bench_table
from pomona.experiments.bench_table import metric
from pomona.experiments.reference import ROUNDS
from pomona.metrics.metric import Metric
from pomona.record.paired_gain import ONE_PARTITION, Gain, Verdict, gains, jointly
from pomona.record.run_folder import load

Results = Mapping[str, Any]
GainsOrReason = tuple[list[Gain | None], Gain] | str
VALUES = {
    "test_at_best_validation_mean": ROUNDS["best_validation"],
    "test_at_best_validation_std": "",
    "test_at_last_mean": ROUNDS["last"],
    "test_at_last_std": "",
}
"""Columns of ``table.csv`` that the frame has, and the headings of those that HTML has."""


def gained(folder: Path, results: Results, base: str) -> list[GainsOrReason]:
    """Return for each result its clients' gains over ``base`` on the same test samples, of the
    models that the runs keep, and their mean; or the reason why they are undefined.

    They are undefined for the base itself, without runs or their folders, if each seed has other
    test samples, and if clients lie: a bench's values are of the honest ones, gains of all.
    """
    bases = {r["scenario"]: r for r in results["results"] if r["method"] == base}
    return [
        _gained(folder, result, bases[result["scenario"]])
        if result["scenario"] in bases
        else f"{base} is not in this bench"
        for result in results["results"]
    ]


def rows(results: Results, gains: Sequence[GainsOrReason]) -> list[dict[str, Any]]:
    """Return a record for each scenario and method: its test values, named as in ``table.csv``, and
    its mean gain, None if undefined, with the ``reason``.

    Verdicts of a scenario hold jointly (Holm): one may be open where its own interval is not.
    """
    table = bench_table.rows(results)
    means = [None if isinstance(gain, str) else gain[1] for gain in gains]
    verdicts: dict[int, Verdict | None] = {}
    for scenario in {row["scenario"] for row in table}:
        indices = [i for i, row in enumerate(table) if row["scenario"] == scenario]
        verdicts |= zip(indices, jointly([means[i] for i in indices]), strict=True)
    entries = zip(results["results"], table, gains, strict=True)
    return [_row(*entry, verdicts[i]) for i, entry in enumerate(entries)]


def _row(
    result: Results, row: Mapping[str, Any], gain: GainsOrReason, verdict: Verdict | None
) -> dict[str, Any]:
    """Return a result's record, of its row of the table and its gains."""
    mean, reason = (None, gain) if isinstance(gain, str) else (gain[1], "")
    return {
        **{key: row[key] for key in ("scenario", "method", "state", "metric")},
        "seeds": sum(cell["figures"] is not None for cell in result["cells"]),
        **{key: row[key] for key in VALUES},
        "gain": mean and mean.value,
        **{key: mean and getattr(mean, key) for key in ("low", "high", "p")},
        "judged": mean.model if mean else "",
        "base": mean.base_model if mean else "",
        "verdict": verdict,
        "reason": reason,
    }


def _gained(folder: Path, result: Results, base: Results) -> GainsOrReason:
    """Return the gains over the seeds that both have finished, or why they are undefined."""
    if result is base:
        return "the base itself"
    folders, base_folders = _folders(folder, result), _folders(folder, base)
    common = sorted(folders.keys() & base_folders.keys())
    seeds = [seed for seed in common if folders[seed].is_dir() and base_folders[seed].is_dir()]
    if not seeds:
        return "the folders of its runs are missing" if common else "no seed of both has finished"
    if any("attack" in (r["settings"] or {}) for r in (result, base)):
        return "clients lie: values are of the honest ones, a gain would be of all"
    if metric(result) != metric(base):
        return "its metric is another"
    return _recorded_gains([(folders[seed], base_folders[seed]) for seed in seeds])


def _recorded_gains(pairs: Sequence[tuple[Path, Path]]) -> GainsOrReason:
    """Return the gains of runs over those of the base, in pairs of one seed, or why they are
    undefined.
    """
    try:
        clients, mean = gains([load(run) for run, _ in pairs], [load(base) for _, base in pairs])
    except ConfigError:
        return f"each seed has other test samples; {ONE_PARTITION}"
    except (StorageError, DataError):
        return "a record of its runs cannot be read"
    return (clients, mean) if mean else "no client's test samples define it"


def _folders(folder: Path, result: Results) -> dict[int, Path]:
    """Return the folders of finished runs by seed."""
    return {cell["seed"]: folder / cell["folder"] for cell in result["cells"] if cell["figures"]}


def gain_cells(row: Mapping[str, Any], judge: Metric) -> list[str]:
    """Return a record's gain, interval and verdict, or the reason why it has none, as text."""
    reading = row["verdict"] or row["reason"]
    if row["gain"] is None:
        return [PLACEHOLDER, PLACEHOLDER, reading]
    ends = [row[end] for end in ("low", "high") if row[end] is not None]
    gain, *limits = judge.numbers([row["gain"], *ends], "+")
    return [gain + judge.unit_of_gaps, " to ".join(limits) or PLACEHOLDER, reading]


def html(folder: Path, results: Results, base: str) -> str:
    """Return ``rows`` as an HTML table."""
    values = {key: heading for key, heading in VALUES.items() if heading}
    gain = (f"gain over {base}", "95 % interval", "verdict")
    head = ("scenario", "method", "metric", *values.values(), *gain)
    judges = [metric(r) for r in results["results"]]
    body = []
    for row, judge in zip(rows(results, gained(folder, results, base)), judges, strict=True):
        cells = [row["scenario"], row["method"], row["state"], *[PLACEHOLDER] * (len(head) - 3)]
        if row["metric"] is not None:
            tested = [judge.text(row[key]) for key in values]
            cells[2:] = [judge.title, *tested, *gain_cells(row, judge)]
        body.append("".join(f"<td>{escape(cell)}</td>" for cell in cells))
    top = "".join(f"<th>{escape(name)}</th>" for name in head)
    caption = (
        f"<caption>{escape(results['title'])}: test values, mean over clients and seeds; "
        "verdicts of a scenario together (Holm)</caption>"
    )
    lines = "".join(f"<tr>{line}</tr>" for line in body)
    return f"<table>{caption}<thead><tr>{top}</tr></thead><tbody>{lines}</tbody></table>"
