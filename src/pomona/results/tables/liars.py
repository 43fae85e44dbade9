"""Table of the clients that lied in a simulation: their attack, and the rounds in which the server
reacted.
"""

from collections.abc import Iterable

from pomona.core.table import PLACEHOLDER, Table
from pomona.record.run_summary import attack_of
from pomona.results.run_numbers import Run


def liars(runs: list[Run]) -> Table:
    """Return one row per client that lied, or that was refused or limited in a run with liars."""
    attacked = [(run, attack) for run in runs if (attack := attack_of(run.result))]
    several = len(attacked) > 1
    rows = []
    for run, attack in attacked:
        for client in range(run.result.clients):
            name = run.client(client)
            refused = rounds_naming(name, ((r.round, r.refused) for r in run.result.rounds))
            limited = rounds_naming(name, ((r.round, r.limited) for r in run.result.rounds))
            lies = client in attack.clients
            if lies or refused or limited:
                row = [name, *[run.label] * several, attack.description if lies else "none"]
                rows.append([*row, spans(refused), spans(limited)])
    return Table(
        "liars",
        "Attacking clients",
        [note for run, _ in attacked if (note := _damage(run))],
        ["Client", *["Run"] * several, "Attack", "Refused in rounds", "Counted for less in rounds"],
        rows,
        range(2 + several),
    )


def rounds_naming(client: str, lines: Iterable[tuple[int, Iterable[str]]]) -> list[int]:
    """Return the rounds with a line on a client; such a line begins with its name."""
    prefixes = (f"{client},", f"{client}:")
    return [
        number for number, entries in lines if any(line.startswith(prefixes) for line in entries)
    ]


def spans(rounds: list[int]) -> str:
    """Return ascending rounds as spans, "1-3, 7"; "-" for none."""
    bounds: list[list[int]] = []
    for number in rounds:
        if bounds and bounds[-1][1] == number - 1:
            bounds[-1][1] = number
        else:
            bounds.append([number, number])
    return ", ".join(f"{a}-{b}" if a < b else f"{a}" for a, b in bounds) or PLACEHOLDER


def _damage(run: Run) -> str:
    """Describe a run's honest clients, and what a backdoor did to their models."""
    summary, metric = run.result.summary, run.metric
    model = summary.get("models", {}).get(summary.get("headline", ""), {})
    honest, overall = model.get("honest"), model.get("clients")
    if not honest or not overall:
        return ""
    text = (
        f"{run.label}, {run.model}: {metric.title} {metric.text(honest.get('mean'))} on average "
        f"over the honest clients in the last round, {metric.text(overall.get('mean'))} over all."
    )
    mean = (summary.get("backdoor") or {}).get("mean")
    return (
        text
        if mean is None
        else f"{text} With the trigger {mean:.1%} of other classes' test samples get the "
        "attackers' class."
    )
