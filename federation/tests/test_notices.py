"""Notices by webhook and mail: what is reported, to receivers over TLS in this process, once."""

import json
import smtplib
import socketserver
import ssl
import threading
from collections import namedtuple
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from pomona.core.errors import ConfigError
from pomona_federation import certificates
from pomona_federation.agreement import Federation
from pomona_federation.audit_log import Audit
from pomona_federation.server import notifier
from pomona_federation.server.notice_events import Progress, ServerEvents
from pomona_federation.server.notifier import Notice, Notifier, SendError, send
from pomona_federation.server.settings import EVENTS, NotifySettings, ServerFile

SECRET = "s3cret-of-mail"
NOTICE = Notice(
    id="0" * 32,
    time="2026-01-01T00:00:00+00:00",
    federation="heart",
    event="begun",
    study="first",
    text="study first has begun",
)


@pytest.fixture(scope="module")
def tls(tmp_path_factory):
    """A folder with an authority's ca.crt, and the TLS settings of a server on loopback."""
    folder = tmp_path_factory.mktemp("tls")
    issuer = certificates.authority("receivers")
    pair = certificates.server(issuer, ["127.0.0.1", "localhost"])
    bundle = "# Főtanúsítvány\n".encode() + issuer.public  # with such comments, as others have
    contents = {"ca.crt": bundle, "s.crt": pair.public, "s.key": pair.private}
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "s.crt", folder / "s.key")
    return folder, context


@contextmanager
def serving(server):
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def hook(context, statuses=(), headers=()):
    """An HTTPS receiver: its URL, and the bodies that it has got."""
    bodies, left = [], list(statuses)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(left.pop(0) if left else 204)
            for name, value in headers:
                self.send_header(name, value)
            self.end_headers()

        def log_message(self, *_):
            pass

    with serving(HTTPServer(("127.0.0.1", 0), Handler)) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        yield f"https://127.0.0.1:{server.server_port}/in?key=of-the-url", bodies


@contextmanager
def post_office(context, offers=(b"STARTTLS", b"AUTH PLAIN")):
    """A mail server: its port, and the commands and lines that it has got, with whether by TLS."""
    received = []

    class Handler(socketserver.StreamRequestHandler):
        def finish(self):
            super().finish()
            self.request.close()

        def handle(self):
            secure, reading = False, False
            self.wfile.write(b"220 here\r\n")
            while line := self.rfile.readline(10_000):
                received.append((line.strip().decode(), secure))
                verb = line.split()[0].upper() if line.split() else b""
                if reading:
                    reading = line != b".\r\n"
                    self.wfile.write(b"" if reading else b"250 taken\r\n")
                elif verb == b"EHLO":
                    lines = [
                        b"here",
                        *(offer for offer in offers if offer != b"STARTTLS" or not secure),
                    ]
                    rows = [b"250-" + offer for offer in lines[:-1]] + [b"250 " + lines[-1]]
                    self.wfile.write(b"\r\n".join(rows) + b"\r\n")
                elif verb == b"STARTTLS":
                    self.wfile.write(b"220 go\r\n")
                    self.request = context.wrap_socket(self.request, server_side=True)
                    self.rfile = self.request.makefile("rb")
                    self.wfile = self.request.makefile("wb", 0)
                    secure = True
                elif verb == b"DATA":
                    reading = True
                    self.wfile.write(b"354 go on\r\n")
                else:
                    self.wfile.write(b"235 in\r\n" if verb == b"AUTH" else b"250 yes\r\n")
                if verb == b"QUIT":
                    return

    with serving(socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)) as server:
        yield server.server_address[1], received


def by_mail(port, **options):
    return NotifySettings(
        mail_to=("it@north.example",),
        mail_from="pomona@lead.example",
        smtp=f"127.0.0.1:{port}",
        **options,
    )


def test_a_webhook_gets_the_notice_and_nothing_else(tls):
    folder, context = tls
    with hook(context) as (url, bodies):
        send(NOTICE, "webhook", NotifySettings(webhook=url, ca_file="ca.crt"), folder)
    assert bodies == [
        {
            "id": "0" * 32,
            "time": "2026-01-01T00:00:00+00:00",
            "federation": "heart",
            "event": "begun",
            "study": "first",
            "silo": "",
            "text": "study first has begun",
        }
    ]


