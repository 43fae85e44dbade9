"""What happened in a federation, by all audit logs, silos' histories and privacy ledgers; and the
rules that every such history must keep, whatever was killed, paused, cut or repeated.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from pomona_federation.audit_log import complete_lines, verify
from pomona_federation.study import KIT
from pomona_federation.unused_uplinks import ADMITTED, UNUSED, Reason

Line = Mapping[str, object]


@dataclass(frozen=True)
class SiloHistory:
    """A silo's lines: of its audit log; of ``rounds.jsonl``, and of privacy ledgers (without their
    heads), by study.
    """

    audit: Sequence[Line] = ()
    visits: Mapping[str, Sequence[Line]] = field(default_factory=dict)
    ledgers: Mapping[str, Sequence[Line]] = field(default_factory=dict)


@dataclass(frozen=True)
class History:
    """A federation's history; ``minimum``: silos of a sum, by study with secure aggregation;
    ``private``: studies with noise; ``broken``: audit logs whose chain does not hold.
    """

    server: Sequence[Line]
    silos: Mapping[str, SiloHistory]
    minimum: Mapping[str, int] = field(default_factory=dict)
    private: frozenset[str] = frozenset()
    broken: Sequence[str] = ()


def read_history(
    kits: Path, silos: Sequence[str], minimum: Mapping[str, int], private: frozenset[str]
) -> History:
    """The history in the kits of a federation whose processes have ended; silos that no message
    reached have none.
    """
    logs = {"server": kits / "server/run/audit.jsonl"}
    logs |= {name: kits / name / "state/audit.jsonl" for name in silos}
    present = {owner: path for owner, path in logs.items() if path.exists()}
    broken = [f"{owner}: line {bad}" for owner, path in present.items() if (bad := verify(path))]
    return History(
        list(complete_lines(logs["server"])),
        {name: _silo(kits / name / "state", logs[name]) for name in silos},
        minimum,
        private,
        broken,
    )


def _silo(state: Path, log: Path) -> SiloHistory:
    folders = {KIT: state} | {
        path.name.rpartition("-")[0]: path for path in (state / "studies").glob("*-*")
    }
    ledger = "private/dp/*/ledger.jsonl"
    return SiloHistory(
        list(complete_lines(log)) if log.exists() else [],
        {name: list(_json_lines(path / "rounds.jsonl")) for name, path in folders.items()},
        {
            name: [line for file in path.glob(ledger) for line in list(_json_lines(file))[1:]]
            for name, path in folders.items()
        },
    )


def _json_lines(path: Path) -> Iterator[Line]:
    """The lines of a file, without those that a kill has cut short."""
    for text in path.read_text().splitlines() if path.exists() else ():
        try:
            yield json.loads(text)
        except ValueError:
            continue


def violations(history: History) -> list[str]:
    """Every rule that the history breaks, with study, round and silo."""
    broken = [f"an audit log's chain is broken: {log}" for log in history.broken]
    runs = by_run(history.server)
    for study, lines in runs.items():
        problems = [
            *_rounds_follow(lines),
            *_members_are_whole(lines, set(history.silos)),
            *_counted_once(lines),
            *_answered_once(lines),
            *_sums(lines, history.minimum.get(study)),
            *_reasons(lines),
        ]
        broken += [f"{study}: {line}" for line in problems]
    for name, silo in history.silos.items():
        problems = [
            *_trained_once(silo.visits),
            *_summed_once(silo.audit, history.minimum, name),
            *_refusals_have_reasons(silo.audit),
            *_consented(silo.audit),
            *_in_ledgers(silo, {s: received(lines, name) for s, lines in runs.items()}, history),
        ]
        broken += [f"{name}: {line}" for line in problems]
    return broken + _same_sums(history, runs)


def by_run(server: Sequence[Line]) -> dict[str, list[Line]]:
    """The server's lines of each study, from its first start on; studies run one at a time."""
    runs, study = defaultdict[str, list[Line]](list), ""
    for line in server:
        if line["event"] == "start":
            study = str(line.get("study", KIT))
        if study:
            runs[study].append(line)
    return dict(runs)


