"""The status page behind the gate: who gets it, what passes beside it, what it shows."""

import asyncio
import base64
import hashlib
import json
import logging
import re
import ssl
import stat
from contextlib import suppress
from html.parser import HTMLParser
from pathlib import PurePosixPath

import httpx
import pytest

from chromium import screen
from command_line import call
from monitored import HOSTILE, copied, running
from pomona.core.errors import ConfigError
from pomona_federation.agreement import Federation
from pomona_federation.flower_internals import FailuresOf
from pomona_federation.installation.backup import saved
from pomona_federation.installation.contents import RULES, Item, rule
from pomona_federation.json_store import write_json
from pomona_federation.monitoring import status_page
from pomona_federation.monitoring.status_page import StatusPage, status_html
from pomona_federation.server.gate import PAGE, Gate
from pomona_federation.server.settings import ServerFile
from pomona_federation.supervision.status_files import LIVE, LiveStatus
from pomona_federation.unused_uplinks import UnusedUplink
from test_gate import SuperLink, kits  # noqa: F401

ELSEWHERE = "203.0.113.9"


def basic(token, user="ann"):
    return "Basic " + base64.b64encode(f"{user}:{token}".encode()).decode()


class Door:
    """The gate with a page before an application that answers 200 to all that passes."""

    def __init__(self, kit, page=True):
        self.passed, self.made, self.now = [], 0, 0.0
        self.page = StatusPage(kit, self._render, lambda: self.now) if page else None
        self.gate = Gate(self, lambda _: "north", lambda: 0, page=self.page)

    def _render(self):
        self.made += 1
        return "<style>p { margin: 0 }</style><p>the page</p>"

    async def __call__(self, scope, receive, send):
        self.passed.append(scope["path"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"of SuperLink"})

    def ask(self, path=PAGE, method="GET", client=ELSEWHERE, **headers):
        """The response to a request from another machine."""
        fields = {name.replace("_", "-"): value for name, value in headers.items()}

        async def answer():
            transport = httpx.ASGITransport(self.gate, client=(client, 4))
            async with httpx.AsyncClient(transport=transport, base_url="https://a") as session:
                return await session.request(method, path, headers=fields)

        return asyncio.run(answer())


@pytest.fixture
def kit(tmp_path):
    (tmp_path / "run").mkdir()
    return tmp_path


def test_a_token_opens_the_page_and_only_its_hash_is_kept(kit):
    token = status_page.add_reader(kit, "ann")
    assert len(base64.urlsafe_b64decode(token)) * 8 >= 128
    door = Door(kit)
    answer = door.ask(authorization=basic(token))
    assert (answer.status_code, "the page" in answer.text, door.passed) == (200, True, [])
    file = kit / "run" / "page.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    written = b"".join(path.read_bytes() for path in (kit / "run").iterdir() if path.is_file())
    assert token.encode() not in written
    assert hashlib.sha256(token.encode()).hexdigest() in file.read_text()
    assert token != status_page.add_reader(kit, "ann")
    assert door.ask(authorization=basic(token)).status_code == 401  # one token a person, the last


def test_a_revoked_token_opens_nothing_from_the_next_request_on(kit):
    tokens = {name: status_page.add_reader(kit, name) for name in ("ann", "ben")}
    door = Door(kit)
    assert door.ask(authorization=basic(tokens["ann"])).status_code == 200
    status_page.revoke_reader(kit, "ann")
    assert door.ask(authorization=basic(tokens["ann"])).status_code == 401
    assert door.ask(authorization=basic(tokens["ben"])).status_code == 200
    with pytest.raises(ConfigError, match="ben"):
        status_page.revoke_reader(kit, "ann")
    events = [json.loads(line) for line in (kit / "run" / "audit.jsonl").read_text().splitlines()]
    assert [(e["event"], e["reader"], e["allowed"]) for e in events] == [
        ("page", "ann", True),
        ("page", "ben", True),
        ("page", "ann", False),
    ]


def test_a_backup_brings_back_no_revoked_token():
    path = PurePosixPath("run", status_page.READERS)
    assert not saved(Item(path, rule(path, RULES["server"]), 1, plain=True))
    path = PurePosixPath("server.toml")
    assert saved(Item(path, rule(path, RULES["server"]), 1, plain=True))


