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
        now = views[0].now
        tables = [_silos(now), *filter(None, map(_rounds, views)), _studies(now["studies"])]
        links = [(table.name, table.title) for table in tables if table.rows]
        return render(
            "status.html.jinja",
            package="pomona_federation.monitoring",
            title=now["federation"],
            every=EVERY,
            first=links[0][0] if links else "notes",
            links=links,
            lines=[_shown(line) for line in _lines(now, views)],
            notes=[_shown(note) for note in (*now["notes"], now["warning"]) if note],
            tables=[table for table in tables if table.rows],
        )

    return rendered


def _lines(now: Row, views: Iterable[StudyView]) -> Iterable[str]:
    yield f"As of {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC; this page reloads every {EVERY} s."
    yield f"The server has run since {_time(now['since'])}." if now["pid"] else "No server runs."
    if now["certificate"]:
        yield f"Its certificate is valid until {now['certificate']}."
    for view in views:
        yield from _of_study(view)


def _of_study(view: StudyView) -> Iterable[str]:
    now, record = view.now, view.recorded
    if now["study"] is None:
        yield "There is no study."
        return
    yield f"Study {_title(now)}, {now['method']}: {now['state']}{_progress(now)}."
    if now["waiting"]:
        yield now["waiting"]["line"]
    if now["reason"]:
        yield f"Why: {now['reason']} (code {now['code']})"
    if now["sum"]:
        yield now["sum"]
    for (model, when, split), mean in record.means.items():
        yield f"Mean over silos of {record.metric}, {model}, {when}, {split}: {mean:.4g}"


def _title(now: Row) -> str:
    return "of the kit" if now["study"] == KIT else str(now["study"])


def _progress(now: Row) -> str:
    """Round, and the time left at the speed of the last round."""
    if now["method"] == "survey" or not now["rounds"]:
        return ""
    trial = "" if now["trial"] is None else f", trial {now['trial']}"
    left = (now["rounds"] - now["round"]) * (now["seconds"] or 0) / 60
    time = f"about {left:.0f} min left" if left >= 1 else "less than a minute left"
    running = now["state"] == "running" and left
    return f"{trial}, round {now['round']} of {now['rounds']}{f', {time}' if running else ''}"


def _silos(now: Row) -> Table:
    """The silos in the last round of the current study."""
    rows = [
        {
            "silo": silo["silo"],
            "state": silo["state"],
            "connected": f"{'yes' if silo['connected'] else 'no'}{_since(silo['since'])}",
            "samples": silo["samples"],
            "weight": silo["weight"],
            "version": _shown(silo["version"] or ""),
            "not used": _shown(_last(silo["unused"])),
        }
        for silo in now["silos"]
    ]
    return _table("silos", "Silos", rows)


def _since(when: str | None) -> str:
    return f" since {when}" if when else ""


def _last(unused: Row | None) -> str:
    """The last round that did not use a silo's uplink, and why."""
    return f"round {unused['round']}: {unused['sentence']}" if unused else ""


def _rounds(view: StudyView) -> Table | None:
    """Who was present in the last rounds of a study."""
    rounds = sorted(view.judged.present.items())
    if not rounds:
        return None
    rows = [
        {
            "silo": silo["silo"],
            f"rounds {rounds[0][0]} to {rounds[-1][0]}": "".join(
                PRESENT if silo["silo"] in present else ABSENT for _, present in rounds
            ),
        }
        for silo in view.now["silos"]
    ]
    name = str(view.now["study"])
    return _table(f"rounds-{name}", f"Present in study {_title(view.now)}", rows)


def _studies(rows: Iterable[Row]) -> Table:
    return _table(
        "studies",
        "Studies",
        [{key: row[key] for key in STUDY} | {"why": _shown(row["why"])} for row in rows],
    )


def _table(name: str, title: str, rows: list[dict[str, Any]]) -> Table:
    table = of_records(rows)
    return Table(name, title, [], table.header, table.rows, table.words)


def _time(text: str) -> str:
    return text.replace("T", " ").replace("+00:00", " UTC")


def _shown(text: str) -> str:
    return without_paths(text)