@pytest.mark.parametrize(
    ("status", "headers", "reason"),
    [
        (500, [], "500"),
        (301, [("Location", "https://127.0.0.1:1/")], "301"),  # not followed
        (307, [("Location", "http://127.0.0.1:1/")], "307"),
    ],
)
def test_a_receiver_that_refuses_or_redirects_is_an_error(tls, status, headers, reason):
    folder, context = tls
    with hook(context, [status], headers) as (url, bodies):
        with pytest.raises(SendError, match=reason) as caught:
            send(NOTICE, "webhook", NotifySettings(webhook=url, ca_file="ca.crt"), folder)
        assert len(bodies) == 1
    assert "of-the-url" not in str(caught.value)


@pytest.mark.parametrize(("authority", "reason"), [(None, "certificate"), ("gone.pem", "gone.pem")])
def test_a_receiver_without_a_trusted_certificate_gets_nothing(tls, authority, reason):
    folder, context = tls
    with hook(context) as (url, bodies), pytest.raises(SendError, match=reason) as caught:
        send(NOTICE, "webhook", NotifySettings(webhook=url, ca_file=authority), folder)
    assert not bodies
    assert "of-the-url" not in str(caught.value)


def test_a_receiver_that_never_ends_is_left(tls, monkeypatch):
    folder, context = tls
    monkeypatch.setattr(notifier, "DEADLINE", 0.1)

    class Slow(socketserver.BaseRequestHandler):
        def handle(self):
            with context.wrap_socket(self.request, server_side=True) as line:
                line.sendall(b"HTTP/1.1 200 ")
                stop.wait(10)

    stop = threading.Event()
    with serving(socketserver.ThreadingTCPServer(("127.0.0.1", 0), Slow)) as server:
        url = f"https://127.0.0.1:{server.server_address[1]}/"
        with pytest.raises(SendError, match="no end within"):
            send(NOTICE, "webhook", NotifySettings(webhook=url, ca_file="ca.crt"), folder)
        stop.set()


def test_a_mail_goes_by_tls_with_a_password_and_stands_in_one_line(tls, tmp_path):
    folder, context = tls
    (tmp_path / "password").write_text(f"{SECRET}\n")
    (tmp_path / "password").chmod(0o600)
    mail = {"smtp_user": "pomona", "smtp_password_file": "password", "ca_file": folder / "ca.crt"}
    with post_office(context) as (port, received):
        send(NOTICE, "it@north.example", by_mail(port, **mail), tmp_path)
    plain = [line for line, secure in received if not secure]
    assert [line.split()[0].upper() for line in plain] == ["EHLO", "STARTTLS"]
    lines = [line for line, _ in received]
    assert "Subject: Pomona heart: study first has begun" in lines
    assert f"Message-ID: <{'0' * 32}@pomona.invalid>" in lines
    assert "study first has begun" in lines


@pytest.mark.parametrize(
    "hostile", ["a\r\nBcc: x@y.example", "a\nDATA", "\r\n.\r\nQUIT", "\x1b[2J"]
)
def test_no_text_adds_a_header_or_ends_a_mail(tls, hostile):
    folder, context = tls
    notice = NOTICE.model_validate(NOTICE.model_dump() | {"text": hostile})
    with post_office(context) as (port, received):
        send(notice, "it@north.example", by_mail(port), folder)
    lines = [line for line, _ in received]
    assert not [line for line in lines if line.startswith(("Bcc", "\x1b"))]
    assert [line for line in lines if line.upper() == "DATA"] == ["data"]
    assert lines[-1].upper() == "QUIT"
    assert lines.count(".") == 1


def test_off_loopback_a_mail_needs_tls_and_its_server_the_right_certificate(tls, monkeypatch):
    folder, context = tls
    with post_office(context, offers=(b"SIZE 10",)) as (port, received):
        with pytest.raises(SendError, match="STARTTLS"):
            send(NOTICE, "it@north.example", by_mail(port, ca_file="ca.crt"), folder)
        assert not [line for line, _ in received if "begun" in line]
        send(NOTICE, "it@north.example", by_mail(port), folder)  # loopback, without an authority
        monkeypatch.setattr(notifier.Address, "loopback", False)
        with pytest.raises(SendError, match="STARTTLS"):
            send(NOTICE, "it@north.example", by_mail(port), folder)
    with post_office(context) as (port, received):
        with pytest.raises(SendError, match="certificate"):
            send(NOTICE, "it@north.example", by_mail(port), folder)
        assert not [line for line, _ in received if "begun" in line]