def wrong_heads(token):
    """Heads that hold the token, or nearly, where it does not count."""
    yield from ({}, {"authorization": ""}, {"authorization": "Basic"}, {"authorization": "Basic "})
    yield from ({"authorization": basic(text)} for text in ("", token[:-1], token + "a", "ann"))
    yield {"authorization": basic(token).replace("Basic", "Digest")}
    yield from ({"authorization": f"{scheme} {token}"} for scheme in ("Bearer", "Basic", "Token"))
    yield {"authorization": "Basic " + base64.b64encode(token.encode()).decode()}  # no colon
    yield {"authorization": basic("x", user=token)}
    yield {"authorization": basic(token + ":" + token)}
    yield {"authorization": basic(hashlib.sha256(token.encode()).hexdigest())}
    yield {"authorization": "Basic \u00ff".encode("latin-1")}
    yield {"authorization": "Basic " + "A" * 10**5}
    yield {"authorization": "Basic " + base64.b64encode(b"\xff:" + token.encode()[:-1]).decode()}
    yield from ({name: token} for name in ("cookie", "x_token", "x_api_key", "proxy_authorization"))
    yield {"cookie": f"authorization={basic(token)}", "referer": f"https://a/?{token}"}
    yield {"x_forwarded_for": "127.0.0.1", "forwarded": "for=127.0.0.1", "x_real_ip": "::1"}
    yield {"x_forwarded_authorization": basic(token), "x_original_url": PAGE}


def test_a_token_anywhere_else_or_changed_opens_nothing(kit):
    token = status_page.add_reader(kit, "ann")
    door = Door(kit)
    for head in wrong_heads(token):
        answer = door.ask(**head)
        assert answer.status_code == 401, head
        assert answer.headers["www-authenticate"].startswith("Basic ")
        assert token not in answer.text
        assert "the page" not in answer.text
    for query in (token, f"token={token}", f"authorization={basic(token)}"):
        assert door.ask(f"{PAGE}?{query}").status_code == 401
    assert (door.made, door.passed) == (0, [])
    twice = httpx.Headers([("authorization", basic("x")), ("authorization", basic(token))])
    readers = status_page.readers(kit)
    assert not status_page.admits(readers, twice.raw)
    assert status_page.admits(readers, [(b"AUTHORIZATION", basic(token).encode())])


PATHS = (
    "/status/", "//status", "/./status", "/status/.", "/x/../status", "/STATUS", "/status%2f", "/status;a",
    "/status%00", "/status/../v1/control/start-run", "/status//v1/control", "/", "/v1/control/start-run",
    "/status/v1/fleet/pull-messages", "/.status", "/status.html", "/metrics",
)  # fmt: skip


def test_no_path_beside_the_page_passes_with_a_token(kit):
    """With a reader's token the gate answers as it does without the page: 403, or to members."""
    token = status_page.add_reader(kit, "ann")
    door, no_page = Door(kit), Door(kit, page=False)
    for path in PATHS:
        for method in ("GET", "POST", "CONNECT", "OPTIONS"):
            answers = [
                gate.ask(path, method, authorization=basic(token)) for gate in (door, no_page)
            ]
            # httpx itself resolves dots and slashes of some: those are the page, which is the page
            if answers[0].request.url.path == PAGE:
                assert answers[0].status_code in {200, 405, 429}
                assert answers[1].status_code == 403
            else:
                assert [a.status_code for a in answers] == [403, 403], (method, path)
    assert not door.passed


@pytest.mark.parametrize("kind", ["websocket", "http"])
@pytest.mark.parametrize("path", [PAGE, "/v1/control/list-runs"])
@pytest.mark.parametrize("raw", [b"/status", b"/v1/control/list-runs"])
def test_only_the_path_that_is_served_decides(kit, kind, path, raw):
    """Another raw path, root path or a websocket opens nothing more."""
    token = status_page.add_reader(kit, "ann")
    door, messages = Door(kit), []

    async def send(message):
        messages.append(message)

    scope = {
        "type": kind,
        "method": "GET",
        "path": path,
        "raw_path": raw,
        "root_path": "/status",
        "headers": [(b"authorization", basic(token).encode())],
        "client": (ELSEWHERE, 1),
        "server": ("192.0.2.1", 443),
        "state": {},
    }
    with suppress(KeyError):
        asyncio.run(door.gate(scope, None, send))
    assert not door.passed
    page = kind == "http" and path == PAGE
    assert door.made == page
    status = messages[0].get("status")
    assert status == (200 if page else None if kind == "websocket" else 403)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "X"])
