"""In which rounds a silo's uplink was used, and why not in others, from the server's audit log."""

from pathlib import Path
from typing import Any

from pomona.core.errors import ConfigError, suggestion
from pomona_federation.audit_log import complete_lines
from pomona_federation.server.registry_admin import entries
from pomona_federation.study import KIT
from pomona_federation.unused_uplinks import REASONS, UNUSED, Reason

Row = dict[str, Any]
Key = tuple[str, str | None, int]  # study, trial, round


def uplinks(kit: Path, silo: str) -> Row:
    """The rounds of all studies in which a silo was a member, and a row for each that did not use
    its uplink.

    Raises ConfigError for a name that no silo has or had, StorageError for an unreadable log.
    """
    names = [entry.name for entry in entries(kit)]
    if silo not in names:
        raise ConfigError(f"no silo {silo!r}; {suggestion(silo, names)}")
    rounds: dict[Key, bool] = {}
    unused: dict[Key, Row] = {}
    study, trial = KIT, None
    path = kit / "run" / "audit.jsonl"
    for line in complete_lines(path) if path.exists() else ():
        event, number = line.get("event"), int(line.get("round", 0))
        if event == "start":
            study, trial = line.get("study", KIT), line.get("trial")
            for undone in [k for k in {*rounds, *unused} if k[:2] == (study, trial)]:
                if undone[2] > number:
                    rounds.pop(undone, None)
                    unused.pop(undone, None)
        elif event == UNUSED and line.get("silo") == silo:
            unused[study, trial, number] = _row(line, study, trial)
        elif event in {"round", "finished"}:  # a survey is finished without rounds
            present, key = line.get("present", line.get("silos", ())), (study, trial, number or 1)
            if silo in present or silo in line.get("absent", ()):
                rounds[key] = silo in present
            if silo in present:
                unused.pop(key, None)
    return {
        "silo": silo,
        "rounds": len(rounds),
        "used": sum(rounds.values()),
        "unused": list(unused.values()),
    }


def _row(line: Row, study: str, trial: str | None) -> Row:
    """A line of the log as a row; a reason of another version has no remedy here."""
    reason = str(line.get("reason"))
    explanation = REASONS.get(Reason(reason)) if reason in set(Reason) else None
    return {
        "time": line.get("time"),
        "study": study,
        **({} if trial is None else {"trial": trial}),
        **{key: line.get(key) for key in ("round", "stage")},
        "reason": reason,
        "sentence": ": ".join(
            filter(None, (explanation and explanation.event, line.get("detail")))
        ),
        "remedy": explanation.remedy if explanation else "",
    }