def test_a_password_that_others_can_read_is_not_used(tls, tmp_path):
    _, context = tls
    (tmp_path / "password").write_text(SECRET)
    (tmp_path / "password").chmod(0o644)
    settings = {"smtp_user": "pomona", "smtp_password_file": "password"}
    with post_office(context) as (port, received):
        with pytest.raises(SendError, match="chmod 600") as caught:
            send(NOTICE, "it@north.example", by_mail(port, **settings), tmp_path)
        assert not [line for line, _ in received if line.startswith("AUTH")]
    assert SECRET not in str(caught.value)


def test_a_mail_server_at_port_465_is_spoken_to_by_tls_alone(tls, monkeypatch):
    folder, _ = tls
    opened = []

    class Session(smtplib.SMTP_SSL):
        def __init__(self, *args, **kwargs):
            opened.append((args, kwargs["context"].verify_mode, kwargs["context"].check_hostname))
            raise OSError("not tried")

    monkeypatch.setattr(smtplib, "SMTP_SSL", Session)
    with pytest.raises(SendError, match="not tried"):
        send(NOTICE, "it@north.example", by_mail(465, ca_file="ca.crt"), folder)
    assert opened == [(("127.0.0.1", 465), ssl.CERT_REQUIRED, True)]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[notify]\n", "no receiver"),
        ('[notify]\nwebhook = "http://a.example/"\n', "https"),
        ('[notify]\nwebhook = "https://user:word@a.example/"\n', "user name"),
        ('[notify]\nwebhook = "https:///x"\n', "https"),
        ('[notify]\nmail_to = ["a@b.example"]\n', "go together"),
        ('[notify]\nmail_to = ["a@b.example\\nBcc: c@d.example"]\n', "mail_to"),
        ('[notify]\nwebhook = "https://a.example/"\nevents = ["scores"]\n', "events"),
        ('[notify]\nwebhook = "https://a.example/"\nsmtp_user = "a"\n', "go together"),
        ("colour = 1\n", "colour"),
    ],
)
def test_settings_that_cannot_work_are_refused_by_name(tmp_path, text, reason):
    federation = Federation.from_tree(
        {"name": "a", "server": "127.0.0.1:1", "insecure": True, "silo": [{"name": "north"}]}
    )
    (tmp_path / "server.toml").write_text(text)
    with pytest.raises(ConfigError, match=reason):
        ServerFile.load(tmp_path, federation)
    (tmp_path / "server.toml").unlink()
    assert ServerFile.load(tmp_path, federation) == ServerFile()


# What is reported.


NEW = Progress()


def reported(kit, lines, progress=NEW, **settings):
    settings = NotifySettings(webhook="https://a.example/", **settings)
    return ServerEvents(kit, settings).read(lines, progress)


def line(event, **fields):
    return {"event": event, **fields}


@pytest.mark.parametrize(
    ("lines", "events"),
    [
        ([line("proposed", study="a")], [("proposed", "a")]),
        ([line("start", study="a", round=0)], [("begun", "a")]),
        ([line("start", round=0)], [("begun", "kit")]),
        ([line("start", study="a", round=3)], []),  # a resume
        ([line("start", study="a", round=0)] * 2, [("begun", "a")]),  # started again before round 1
        # trials of a search
        ([line("start", study="a", round=0, trial=f"{k:03d}") for k in range(3)], [("begun", "a")]),
        ([line("finished", round=3)] * 3, []),
        ([line("ended", study="a", state="finished", code=0, round=3)], [("finished", "a")]),
        ([line("ended", study="a", state="failed", code=7, round=3)], [("failed", "a")]),
        ([line("ended", study="a", state="interrupted", code=143, round=3)], [("finished", "a")]),
        ([line("stopped", code=0), line("stopped", code=130), line("stopped", code=143)], []),
        ([line("stopped", code=6, round=2)], [("failed", "")]),
        # one notice, not two, where a study's failure ends the server
        (
            [line("ended", study="a", state="failed", code=7, round=3), line("stopped", code=7)],
            [("failed", "a")],
        ),
        ([line("accepted", study="a", silo="north"), line("sent"), line("absent"), {}], []),
    ],
)
def test_lines_of_the_audit_log_that_are_reported(tmp_path, lines, events):
    _, messages = reported(tmp_path, lines)
    assert [(message.event, message.study) for message in messages] == events