def test_other_methods_are_refused_and_no_body_is_read(kit, method):
    token = status_page.add_reader(kit, "ann")
    door = Door(kit)
    answer = door.ask(method=method, authorization=basic(token))
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")
    assert (door.made, door.passed) == (0, [])
    override = door.ask(method="POST", x_http_method_override="GET", authorization=basic(token))
    assert override.status_code == 405


@pytest.mark.parametrize("valid", [True, False])
def test_every_answer_forbids_what_a_browser_could_do_with_it(kit, valid):
    token = status_page.add_reader(kit, "ann")
    answer = Door(kit).ask(authorization=basic(token if valid else "x"))
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none';")
    assert {"frame-ancestors 'none'", "form-action 'none'"} <= set(policy.split("; "))
    assert "unsafe" not in policy
    assert ("style-src 'sha256-" in policy) == valid
    for name, value in (
        ("cache-control", "no-store"),
        ("x-content-type-options", "nosniff"),
        ("x-frame-options", "DENY"),
        ("referrer-policy", "no-referrer"),
    ):
        assert answer.headers[name] == value
    assert "set-cookie" not in answer.headers
    assert not [name for name in answer.headers if name.startswith("access-control")]


def test_a_flood_is_refused_makes_no_page_and_keeps_out_no_other_address(kit):
    token = status_page.add_reader(kit, "ann")
    door = Door(kit)
    head = {"authorization": basic("wrong")}

    async def flood(client, count):
        transport = httpx.ASGITransport(door.gate, client=(client, 4))
        async with httpx.AsyncClient(transport=transport, base_url="https://a") as session:
            return [(await session.get(PAGE, headers=head)).status_code for _ in range(count)]

    limit = status_page.REQUEST_LIMIT
    assert asyncio.run(flood(ELSEWHERE, limit + 3)) == [401] * limit + [429] * 3
    assert door.ask(authorization=basic(token)).status_code == 429
    assert door.ask(client="203.0.113.10", authorization=basic(token)).status_code == 200
    door.now += status_page.WINDOW + 1
    assert door.ask(authorization=basic(token)).status_code == 200
    head = {"authorization": basic(token)}
    pages = door.made
    assert asyncio.run(flood("203.0.113.11", 100)) == [200] * 100
    assert door.made == pages  # one page for all who ask at about the same time
    for number in range(status_page.ADDRESSES + 10):
        door.page._timely(f"a{number}")
    assert len(door.page._requests) <= status_page.ADDRESSES + 1


def test_without_the_setting_there_is_no_page_and_never_without_tls(kit):
    token = status_page.add_reader(kit, "ann")
    door = Door(kit, page=False)
    assert door.ask(authorization=basic(token)).status_code == 403
    terms = {"name": "a", "server": "127.0.0.1:1", "silo": [{"name": "north"}]}
    assert not ServerFile.load(kit, Federation.from_tree(terms)).page
    (kit / "server.toml").write_text("page = true\n")
    assert ServerFile.load(kit, Federation.from_tree(terms)).page
    with pytest.raises(ConfigError, match="insecure"):
        ServerFile.load(kit, Federation.from_tree(terms | {"insecure": True}))


@pytest.mark.parametrize("content", ["", "{", '{"tokens": {"ann": "x"}}', '{"tokens": []}'])
def test_a_damaged_list_of_readers_opens_nothing(kit, content):
    token = status_page.add_reader(kit, "ann")
    (kit / "run" / "page.json").write_text(content)
    answer = Door(kit).ask(authorization=basic(token))
    assert answer.status_code == 503
    assert str(kit) not in answer.text


def test_no_log_has_a_query_or_what_follows_the_path():
    quiet = FailuresOf((PAGE,))

    def logged(path, status=401):
        args = ("a:1", "GET", path, "1.1", status)
        record = logging.LogRecord("uvicorn.access", 20, "", 0, "%s %s %s %s %d", args, None)
        return record.getMessage() if quiet.filter(record) else ""

    for path in (f"{PAGE}?token=secret", f"{PAGE}/secret", f"{PAGE}secret", "/x?token=secret"):
        assert logged(path)
        assert "secret" not in logged(path)
    assert not logged(PAGE, 200)


