"""The status page of a server: what ``pomona server status`` shows, for people without a terminal.

Texts of others are one line each, without paths, and escaped.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pomona.core.bounds import without_paths
from pomona.core.table import Table, of_records
from pomona.results.web.page_writer import render
from pomona_federation.monitoring.watched_server import StudyView, WatchedServer
from pomona_federation.study import KIT

EVERY = 30  # seconds between reloads
PRESENT, ABSENT = "\u25a0", "\u25a1"
STUDY = ("study", "kind", "state", "round", "submitted", "accepted", "declined", "undecided")
Row = Mapping[str, Any]


def status_html(kit: Path) -> Callable[[], str]:
    """A function that renders the page of a server's kit; it raises PomonaError.

    Raises ConfigError for a folder that is not a kit.
    """
    server = WatchedServer(kit)

    def rendered() -> str:
        views = server.studies()
        status = views[0].status
        tables = [_silos(status), *filter(None, map(_rounds, views)), _studies(status["studies"])]
        links = [(table.name, table.title) for table in tables if table.rows]
        return render(
            "status.html.jinja",
            package="pomona_federation.monitoring",
            title=status["federation"],
            every=EVERY,
            first=links[0][0] if links else "notes",
            links=links,
            lines=[_safe(line) for line in _lines(status, views)],
            notes=[_safe(note) for note in (*status["notes"], status["warning"]) if note],
            tables=[table for table in tables if table.rows],
        )

    return rendered


def _lines(status: Row, views: Iterable[StudyView]) -> Iterable[str]:
    yield f"As of {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC; this page reloads every {EVERY} s."
    yield (
        f"The server has run since {_time(status['since'])}."
        if status["pid"]
        else "No server runs."
    )
    if status["certificate"]:
        yield f"Its certificate is valid until {status['certificate']}."
    if status["drain"]:
        yield f"The server is {status['drain']}: it begins no study."
    for view in views:
        yield from _of_study(view)


def _of_study(view: StudyView) -> Iterable[str]:
    status, record = view.status, view.recorded
    if status["study"] is None:
        yield "There is no study."
        return
    yield f"Study {_title(status)}, {status['method']}: {status['state']}{_progress(status)}."
    if status["waiting"]:
        yield status["waiting"]["line"]
    if status["reason"]:
        yield f"Why: {status['reason']} (code {status['code']})"
    if status["sum"]:
        yield status["sum"]
    for (model, stage, split), mean in record.means.items():
        yield f"Mean over silos of {record.metric}, {model}, {stage}, {split}: {mean:.4g}"


def _title(status: Row) -> str:
    return "of the kit" if status["study"] == KIT else str(status["study"])


def _progress(status: Row) -> str:
    """Round, and the time left at the speed of the last round."""
    if status["method"] == "survey" or not status["rounds"]:
        return ""
    trial = "" if status["trial"] is None else f", trial {status['trial']}"
    left = (status["rounds"] - status["round"]) * (status["seconds"] or 0) / 60
    time = f"about {left:.0f} min left" if left >= 1 else "less than a minute left"
    running = status["state"] == "running" and left
    return f"{trial}, round {status['round']} of {status['rounds']}{f', {time}' if running else ''}"


def _silos(status: Row) -> Table:
    """The silos in the last round of the current study."""
    rows = [
        {
            "silo": silo["silo"],
            "state": silo["state"],
            "connected": f"{'yes' if silo['connected'] else 'no'}{_since_text(silo['since'])}",
            "samples": silo["samples"],
            "weight": silo["weight"],
            "version": _safe(silo["version"] or ""),
            "not used": _safe(_last_unused(silo["unused"])),
        }
        for silo in status["silos"]
    ]
    return _table("silos", "Silos", rows)


def _since_text(time: str | None) -> str:
    return f" since {_time(time)}" if time else ""


def _last_unused(unused: Row | None) -> str:
    """The last round that did not use a silo's uplink, and why."""
    return f"round {unused['round']}: {unused['sentence']}" if unused else ""


def _rounds(view: StudyView) -> Table | None:
    """Who was present in the last rounds of a study."""
    rounds = sorted(view.audited.present.items())
    if not rounds:
        return None
    rows = [
        {
            "silo": silo["silo"],
            f"rounds {rounds[0][0]} to {rounds[-1][0]}": "".join(
                PRESENT if silo["silo"] in present else ABSENT for _, present in rounds
            ),
        }
        for silo in view.status["silos"]
    ]
    name = str(view.status["study"])
    return _table(f"rounds-{name}", f"Present in study {_title(view.status)}", rows)


def _studies(rows: Iterable[Row]) -> Table:
    return _table(
        "studies",
        "Studies",
        [{key: row[key] for key in STUDY} | {"why": _safe(row["why"])} for row in rows],
    )


def _table(name: str, title: str, rows: list[dict[str, Any]]) -> Table:
    table = of_records(rows)
    return Table(name, title, [], table.header, table.rows, table.words)


def _time(text: str) -> str:
    return text.replace("T", " ").replace("+00:00", " UTC")


def _safe(text: str) -> str:
    return without_paths(text)
