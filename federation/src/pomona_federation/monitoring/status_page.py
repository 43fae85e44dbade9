"""The status page over the server's port, for people with a token; the gate passes requests for
``PAGE`` on to it.

It answers GET and HEAD, reads no body, and lets no request past it. The page is made at most once
in ``FRESH`` seconds, whoever asks and how often.
"""

import asyncio
import binascii
import hashlib
import hmac
import secrets
import time
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from re import DOTALL, findall
from typing import Any

from pydantic import Field

from pomona.core.bounds import Name, Sha256, without_paths
from pomona.core.errors import ConfigError, PomonaError, suggestion
from pomona.core.files import writing
from pomona.core.settings import Settings
from pomona.core.table import Table, of_records
from pomona.core.toml import validated
from pomona.results.web.page_writer import render
from pomona.storage.lock import waiting_lock
from pomona_federation.audit_log import write_line
from pomona_federation.json_store import read_json, write_json
from pomona_federation.monitoring.watched_server import StudyView, WatchedServer
from pomona_federation.server.gate import Receive, Scope, Send
from pomona_federation.study import KIT

FRESH = 5.0  # seconds
WINDOW, REQUEST_LIMIT = 60.0, 120  # seconds, and requests from one address in them
ADDRESSES = 10_000  # counted at a time
HEADERS = (
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"connection", b"close"),
)
CHALLENGE = (b"www-authenticate", b'Basic realm="Pomona", charset="UTF-8"')
POLICY = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"


@dataclass
class StatusPage:
    """ASGI application.

    Args:
        kit: the server's.
        render: makes the page.
    """

    kit: Path
    render: Callable[[], str]
    clock: Callable[[], float] = time.monotonic
    _window: float = 0.0
    _requests: Counter[str] = field(default_factory=Counter)  # in the window, by address
    _page: tuple[float, int, str] | None = None  # when it was made, its status and text
    _making: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def __call__(self, scope: Scope, _: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["method"] not in {"GET", "HEAD"}:
            return await _reply(send, 405, "only GET and HEAD\n", (b"allow", b"GET, HEAD"))
        if not self._timely(str((scope.get("client") or ("",))[0])):
            return await _reply(send, 429, "too many requests\n", (b"retry-after", b"60"))
        try:
            registered = readers(self.kit)
        except PomonaError:
            return await _reply(send, 503, "the server's files cannot be read\n")
        if not admits(registered, scope["headers"]):
            return await _reply(send, 401, "give the token as the password\n", CHALLENGE)
        return await _reply(send, *await self._current())

    def _timely(self, address: str) -> bool:
        """Whether an address may make another request now."""
        moment = self.clock()
        if moment - self._window > WINDOW or len(self._requests) > ADDRESSES:
            self._window, self._requests = moment, Counter()
        self._requests[address] += 1
        return self._requests[address] <= REQUEST_LIMIT

    async def _current(self) -> tuple[int, str]:
        """Status and text of the page."""
        async with self._making:
            if self._page is None or self.clock() - self._page[0] > FRESH:
                status, text = await asyncio.to_thread(self._rendered)
                self._page = self.clock(), status, text
            return self._page[1:]

    def _rendered(self) -> tuple[int, str]:
        try:
            return 200, self.render()
        except (PomonaError, OSError):
            return 503, "the server's files cannot be read\n"


async def _reply(
    send: Send, status: int, text: str, header: tuple[bytes, bytes] | None = None
) -> None:
    page, body = status == 200, text.encode()
    headers = [
        (b"content-type", f"text/{'html' if page else 'plain'}; charset=utf-8".encode()),
        (b"content-length", b"%d" % len(body)),
        (b"content-security-policy", _policy(text if page else "").encode()),
        *HEADERS,
        *([header] if header else []),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _policy(page: str) -> str:
    """The page's policy: nothing is loaded, and of styles only those in the page are used."""
    styles = [
        f"'sha256-{b64encode(hashlib.sha256(style.encode()).digest()).decode()}'"
        for style in findall(r"<style>(.*?)</style>", page, DOTALL)
    ]
    return f"{POLICY}; style-src {' '.join(styles)}" if styles else POLICY


READERS = "page.json"  # in run/
BYTES = 24  # random bytes of a token
READER_LIMIT = 200  # readers
LONGEST = 1000  # bytes of the header with a token


class Readers(Settings):
    """SHA-256 of each reader's token, by name."""

    tokens: dict[Name, Sha256] = Field({}, max_length=READER_LIMIT)


def readers(kit: Path) -> Readers:
    """The readers of a server's page. Raises StorageError."""
    return read_json(Readers, kit / "run" / READERS) or Readers()


def add_reader(kit: Path, name: str) -> str:
    """Make a reader's token, in place of an earlier one, and return it; it is kept nowhere.

    Raises ConfigError, StorageError.
    """
    token = secrets.token_urlsafe(BYTES)
    _change(kit, name, _hashed(token.encode()))
    return token


def revoke_reader(kit: Path, name: str) -> None:
    """Make a reader's token invalid, from the next request on. Raises ConfigError, StorageError."""
    _change(kit, name, None)


def admits(registered: Readers, headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether the password in a request's head is a reader's token.

    The work is the same for every head: one hash, compared with all.
    """
    hashed = _hashed(_password(headers))
    return sum(hmac.compare_digest(token, hashed) for token in registered.tokens.values()) > 0


def _password(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The password of HTTP's basic authentication; empty without exactly one."""
    values = [value for name, value in headers if name.lower() == b"authorization"]
    scheme, _, coded = (values[0] if len(values) == 1 else b"").partition(b" ")
    if scheme.lower() != b"basic" or len(coded) > LONGEST:
        return b""
    try:
        return b64decode(coded.strip(), validate=True).partition(b":")[2]
    except binascii.Error:
        return b""


def _hashed(token: bytes) -> str:
    """A token is random and long, so that it cannot be guessed from a plain hash."""
    return hashlib.sha256(token).hexdigest()


def _change(kit: Path, name: str, token: str | None) -> None:
    state = kit / "run"
    with writing(state / READERS):
        state.mkdir(mode=0o700, exist_ok=True)
        with waiting_lock(state / ".page.lock"):
            tokens = dict(readers(kit).tokens)
            if token is None and name not in tokens:
                raise ConfigError(f"no reader {name!r}; {suggestion(name, tokens)}")
            tokens.pop(name, None)
            new = tokens if token is None else {**tokens, name: token}
            changed = validated(Readers, {"tokens": new})
            write_line(state, "page", reader=name, allowed=token is not None)
            write_json(state / READERS, changed)


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
    since = f"The server has run since {_time(status['since'])}." if status["pid"] else ""
    yield since or "No server runs."
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
    cells = [{key: row[key] for key in STUDY} | {"why": _safe(row["why"])} for row in rows]
    return _table("studies", "Studies", cells)


def _table(name: str, title: str, rows: list[dict[str, Any]]) -> Table:
    table = of_records(rows)
    return Table(name, title, [], table.header, table.rows, table.words)


def _time(text: str) -> str:
    return text.replace("T", " ").replace("+00:00", " UTC")


def _safe(text: str) -> str:
    return without_paths(text)