# What it shows.


class Visible(HTMLParser):
    """Tags and text of a page."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.attributes, self.text = set(), set(), ""
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attributes}

    def handle_data(self, data):
        self.text += data


@pytest.mark.long
def test_the_page_shows_a_run_and_escapes_every_text(ran, tmp_path):
    server = copied(ran / "server", tmp_path / "server")
    live = LiveStatus(
        rounds=3,
        present=("silo-0",),
        unused={
            name: UnusedUplink(silo=name, round=2, reason="samples", detail=text)
            for name, text in {
                "silo-1": f"{HOSTILE} in /var/lib/pomona/keys/silo.key",
                HOSTILE: "no place",
            }.items()
        },
        seconds=120.0,
    )
    write_json(server / "run" / LIVE, live)
    with running(server, {"silo-1": HOSTILE}):
        page = status_html(server)()
    visible = Visible(page)
    assert not {"script", "img", "link", "iframe", "object", "form"} & visible.tags
    assert not {"src", "style", "onload", "onclick"} & visible.attributes
    assert "round 2 of 3, about 2 min left" in visible.text
    assert "quoted" in visible.text
    assert "/var/lib" not in page
    assert str(server) not in page
    assert re.search(r"silo-1\s*.\u25a1.", visible.text.replace("\n", ""))
    assert '<meta http-equiv="refresh" content="30">' in page
    assert not re.search(r"(src|href)=\"(?!#)", page)
    secrets = [path.read_bytes() for path in (server / "certs").glob("*.key")]
    assert secrets
    for line in b"".join(secrets).split(b"\n"):
        assert len(line) < 40 or line.decode() not in page


@pytest.mark.long
def test_the_command_makes_lists_and_revokes_tokens(ran, tmp_path, capsys):
    server = copied(ran / "server", tmp_path / "server")

    def page(*arguments):
        return call(capsys, "server", "page", *arguments, "--folder", server)

    assert "page = true" in page("ann")[2]
    (server / "server.toml").write_text("page = true\n")
    _, output, _ = page("ann")
    assert re.search(r"https://[^ ]+/status", output)
    (token,) = re.findall(r"password: (\S+)", output)
    door = Door(server)
    assert door.ask(authorization=basic(token)).status_code == 200
    assert page()[1].split() == ["ann"]
    assert page("ann", "--revoke")[0] == 0
    assert door.ask(authorization=basic(token)).status_code == 401
    assert page("a b")[0] == 2


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_screens_of_both_widths_and_schemes(ran, tmp_path, browser, width, scheme):
    server = copied(ran / "server", tmp_path / "server")
    with running(server, {"silo-1": "is not connected"}):
        (tmp_path / "page.html").write_text(status_html(server)())
    screen(browser, width)
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    browser.get(f"file://{tmp_path}/page.html")
    wide = "return document.documentElement.scrollWidth"
    assert browser.execute_script(wide) <= width
    colour = "return getComputedStyle(document.body).backgroundColor"
    assert (
        browser.execute_script(colour)
        == {"light": "rgb(253, 253, 251)", "dark": "rgb(21, 24, 26)"}[scheme]
    )


@pytest.mark.slow
def test_a_real_superlink_shows_the_page_by_tls_and_its_log_no_token(kits):  # noqa: F811
    server = kits / "server"
    (server / "server.toml").write_text("page = true\n")
    token = status_page.add_reader(server, "ann")
    running_server = SuperLink(kits)
    try:
        trust = ssl.create_default_context(cafile=str(server / "certs" / "ca.crt"))
        base = f"https://127.0.0.1:{running_server.port}"
        with httpx.Client(verify=trust, trust_env=False, base_url=base) as browser:
            answer = browser.get(PAGE, auth=("ann", token))
            assert (answer.status_code, "Silos" in answer.text) == (200, True)
            assert browser.head(PAGE, auth=("ann", token)).text == ""
            assert browser.get(PAGE).status_code == 401
            assert browser.post(PAGE, content=b"x" * 10**6).status_code == 405
            for query in (f"{PAGE}?token={token}", f"{PAGE}/{token}"):
                assert browser.get(query).status_code in {401, 404}
            assert browser.get("/v1/fleet/pull-messages").status_code == 401
    finally:
        running_server.end()
    log = (server / "superlink.log").read_text()
    assert "401" in log
    assert token not in log
