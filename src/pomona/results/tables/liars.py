"""Table of the clients that lied in a simulation: what they did, and when the server noticed."""

from collections.abc import Iterable

from pomona.core.table import NOTHING, Table
from pomona.record.run_summary import attack_of
from pomona.results.run_numbers import Run


def liars(runs: list[Run]) -> Table:
    """Return one row per client that lied, or that was refused or limited beside liars."""
    found = [(run, attack) for run in runs if (attack := attack_of(run.result))]
    several = len(found) > 1
    rows = []
    for run, attack in found:
        for client in range(run.result.clients):
            name = run.client(client)
            refused = named_in(name, ((r.round, r.refused) for r in run.result.rounds))
            limited = named_in(name, ((r.round, r.limited) for r in run.result.rounds))
            lies = client in attack.clients
            if lies or refused or limited:
                row = [name, *[run.label] * several, attack.told if lies else "no"]
                rows.append([*row, spans(refused), spans(limited)])
    return Table(
        "liars",
        "Clients that lied",
        [note for run, _ in found if (note := _damage(run))],
        ["Client", *["Run"] * several, "Lies", "Refused in rounds", "Counted for less in rounds"],
        rows,
        range(2 + several),
    )


def named_in(client: str, lines: Iterable[tuple[int, Iterable[str]]]) -> list[int]:
    """Return the rounds with a line on a client, which begins with its name."""
    begins = (f"{client},", f"{client}:")
    return [number for number, own in lines if any(line.startswith(begins) for line in own)]


def spans(rounds: list[int]) -> str:
    """Return ascending rounds as spans, "1-3, 7"; "-" for none."""
    ends: list[list[int]] = []
    for number in rounds:
        if ends and ends[-1][1] == number - 1:
            ends[-1][1] = number
        else:
            ends.append([number, number])
    return ", ".join(f"{a}-{b}" if a < b else f"{a}" for a, b in ends) or NOTHING


def _damage(run: Run) -> str:
    """Describe a run's honest clients, and what a backdoor did to their models."""
    summary, metric = run.result.summary, run.metric
    model = summary.get("models", {}).get(summary.get("headline", ""), {})
    honest, everybody = model.get("honest"), model.get("clients")
    if not honest or not everybody:
        return ""
    said = (
        f"{run.label}, {run.model}: {metric.title} {metric.text(honest.get('mean'))} on average "
        f"over the honest clients in the last round, {metric.text(everybody.get('mean'))} over all."
    )
    mean = (summary.get("backdoor") or {}).get("mean")
    return (
        said
        if mean is None
        else f"{said} With the trigger {mean:.1%} of other classes' test "
        "samples get the liars' class."
    )
