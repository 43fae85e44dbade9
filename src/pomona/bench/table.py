"""The table of a bench, for people (Markdown) and for programs (CSV). Pure functions of ``results.json``."""

import csv as csvfile
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Results = Mapping[str, Any]


def rows(results: Results) -> list[dict[str, Any]]:
    """One flat record a scenario and method: test figures of the headline model, over clients, then over seeds."""
    return [_row(r) for r in results["results"]]


def _row(result: Mapping[str, Any]) -> dict[str, Any]:
    best, last = result["over_seeds"]["best_validation"], result["over_seeds"]["last"]
    done = [c["figures"] for c in result["cells"] if c["figures"]]
    return {
        "scenario": result["scenario"],
        "method": result["method"],
        "state": result["state"],
        "model": done[0]["headline"] if done else None,
        "seeds": last["loss"]["n"],
        "accuracy_best_validation_mean": best["accuracy"]["mean"],
        "accuracy_best_validation_std": best["accuracy"]["std"],
        "accuracy_last_mean": last["accuracy"]["mean"],
        "accuracy_last_std": last["accuracy"]["std"],
        "std_over_clients_last_mean": last["std"]["mean"],
        "worst_client_last_mean": last["worst"]["mean"],
        "percentile_10_last_mean": last["percentile_10"]["mean"],
        "loss_last_mean": last["loss"]["mean"],
        "rounds": done[0]["rounds"] if done else None,
        "bytes_down": done[0]["bytes_down"] if done else None,
        "bytes_up": done[0]["bytes_up"] if done else None,
        "points_tried": len(result["search"]),
        "chosen": point(result["chosen"] or {}),
    }


def csv(results: Results) -> str:
    """``table.csv``: ``rows`` with a header; an empty field is unknown."""
    text, records = io.StringIO(), rows(results)
    writer = csvfile.DictWriter(text, list(records[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()


def markdown(results: Results) -> str:
    """``table.md``: accuracies, what was chosen, what has no result and why, what it was made with."""
    parts = [f"# {results['title']}", _about(results)]
    for moment, words in (("best_validation", "the round best on validation"), ("last", "the last round")):
        parts += [f"Test accuracy in %, in {words}:", _grid(results, lambda r, m=moment: value(r, m))]
    if any(r["search"] for r in results["results"]):
        parts += ["Settings chosen, of so many tried:", _grid(results, _choice)]
    unfinished = [
        f"- {reason} ({len(folders)}: {', '.join(f'`{f}`' for f in folders)})"
        for reason, folders in reasons(results).items()
    ]
    parts += ["Without a result:", "\n".join(unfinished)] if unfinished else []
    parts += [f"Made with {', '.join(f'{k} {v}' for k, v in made.items())}." for made in results["versions"]]
    return "\n\n".join(parts) + "\n"


def reasons(results: Results) -> dict[str, list[str]]:
    """Why cells have no result, each reason with the folders of all cells that it holds for."""
    cells = {c["folder"]: c for r in results["results"] for c in (*r["search"], *r["cells"]) if c["reason"]}
    found: dict[str, list[str]] = {}
    for folder, cell in cells.items():
        found.setdefault(f"{cell['state']}: {cell['reason']}", []).append(folder)
    return found


def _about(results: Results) -> str:
    paper = f"Table {results['table']} of {results['paper']}. " if results["paper"] else ""
    tuning = results["tuning"]
    searched = any(r["search"] for r in results["results"])
    tuned = (
        f"Each method was tuned over at most {tuning['points']} points of its grid, on seed {tuning['seed']}: chosen "
        f"was {tuning['rule']}."
        if searched
        else "No settings were searched."
    )
    seeds = ", ".join(map(str, results["seeds"]))
    return (
        f"{paper}Size {results['size']}, seeds {seeds}. {tuned} An accuracy is the mean over clients of the model that "
        "the method is judged by, each client counting once; then mean ± standard deviation over seeds (how many of "
        f"them).{' ' + results['note'] if results['note'] else ''}"
    )


def value(result: Mapping[str, Any], moment: str) -> str:
    """A result's accuracy in %, or its loss where there are no accuracies, or why there is none."""
    own = result["over_seeds"][moment]
    name, factor, digits = ("accuracy", 100, ".2f") if own["accuracy"]["n"] else ("loss", 1, ".4g")
    spread = own[name]
    if not spread["n"]:
        return "-" if result["state"] == "finished" else str(result["state"])
    std = "" if spread["std"] is None else f" ± {factor * spread['std']:{digits}}"
    unit = "" if name == "accuracy" else "loss "
    others = "" if result["state"] == "finished" else f", others {result['state']}"
    return f"{unit}{factor * spread['mean']:{digits}}{std} ({spread['n']}{others})"


def point(chosen: Mapping[str, Any]) -> str:
    """Searched settings in one line."""
    return " ".join(f"{key}={setting}" for key, setting in chosen.items())


def _choice(result: Mapping[str, Any]) -> str:
    if not result["search"]:
        return "none searched"
    tried = f"{len(result['search'])} tried"
    return f"{point(result['chosen'])} ({tried})" if result["chosen"] is not None else f"{tried}, none chosen"


def _grid(results: Results, text: Any) -> str:
    """A Markdown table, methods down and scenarios across."""
    cells = {(r["method"], r["scenario"]): text(r) for r in results["results"]}
    lines = [["method", *results["scenarios"]], ["---"] * (1 + len(results["scenarios"]))]
    lines += [[m, *(cells.get((m, s), "") for s in results["scenarios"])] for m in results["methods"]]
    return "\n".join(_line(line) for line in lines)


def _line(cells: Sequence[str] | Iterable[str]) -> str:
    return "| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |"