def received(lines: Sequence[Line], silo: str) -> set[int]:
    """The rounds of a run in which the server has got a trained model, or its part in a sum."""
    return {
        int(line["round"])  # type: ignore[call-overload]
        for line in lines
        if line["event"] == "received" and line["silo"] == silo and line.get("uplink")
    }


def _rounds_follow(lines: Sequence[Line]) -> Iterator[str]:
    """Committed rounds are contiguous. A kill may take the line of a round whose checkpoint is
    durable: the next start then has its number.
    """
    committed = 0
    for line in lines:
        number = line.get("round")
        if line["event"] == "start":
            if number not in {committed, committed + 1}:
                yield f"started after round {number}, committed was round {committed}"
            committed = number
        elif line["event"] == "round":
            if number != committed + 1:
                yield f"round {number} was committed after round {committed}"
            committed = number
        elif line["event"] in {"sent", "received"} and number not in {committed, committed + 1}:
            yield f"{line['event']} {line['silo']} a message of round {number} after round {committed}"


def _members_are_whole(lines: Sequence[Line], members: set[str]) -> Iterator[str]:
    """Each member is present or absent in a committed round, and not twice."""
    for line in lines:
        if line["event"] == "round":
            counts = Counter([*line["present"], *line["absent"]])
            if counts != Counter(members):
                yield f"round {line['round']} has the members {sorted(counts.elements())}"


def _attempts(lines: Sequence[Line]) -> Iterator[list[Line]]:
    """The lines of each try of each round; a task that is sent after a decision begins another."""
    attempt, decided, numbered = 0, False, []
    for line in lines:
        if line["event"] == "start" or (decided and line["event"] == "sent"):
            attempt, decided = attempt + 1, False
        decided |= line["event"] in {ADMITTED, UNUSED} and bool(line["round"])
        numbered.append((attempt, line))
    for _, group in groupby(numbered, key=lambda pair: pair[0]):
        yield [line for _, line in group]


def _counted_once(lines: Sequence[Line]) -> Iterator[str]:
    """A round uses each answer once, and only of silos that have answered in it."""
    answered = defaultdict[object, set[object]](set)
    for attempt in _attempts(lines):
        admitted = Counter[tuple[object, object]]()
        for line in attempt:
            number, silo = key = line.get("round"), line.get("silo")
            if line["event"] == "received":
                answered[number].add(silo)
            elif line["event"] == ADMITTED:
                admitted[key] += 1
                if admitted[key] > 1:
                    yield f"round {number}: two answers of {silo} are used"
                if silo not in answered[number]:
                    yield f"round {number}: {silo} is used, which has not answered"
            elif line["event"] == "round":
                used = {name for (n, name) in admitted if n == number}
                if strangers := set(line["present"]) ^ used:
                    yield f"round {number}: {sorted(strangers)} present or used, not both"


def _answered_once(lines: Sequence[Line]) -> Iterator[str]:
    """No round has two different models, or parts in a sum, of one silo: it trains once."""
    models = defaultdict[tuple[object, object], set[object]](set)
    for line in lines:
        if line["event"] == "received" and line.get("uplink"):
            models[line["round"], line["silo"]].add(line["uplink"])
    for (number, silo), uplinks in models.items():
        if len(uplinks) > 1:
            yield f"round {number}: {len(uplinks)} different answers of {silo}"


def _sums(lines: Sequence[Line], minimum: int | None) -> Iterator[str]:
    """A sum is over the agreed least number of silos, the same ones each time, and only agreed."""
    summed = defaultdict[object, set[tuple[str, ...]]](set)
    for line in lines:
        if line["event"] == "sum":
            summed[line["round"]].add(tuple(line["silos"]))
            if minimum is None or len(set(line["silos"])) < minimum:
                yield f"round {line['round']}: a sum over {line['silos']}, agreed were {minimum}"
    for number, sets in summed.items():
        if len(sets) > 1:
            yield f"round {number}: sums over {sorted(sets)}"