def test_a_silo_is_reported_once_when_it_is_absent_often_enough(tmp_path):
    def rounds(*absent):
        return [line("round", present=[], absent=[*names]) for names in absent]

    start_lines = [line("start", study="a", round=0)]
    progress, messages = reported(tmp_path, [*start_lines, *rounds("n", "n")])
    assert [message.silo for message in messages] == [""]
    progress_after, messages = reported(tmp_path, rounds("ns", "n", "n"), progress)
    assert [(message.event, message.silo) for message in messages] == [("absent", "n")]
    assert "3 rounds" in messages[0].text
    # a round that does not draw a silo neither counts nor begins the count anew
    undrawn = line("round", present=[], absent=["n"], undrawn=["n"])
    between = [undrawn, *rounds("n"), undrawn, *rounds("n"), undrawn]
    _, messages = reported(tmp_path, [*rounds("n"), *between], Progress(study="a"))
    assert [(message.event, message.silo) for message in messages] == [("absent", "n")]
    # counts survive a restart, and begin anew when a silo is back, or with another study
    progress_after = Progress.model_validate_json(progress_after.model_dump_json())
    _, messages = reported(tmp_path, rounds("n", "", "n", "n"), progress_after)
    assert not messages
    _, messages = reported(tmp_path, [line("start", study="b", round=0), *rounds("n")], progress)
    assert [message.event for message in messages] == ["begun"]


def test_a_silo_that_has_declined_is_not_absent(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "pomona_federation.server.consents.Consents.declined", property(lambda self: {"n"})
    )
    lines = [line("start", study="a", round=0), *[line("round", absent=["n", "s"])] * 3]
    _, messages = reported(tmp_path, lines)
    assert [message.silo for message in messages] == ["", "s"]


def test_a_disk_and_a_certificate_are_reported_once(tmp_path, monkeypatch):
    usage = namedtuple("usage", "free")
    free = [9e9]
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage(free[0]))
    issuer = certificates.authority("a")
    (tmp_path / "certs").mkdir()
    (tmp_path / "certs" / "server.crt").write_bytes(certificates.server(issuer, ["a"]).public)
    events = ServerEvents(tmp_path, NotifySettings(webhook="https://a.example/"))
    progress, counted = Progress(), []
    for left in (9e9, 4e9, 4e9, 6e9, 4e9, 8e9, 4e9):  # room again is one and a half times the limit
        free[0] = left
        progress, messages = events.conditions(progress)
        counted.append([message.event for message in messages])
    assert counted == [[], ["disk"], [], [], [], [], ["disk"]]
    old = datetime.now(UTC) - timedelta(days=certificates.SERVER_DAYS - 5)
    (tmp_path / "certs" / "server.crt").write_bytes(certificates.server(issuer, ["a"], old).public)
    messages_seen = []
    for _ in range(3):
        progress, messages = events.conditions(progress)
        messages_seen += [message.text for message in messages]
    assert len(messages_seen) == 1
    assert "certificate" in messages_seen[0]


# Sending, from the audit log on.


class Desk:
    """A kit with an audit log, whose notices are recorded instead of sent."""

    def __init__(self, kit, monkeypatch, channels=1):
        (kit / "run").mkdir()
        self.kit, self.sent, self.said, self.now = kit, [], [], 1e9
        self.fails = {}
        mails = [f"{k}@a.example" for k in range(1, channels)]
        sender = {"mail_from": "a@a.example", "smtp": "a.example:25"}
        mail_options = {"mail_to": mails, **sender} if mails else {}
        self.settings = NotifySettings(webhook="https://a.example/", free_gb=1e-9, **mail_options)
        monkeypatch.setattr(notifier, "send", self._send)

    def _send(self, notice, channel, settings, kit):
        if reason := self.fails.get(channel):
            raise SendError(reason)
        self.sent.append((notice.event, notice.study, channel))

    def log(self, event, **fields):
        with Audit(self.kit / "run" / "audit.jsonl") as audit:
            audit.write(event, **fields)

    def started(self):
        """A process that sends, as after a restart."""
        arguments = (self.kit, "heart", self.settings, self.said.append)
        return Notifier(*arguments, clock=lambda: self.now)


@pytest.fixture
def desk(tmp_path, monkeypatch):
    return Desk(tmp_path, monkeypatch)


def test_nothing_is_sent_of_what_was_before_nor_twice_after_a_restart(desk):
    desk.log("proposed", study="before")
    notifier_a = desk.started()
    notifier_a.check()
    assert not desk.sent
    desk.log("proposed", study="a")
    notifier_a.check()
    notifier_a.check()
    desk.log("proposed", study="b")  # while nothing runs
    notifier_b = desk.started()
    notifier_b.check()
    desk.started().check()
    assert desk.sent == [("proposed", "a", "webhook"), ("proposed", "b", "webhook")]


