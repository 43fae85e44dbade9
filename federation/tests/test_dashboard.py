"""The operators' page: access control, content, escaping, and its look in a browser."""

import asyncio
import json
import re
import signal
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import monitored
from chromium import screen
from monitored import HOSTILE, copied, running
from pomona.core.errors import ConfigError
from pomona.metrics.metric import METRICS
from pomona.storage.run_status import Status, write_status
from pomona_federation.audit import Audit
from pomona_federation.monitoring import dashboard_app as dashboards
from pomona_federation.monitoring.chart import HEIGHT, Line, chart, ticks
from pomona_federation.monitoring.dashboard import ago
from pomona_federation.monitoring.dashboard_app import dashboard_app, new_token
from pomona_federation.monitoring.run_history import AuditedServer, Followed, Point
from pomona_federation.monitoring.watched_server import WatchedServer
from pomona_federation.server.studies.study_queue import StudyQueue
from test_preflight import command
from test_studies import decided, heard, study_file

TOKEN = "t" * 43


def asked(kit, path="/", token=TOKEN, base="http://127.0.0.1:8050", **more):
    headers = {"authorization": f"Bearer {token}"} if token else {}
    return monitored.asked(dashboard_app(WatchedServer.of(kit), TOKEN), path, base, **headers, **more)


