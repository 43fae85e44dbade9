"""What happened, in sentences: the opening of the page, and what a reader must know before trusting it."""

from datetime import datetime

from pomona.report.clients import wins
from pomona.report.numbers import Run, average, baseline, comparable, finished, leader, percent, spoken


def listing(words: list[str]) -> str:
    """``a, b and c``."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def title(runs: list[Run]) -> str:
    """The name of the page."""
    names = listing([run.label for run in runs]) if len(runs) <= 6 else f"{len(runs)} runs"
    places = sorted({str(run.setting("data.name")) for run in runs if run.setting("data.name")})
    return names + (f" on {listing(places)}" if places else "")


def opening(runs: list[Run]) -> list[str]:
    """Sentences that say what was trained, on what, and what came out, with every number named."""
    sentences = [_setup(runs), *(_comparison(runs) if len(runs) > 1 else _outcome(runs[0]))]
    return [sentence.replace(" %", "\N{NO-BREAK SPACE}%") for sentence in sentences]


def _setup(runs: list[Run]) -> str:
    first = runs[0]
    about = first.result.about
    n = len(about.get("clients") or ())
    model = about.get("model")
    model = model.get("name") if isinstance(model, dict) else model
    parameters = about.get("parameters")
    size = f" ({parameters:,} parameters)" if isinstance(parameters, int) else ""
    partition = first.setting("partition.name")
    seeds = sorted({s for run in runs if (s := run.setting("seed")) is not None})
    seeding = f"seed{'s' if len(seeds) > 1 else ''} {listing([str(s) for s in seeds])}" if seeds else ""
    detail = ", ".join(text for text in (f"{partition} partition" if partition else "", seeding) if text)
    rounds = sorted({r for run in runs if (r := run.setting("rounds")) is not None})
    length = f" over {listing([str(r) for r in rounds])} round{'s' if rounds != [1] else ''}" if rounds else ""
    who = f"{n} client{'s' if n != 1 else ''}" if n else "the clients"
    data = first.setting("data.name") or "the same data"
    return (
        f"{listing([run.label for run in runs])} trained {f'{model} models' if model else 'models'}{size}{length} "
        f"for {who} that hold{'s' if n == 1 else ''} parts of {data}{f' ({detail})' if detail else ''}."
    )


def _judged(run: Run) -> str:
    """The headline model of a run as the subject of a sentence."""
    last = run.last
    assert last is not None
    if last.model == "global":
        return f"the global model, evaluated {spoken(last.when)}, is"
    return f"the clients' {last.model} models, evaluated {spoken(last.when)}, are"


def _whole(run: Run) -> str:
    """What an accuracy is a share of."""
    flags = run.result.about.get("targets") == "multilabel"
    return "the labels of a client's test samples" if flags else "a client's test samples"


def _outcome(run: Run) -> list[str]:
    last = run.last
    if last is None:
        return ["No model was evaluated on a test split, so there is no result to state."]
    if last.mean is None:
        loss = average(last.loss)
        return [] if loss is None else [f"After round {last.round} the test loss is {loss:.4f}, averaged over clients."]
    return [
        f"After round {last.round}, {_judged(run)} right on {percent(last.mean)} % of {_whole(run)} on "
        f"average over clients, and on {percent(last.pooled)} % of all test samples taken together."
    ]


def _comparison(runs: list[Run]) -> list[str]:
    if not comparable(runs):
        return ["They do not share one scenario (data and partition), so their numbers are not ranked."]
    judged = [run for run in runs if run.mean is not None]
    best = leader(judged)
    if best is None or best.last is None:
        return ["No accuracy was recorded, so the runs cannot be ranked."]
    level = [run for run in judged if percent(run.mean) == percent(best.mean)]
    if len(level) > 1:
        return [
            f"{listing([r.label for r in level])} end level at {percent(best.mean)} % test accuracy, mean over clients."
        ]
    sentences = [
        f"{best.label} came out ahead: after round {best.last.round}, {_judged(best)} right on {percent(best.mean)} % "
        f"of {_whole(best)}, on average over clients."
    ]
    rivals = [run for run in judged if run is not best]
    if not rivals:
        return sentences
    second = leader(rivals)
    assert second is not None
    gap = 100 * ((best.mean or 0) - (second.mean or 0))
    sentences.append(f"Next is {second.label} with {percent(second.mean)} %, {gap:.2f} points behind ({second.model}).")
    base = baseline(judged, best)
    if base is not None and base is not best:
        up, down, level_on = wins(best, base.accuracies)
        sentences.append(
            f"Client by client, {best.label} does better than {base.label} on {up}, worse on {down} "
            f"and equally well on {level_on}."
        )
    return sentences


def cautions(runs: list[Run]) -> list[str]:
    """What limits the numbers on the page."""
    notes = []
    for run in runs:
        planned = run.setting("rounds")
        if not finished(run.result):
            total = f" of {planned}" if planned is not None else ""
            notes.append(f"{run.label} was cut short: {len(run.result.rounds)}{total} rounds are recorded.")
    if len(runs) > 1 and len({run.setting("seed") for run in runs}) == 1:
        notes.append("All runs use one seed: small differences between them may be chance.")
    if any(run.mean is not None for run in runs):
        notes.append(
            "“Best on test”, the papers' BMCTA, picks its round by looking at the test data: it compares with "
            "published tables, and flatters."
        )
    return notes


def progress(run: Run, now: datetime) -> str:
    """How far a run is that goes on, ``now`` in UTC."""
    done, planned = len(run.result.rounds), run.setting("rounds")
    return f"round {done}{f' of {planned}' if planned is not None else ''} is done, written at {now:%H:%M:%S} UTC"