@pytest.mark.parametrize("seconds", [31, -1e6])  # until the next try, or a clock that was set back
def test_a_receiver_that_fails_is_tried_again_and_holds_up_no_other(tmp_path, monkeypatch, seconds):
    desk = Desk(tmp_path, monkeypatch, channels=2)
    running = desk.started()
    desk.fails["webhook"] = "nobody listens"
    desk.log("proposed", study="a")
    for _ in range(3):  # not due yet
        running.check()
    assert desk.sent == [("proposed", "a", "1@a.example")]
    assert [text for text in desk.said if "nobody listens" in text] == desk.said[:1]
    desk.fails.clear()
    desk.now += seconds
    desk.started().check()  # after a restart, too
    assert desk.sent[1:] == [("proposed", "a", "webhook")]


def test_tries_and_waiting_notices_have_a_bound(desk, monkeypatch):
    running = desk.started()
    desk.fails["webhook"] = "nobody listens"
    tries = []
    monkeypatch.setattr(notifier, "WAITING_LIMIT", 3)
    monkeypatch.setattr(notifier, "TRIES", 2)
    for study in "abcde":
        desk.log("proposed", study=study)
    for _ in range(4):
        running.check()
        tries.append(len(running._memory.waiting))
        desk.now += 4000
    assert tries[0] == 3
    assert tries[-1] == 0
    assert sum("given up" in text for text in desk.said) == 3
    desk.fails.clear()
    desk.log("proposed", study="f")
    running.check()
    assert desk.sent == [("proposed", "f", "webhook")]


def test_a_notice_whose_sending_was_killed_is_not_repeated(desk, monkeypatch):
    class Killed(BaseException):
        pass

    def killed(*_):
        raise Killed

    running = desk.started()
    desk.log("proposed", study="a")
    desk.log("proposed", study="b")
    monkeypatch.setattr(notifier, "send", killed)
    with pytest.raises(Killed):
        running.check()
    monkeypatch.setattr(notifier, "send", desk._send)
    desk.started().check()
    assert desk.sent == [("proposed", "b", "webhook")]
    assert any("may not have arrived" in text for text in desk.said)


@pytest.mark.parametrize("content", [b"", b"{", b'{"mark": 1}', b"\xff"])
def test_a_damaged_memory_or_log_repeats_nothing_and_stops_nothing(desk, content):
    desk.log("proposed", study="a")
    (desk.kit / "run" / "notices.json").write_bytes(content)
    running = desk.started()
    running.check()
    (desk.kit / "run" / "audit.jsonl").unlink()
    running.check()
    desk.log("proposed", study="b")
    running.check()
    desk.log("proposed", study="c")
    running.check()
    assert ("proposed", "c", "webhook") in desk.sent
    assert ("proposed", "a", "webhook") not in desk.sent


def test_a_full_disk_is_reported_although_nothing_can_be_kept(desk, monkeypatch):
    def no_space(*_):
        raise OSError(28, "No space left on device")

    desk.settings = desk.settings.model_copy(update={"free_gb": 1e6})
    running = desk.started()
    monkeypatch.setattr(notifier, "write_json", no_space)
    running.check()
    running.check()
    assert [event for event, *_ in desk.sent] == ["disk"]
    assert sum("cannot be written" in text for text in desk.said) == 1


def test_the_thread_ends_in_time_whatever_a_receiver_does_and_sends_the_last_notice(
    desk, monkeypatch
):
    with desk.started():
        desk.log("ended", study="a", state="finished", code=0, round=3)
    assert desk.sent == [("finished", "a", "webhook")]
    with ExitStack() as stack:
        released = threading.Event()
        stack.callback(released.set)
        monkeypatch.setattr(notifier, "send", lambda *_: released.wait(10))
        monkeypatch.setattr(notifier, "LEAVE", 0.05)
        time_before = datetime.now(UTC)
        with desk.started():
            desk.log("proposed", study="b")
        assert (datetime.now(UTC) - time_before).total_seconds() < 5
    monkeypatch.setattr(desk, "_send", None)
    with desk.started() as running:  # a fault of this program, too
        running.events = None
        desk.log("proposed", study="c")


def test_every_event_is_one_that_can_be_asked_for():
    assert set(EVENTS) == {
        *("proposed", "begun", "finished", "failed", "absent", "disk", "certificate")
    }
