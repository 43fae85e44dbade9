"""Tables of the course of runs: who took part in which rounds, who attacked, and the notes."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from pomona.core.attack import Attack
from pomona.core.table import PLACEHOLDER, Table, grouped
from pomona.record.run_summary import attack_of
from pomona.results.run_numbers import Run


def participation(runs: Sequence[Run]) -> Table:
    """Return the table of the runs with the first one's clients; without rows if every client
    trained in every round, or their training samples are not on record.
    """
    first = runs[0]
    names, sizes = first.result.about["clients"], training_samples(first)
    runs = [run for run in runs if run.result.about["clients"] == names]
    rounds = [rounds_by_client(run) for run in runs]
    note = "Rounds in which a client trained, and its share of all training samples."
    header = ["Client", "Training samples", "Share in %"]
    header += [f"Rounds of {run.label}, of {len(run.result.rounds)}" for run in runs]
    rows = [
        [first.client(client), f"{n:,}", f"{100 * n / sum(sizes):.1f}"]
        + [str(counts[client]) for counts in rounds]
        for client, n in enumerate(sizes)
        if any(len(row.cohort) < run.result.clients for run in runs for row in run.result.rounds)
    ]
    return Table("participation", "Who took part", [note], header, rows, range(1))


def rounds_by_client(run: Run) -> Counter[int]:
    """Return the number of rounds in which each client trained."""
    return Counter(client for row in run.result.rounds for client in row.cohort)


def training_samples(run: Run) -> list[int]:
    """Return the clients' training samples; empty if they are not on record, or none."""
    sizes = list(run.result.about.get("sizes", {}).get("train", ()))
    return sizes if any(sizes) else []


def liars(runs: list[Run]) -> Table:
    """Return one row per client that lied, or that was refused or limited in a run with liars."""
    attacked = [(run, attack) for run in runs if (attack := attack_of(run.result))]
    several = len(attacked) > 1
    rows = [
        [name, *[run.label] * several, *cells]
        for run, attack in attacked
        for name, *cells in _treatment(run, attack)
    ]
    return Table(
        "liars",
        "Attacking clients",
        [note for run, _ in attacked if (note := _damage(run))],
        ["Client", *["Run"] * several, "Attack", "Refused in rounds", "Counted for less in rounds"],
        rows,
        range(2 + several),
    )


def _treatment(run: Run, attack: Attack) -> Iterator[list[str]]:
    """Yield the name of each client that lied, was refused or limited, its attack, and the rounds
    of both.
    """
    for client in range(run.result.clients):
        name, lies = run.client(client), client in attack.clients
        refused = rounds_naming(name, ((r.round, r.refused) for r in run.result.rounds))
        limited = rounds_naming(name, ((r.round, r.limited) for r in run.result.rounds))
        if lies or refused or limited:
            attempt = attack.description if lies else "none"
            yield [name, attempt, spans(refused), spans(limited)]


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


def notes(runs: list[Run]) -> Table:
    """Return one row per distinct note, with its runs if there are several."""
    labels = grouped((note, run.label) for run in runs for note in run.result.notes)
    several = len(runs) > 1
    rows = []
    for note, names in labels.items():
        number = PLACEHOLDER if note.round is None else str(note.round)
        shared_by = "all" if len(names) == len(runs) else ", ".join(names)
        rows.append([note.topic, number, *([shared_by] * several), note.text])
    header = ["About", "Round", *["Runs"] * several, "Note"]
    return Table("notes", "Notes", [], header, rows, (0, 2, 3))