def _reasons(lines: Sequence[Line]) -> Iterator[str]:
    """Each silo that is absent from a committed round has a record with the reason."""
    explained = defaultdict[object, set[object]](set)
    for line in lines:
        if line["event"] == UNUSED:
            explained[line["round"]].add(line["silo"])
            if line.get("reason") not in set(Reason):
                yield f"round {line['round']}: {line['silo']} is unused without a reason"
        elif line["event"] == "round":
            for missing in sorted(set(line["absent"]) - explained[line["round"]]):
                yield f"round {line['round']}: no reason why {missing} is absent"


def _trained_once(visits: Mapping[str, Sequence[Line]]) -> Iterator[str]:
    """A silo trains a round of a study once."""
    for study, lines in visits.items():
        rounds = Counter(v["round"] for v in lines if v["trained"] and not v.get("fault"))
        for number, times in rounds.items():
            if times > 1:
                yield f"{study}: trained round {number} {times} times"


def _summed_once(audit: Sequence[Line], minimum: Mapping[str, int], name: str) -> Iterator[str]:
    """A silo masks in one sum a round, which it is in, of the agreed least number of silos."""
    summed = defaultdict[tuple[str, object], set[tuple[str, ...]]](set)
    for line in audit:
        key = str(line.get("study", KIT)), line.get("round")
        if line["event"] == "sum":
            summed[key].add(tuple(line["silos"]))
            if name not in line["silos"] or len(set(line["silos"])) < minimum.get(key[0], 2**31):
                yield f"{key[0]}, round {key[1]}: masked for {line['silos']}"
    for (study, number), sums in summed.items():
        if len(sums) > 1:
            yield f"{study}, round {number}: its key is in {len(sums)} sums"


def _same_sums(history: History, runs: Mapping[str, Sequence[Line]]) -> list[str]:
    """The server has summed over exactly the silos that each of them has masked for."""
    masked = {
        (name, str(line.get("study", KIT)), line["round"]): set(line["silos"])
        for name, silo in history.silos.items()
        for line in silo.audit
        if line["event"] == "sum"
    }
    return [
        f"{study}, round {line['round']}: {name} has not masked for the sum over {line['silos']}"
        for study, lines in runs.items()
        for line in lines
        if line["event"] == "sum"
        for name in line["silos"]
        if masked.get((name, study, line["round"])) != set(line["silos"])
    ]


def _refusals_have_reasons(audit: Sequence[Line]) -> Iterator[str]:
    for line in audit:
        if line["event"] == "refused" and not line.get("reason"):
            yield "a refusal without a reason"


def _consented(audit: Sequence[Line]) -> Iterator[str]:
    """A silo answers only tasks of studies that it has accepted; a kit's own by starting."""
    accepted = {KIT}
    for line in audit:
        study = str(line.get("study", KIT))
        if line["event"] in {"accepted", "declined"}:
            (accepted.add if line["event"] == "accepted" else accepted.discard)(study)
        elif line["event"] in {"answered", "sum"} and study not in accepted:
            yield f"{study}: {line['event']} before it was accepted"


def _in_ledgers(
    silo: SiloHistory, counted: Mapping[str, set[int]], history: History
) -> Iterator[str]:
    """A private study's ledger has each release once, of every round that left the silo; and of no
    round that the silo was not asked to train.
    """
    for study in history.private:
        entries = silo.ledgers.get(study, ())
        draws = Counter((e["round"], e["purpose"], e["step"]) for e in entries)
        if twice := [draw for draw, times in draws.items() if times > 1]:
            yield f"{study}: {len(twice)} draws were released twice, first {twice[0]}"
        rounds = {e["round"] for e in entries}
        trained = {v["round"] for v in silo.visits.get(study, ()) if v["trained"]}
        if missing := sorted((counted.get(study, set()) | trained) - rounds):
            yield f"{study}: rounds {missing} were released and are not in its ledger"