class Page(HTMLParser):
    """Elements, attributes and texts of a page; sections' tables as rows of texts."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.text, self.rows = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag == "tr":
            self.rows.append([])
        if tag in {"td", "th"} and self.rows:
            self.rows[-1].append("")

    def handle_data(self, data):
        self.text.append(data)
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += data

    def handle_endtag(self, tag):
        if tag == "table":
            self.rows.append([])

    def row(self, *begin):
        """The first row of a table that starts with these cells."""
        rows = ([cell.strip() for cell in row] for row in self.rows)
        return next(row for row in rows if row[: len(begin)] == list(begin))


# Who may see it.


def test_without_the_token_nothing_is_shown(ran):
    for path in ("/", "/page.css", "/study/", "/nothing"):
        for token in ("", "t", TOKEN + "t"):
            answer = asked(ran / "server", path, token)
            assert answer.status_code == 401
            assert "rehearsal" not in answer.text
    assert asked(ran / "server", "/?token=wrong", "").status_code == 401
    assert asked(ran / "server", "/?token=%FF%00", "").status_code == 401


def test_the_token_becomes_a_cookie_that_no_script_and_no_other_site_gets(ran):
    first = asked(ran / "server", f"/?token={TOKEN}", "")
    assert (first.status_code, first.headers["location"]) == (303, "/")
    cookie = first.headers["set-cookie"]
    assert {part.strip().lower() for part in cookie.split(";")[1:]} == {"httponly", "path=/", "samesite=strict"}
    name = cookie.partition("=")[0]
    assert name.endswith("8050")  # cookies know no ports
    for value, status in ((TOKEN, 200), ("x" * 43, 401)):
        assert asked(ran / "server", token="", cookie=f"{name}={value}").status_code == status
    assert TOKEN not in asked(ran / "server").text


@pytest.mark.parametrize(
    ("path", "there"),
    [
        ("/study/one", "/study/one"),
        ("//evil.example/", "/evil.example/"),
        ("///evil.example/", "/evil.example/"),
        ("/%2Fevil.example/", "/evil.example/"),
        ("/%5Cevil.example/", "/%5Cevil.example/"),  # browsers take \\ for /
        ("/%09/evil.example/", "/%09/evil.example/"),  # and leave out tabs
        ("http://evil.example/", "/http://evil.example/"),
    ],
)
def test_the_token_leads_to_no_other_host(ran, path, there):
    app = dashboard_app(WatchedServer.of(ran / "server"), TOKEN)
    answers = []

    async def receive():
        return {"type": "http.request"}

    async def send(message):
        answers.append(message)

    scope = {
        "type": "http", "method": "GET", "path": unquote(path), "raw_path": path.encode(), "scheme": "http",
        "query_string": f"token={TOKEN}".encode(), "headers": [(b"host", b"127.0.0.1:8050")],
        "server": ("127.0.0.1", 8050), "client": ("127.0.0.1", 5), "root_path": "", "http_version": "1.1",
    }  # fmt: skip
    asyncio.run(app(scope, receive, send))
    assert answers[0]["status"] == 303
    assert dict(answers[0]["headers"])[b"location"] == there.encode()
    assert not urlsplit(urljoin("http://127.0.0.1:8050/", there)).netloc.endswith("evil.example")


def test_no_other_answer_leads_anywhere(ran):
    for path in ("/page.css/", "/study/one/", "/nothing/"):
        answer = asked(ran / "server", path, host="127.0.0.1:80@evil.example")
        assert answer.status_code < 300 or answer.status_code >= 400
        assert "location" not in answer.headers


def test_each_start_draws_a_token_of_its_own_and_compares_it_in_constant_time(ran, monkeypatch):
    tokens = {new_token() for _ in range(50)}
    assert len(tokens) == 50
    assert min(map(len, tokens)) >= 43  # 256 bits in base64
    compared, real = [], dashboards.secrets.compare_digest
    monkeypatch.setattr(dashboards.secrets, "compare_digest", lambda *a: compared.append(a) or real(*a))
    assert asked(ran / "server", token="wrong").status_code == 401
    assert (b"wrong", TOKEN.encode()) in compared


def test_a_page_elsewhere_cannot_ask_under_a_name_of_its_own(ran):
    assert asked(ran / "server", base="http://rebound.example:8050").status_code == 400
    assert asked(ran / "server", base="http://localhost:1234").status_code == 200  # a tunnel


def test_nothing_can_be_changed(ran):
    app = dashboard_app(WatchedServer.of(ran / "server"), TOKEN)
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        answer = monitored.asked(app, "/", method=method, authorization=f"Bearer {TOKEN}")
        assert answer.status_code == 405


def test_the_policy_forbids_all_scripts_and_the_page_needs_none(ran):
    answer = asked(ran / "server")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert not re.search(r"unsafe|script|nonce|\*|http", policy)
    page = Page(answer.text)
    assert not {"script", "style", "iframe", "form", "object"} & set(page.tags)
    assert not [name for _, name, _ in page.attributes if name == "style" or name.startswith("on")]
    assert {value for tag, name, value in page.attributes if tag == "link" and name == "href"} == {
        "/page.css",
        "data:,",
    }


# What it says.


def test_the_page_says_what_the_files_hold(ran):
    page = Page(asked(ran / "server").text)
    events = [json.loads(line) for line in (ran / "server" / "run" / "events.jsonl").read_text().splitlines()]
    rounds = [e for e in events if e["event"] == "round"]
    last = next(e for e in reversed(events) if e["event"] == "evaluation" and e["split"] == "test")
    mean = sum(100 * v for v in last["value"]) / 3
    assert page.row("3")[1] == f"{mean:.2f}"  # of three clients there is no interval
    assert page.row("2")[3] == "2"  # silo-1 was refused
    silo = page.row("silo-1")
    sent = sum(e["bytes_down"][e["cohort"].index(1)] for e in rounds if 1 in e["cohort"])
    assert silo[5] == f"{sent / 1000:.3g} kB"
    assert silo[7:9] == ["2", "1"]
    assert page.row("silo-1", "2", "refused")[6].startswith("tensor 'core' has norm")
    assert "finished" in page.text


def test_for_whom_is_waited_and_why_the_run_ended(ran, tmp_path):
    server = copied(ran / "server", tmp_path / "server")
    with running(server, {"silo-1": "is not connected"}):
        text = " ".join(" ".join(Page(asked(server).text).text).split())
        assert "running" in text
        assert "1 of 2 have answered; until" in text
        assert "silo-1 is not connected" in text
    assert "killed" in asked(server).text
    write_status(server / "run", Status(state="failed", round=2, code=7, reason="too few silos"))
    assert "Ended with code 7: too few silos" in " ".join(" ".join(Page(asked(server).text).text).split())


def test_text_of_others_is_shown_and_never_obeyed(ran, tmp_path):
    server = copied(ran / "server", tmp_path / "server")
    live = json.loads((server / "run" / "live.json").read_text())
    live |= {"why": {"silo-1": HOSTILE, HOSTILE: HOSTILE}, "rejected": ["silo-1"], "present": []}
    (server / "run" / "live.json").write_text(json.dumps(live))
    with Audit(server / "run" / "audit.jsonl") as audit:
        audit.write("refused", silo=HOSTILE, reason=HOSTILE)
        audit.write("admission", silo=HOSTILE, round=HOSTILE, admitted=False, norms=HOSTILE, limits=[1], reason=HOSTILE)
        audit.write("lost", process=[HOSTILE])
    clean = Page(asked(ran / "server").text)
    with running(server, {HOSTILE: HOSTILE}):
        page = Page(asked(server).text)
    assert set(page.tags) <= set(clean.tags) | {"strong", "ul", "li"}
    assert {name for _, name, _ in page.attributes} <= {name for _, name, _ in clean.attributes}
    assert "".join(page.text).count(HOSTILE) >= 6


def test_an_uplink_that_was_refused_as_it_came_is_told_once_and_studies_are_told_apart(tmp_path):
    with Audit(tmp_path / "audit.jsonl") as audit:
        audit.write("refused", silo="south", round=1, reason="the signature is not south's")
        audit.write("admission", silo="south", round=1, admitted=False, reason="the signature is not south's")
        audit.write("start", study="second")
        audit.write("admission", silo="north", round=1, admitted=True, norms={"core": 2.0}, limits={"core": None})
        audit.write("refused", silo="node 7", reason="signed by nobody")
    known = Followed(tmp_path / "audit.jsonl", AuditedServer).look()
    own, second = known.studies[""], known.studies["second"]
    assert [(d.silo, d.admitted) for d in own.decisions] == [("south", False)]
    assert [(d.silo, d.admitted, d.norm, d.limit) for d in second.decisions] == [
        ("north", True, 2.0, None),
        ("node 7", False, None, None),
    ]
    assert (own.refused["south"], second.admitted["north"], second.refused.total()) == (1, 1, 0)


def test_a_file_that_cannot_be_read_is_said_on_the_page(ran, tmp_path):
    server = copied(ran / "server", tmp_path / "server")
    (server / "run" / "roster.json").write_text("{")
    answer = asked(server)
    assert answer.status_code == 503
    assert "roster.json cannot be read" in answer.text
    assert asked(ran / "server", "/study/unknown").status_code == 404
    with pytest.raises(ConfigError):
        WatchedServer.of(tmp_path)


def test_a_look_writes_nothing_and_takes_no_lock(ran, tmp_path):
    server = copied(ran / "server", tmp_path / "server")

    def files():
        return {p: (p.stat().st_mtime_ns, p.stat().st_size) for p in server.rglob("*")}

    before = files()
    with running(server, {}):
        pass
    written = files()
    assert written != before
    assert asked(server).status_code == 200
    assert files() == written


def test_each_study_has_a_page(world):
    federation = world.federation(method="fedavg")
    federation.run()
    StudyQueue(federation.server).submit(study_file(federation, "second"))
    page = asked(federation.server)
    assert '<a href="/study/second">second</a>' in page.text
    assert "The kit's own study (fedavg):" in "".join(Page(page.text).text)
    for silo in federation.names:
        heard(federation, silo)
        decided(federation, silo, "second", accepted=silo != "silo-2")
    second = asked(federation.server, "/study/second")
    assert second.status_code == 200
    row = Page(second.text).row("second")
    assert row[3:6] == ["silo-0, silo-1", "silo-2", "-"]
    assert '<a href="/study/">' in second.text
    assert "No round has been committed yet" in second.text
    assert asked(federation.server, "/study/").text.count("No round has been committed yet") == 0


@pytest.mark.parametrize(
    ("past", "said"),
    [
        (0, "0 s ago"),
        (99, "99 s ago"),
        (100, "1 min ago"),
        (5999, "99 min ago"),
        (6000, "1 h ago"),
        (172800, "2 days ago"),
    ],
)
def test_how_long_ago(past, said):
    assert ago(1e9, 1e9 + past) == said


def test_no_moment_is_a_dash():
    assert ago(None, 0.0) == "-"


# The chart.

values = st.floats(0, 1) | st.floats(-1e300, 1e300)
points = st.lists(
    st.tuples(st.integers(0, 10**6), values, values, st.booleans()), min_size=1, max_size=30, unique_by=lambda p: p[0]
)


@given(points, st.sampled_from([350, 1080]))
def test_all_that_is_drawn_lies_within_the_drawing(drawn, width):
    line = sorted(Point(n, m, m - abs(s) if known else None, m + abs(s) if known else None) for n, m, s, known in drawn)
    text = str(chart([Line("test", line, True)], METRICS["mae"], width, "x"))
    places = [pair for group in re.findall(r'points="([^"]*)"', text) for pair in group.split()]
    assert len(places) >= len(line)
    for place in places:
        x, y = map(float, place.split(","))
        assert 0 <= x <= width
        assert 0 <= y <= HEIGHT
    assert max(map(len, re.findall(r">([^<]*)</text>", text))) <= len("-1.25e+270")


@given(st.floats(-1e6, 1e6), st.floats(0, 1e6), st.integers(1, 12))
@example(0.0, 5e-324, 5)
def test_ticks_enclose_the_values_and_are_few(low, span, count):
    steps = ticks(low, low + span, count)
    assert steps[0] <= low + 1e-6 * max(1, abs(low), span)
    assert steps[-1] >= low + span - 1e-6 * max(1, abs(low), span)
    assert 2 <= len(steps) <= count + 3


def test_a_line_of_many_rounds_has_few_points_and_its_last():
    line = [Point(n, n / 10**5, None, None) for n in range(10**4)]
    drawn = str(chart([Line("test", line, False)], METRICS["auroc"], 350, "x"))
    (course,) = re.findall(r'<polyline class="course test" points="([^"]*)"', drawn)
    assert len(course.split()) <= 400
    assert course.split()[-1].startswith("338.0,")


# In a browser, from a process of its own.


@pytest.fixture(scope="module")
def served(ran, tmp_path_factory):
    """The address printed by `pomona server dashboard`, for a run in progress."""
    server = copied(ran / "server", tmp_path_factory.mktemp("served") / "server")
    words = ["server", "dashboard", "--folder", str(server), "--port", "0"]
    with running(server, {"silo-1": "is not connected", "silo-2": "has not answered yet"}):
        process = subprocess.Popen([sys.executable, "-m", "pomona", *words], stderr=subprocess.PIPE, text=True)
        with process:
            yield process.stderr.readline().removeprefix("open ").strip()
            process.send_signal(signal.SIGINT)
            rest = process.stderr.read()
        assert "Traceback" not in rest
        assert process.returncode == 130


def test_the_server_listens_on_loopback_alone_and_logs_no_token(served):
    import httpx

    port = int(re.search(r":(\d+)/", served)[1])
    assert httpx.get(served.partition("?")[0]).status_code == 401
    assert httpx.get(served, follow_redirects=False).status_code == 303
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    listening = [line.split()[1] for line in lines if line.split()[3] == "0A"]
    assert [a for a in listening if a.endswith(f":{port:04X}")] == [f"0100007F:{port:04X}"]


@pytest.mark.parametrize("width", [1400, 390])
def test_in_a_browser(browser, served, width):
    browser.execute_cdp_cmd("Network.clearBrowserCookies", {})
    browser.get("about:blank")
    browser.get_log("browser"), browser.get_log("performance")
    screen(browser, width)
    browser.get(served)
    assert browser.current_url.endswith("/")  # the token has left the address
    assert browser.find_element("tag name", "h1").text == "rehearsal"
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    shown = browser.execute_script(
        "return [...document.querySelectorAll('.plot')].map(p => p.getBoundingClientRect().width)"
    )
    assert [w > 0 for w in shown] == [width == 1400, width == 390]
    assert max(shown) <= width
    letters = browser.execute_script(
        "return [...document.querySelectorAll('.plot svg')].filter(s => s.clientWidth)"
        ".map(s => s.clientWidth / s.viewBox.baseVal.width)"
    )
    assert min(letters) > 0.8  # the letters of the drawing are not shrunk
    assert browser.get_log("browser") == []  # nothing that the policy forbids, nothing missing
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
    base = served.partition("?")[0]
    assert [url for url in asked if not url.startswith((base, "data:"))] == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_both_themes_can_be_read(browser, served, theme):
    browser.get(served)
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": theme}]}
    )
    colours = browser.execute_script(
        "const rgb = t => t.match(/[\\d.]+/g).slice(0, 3).map(Number);"
        "const of = (s, what) => rgb(getComputedStyle(document.querySelector(s))[what]);"
        "return [of('body', 'backgroundColor'), of('body', 'color'), of('td', 'color'), of('.note', 'color'),"
        " of('svg text', 'fill'), of('.course.test', 'stroke'), of('.course.validation', 'stroke')]"
    )
    paper, *others = map(luminance, colours)
    assert (paper > 0.5) == (theme == "light")
    contrasts = [(max(paper, other) + 0.05) / (min(paper, other) + 0.05) for other in others]
    assert min(contrasts[:4]) > 4.5
    assert min(contrasts[4:]) > 3


def luminance(colour):
    """Relative luminance (WCAG 2)."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (v / 255 for v in colour)]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_a_page_that_stands_still_reads_itself_no_more(browser, served):
    browser.get(served)
    refresh = "return [...document.querySelectorAll('meta[http-equiv=refresh]')].length"
    assert browser.execute_script(refresh) == 1
    browser.find_element("link text", "stop").click()
    assert browser.execute_script(refresh) == 0
    browser.find_element("link text", "go on").click()
    assert browser.execute_script(refresh) == 1


def test_a_port_that_is_taken_is_one_line(served, ran, capsys):
    port = re.search(r":(\d+)/", served)[1]
    assert command("server", "dashboard", "--folder", str(ran / "server"), "--port", port) == 5
    assert capsys.readouterr().err.count("\n") == 1
