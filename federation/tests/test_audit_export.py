"""The audit log's way to syslog: every line, in order, in the right form, over lost connections and restarts."""

import json
import re
import socket
import threading
from itertools import count

import pytest

from pomona.core.errors import ConfigError, LockedError, StorageError
from pomona.storage.lock import locked
from pomona_federation.audit import Audit, verify
from pomona_federation.monitoring import audit_export, syslog
from pomona_federation.monitoring.audit_export import CURSOR, exporter
from pomona_federation.monitoring.syslog import LONGEST, Destination
from test_preflight import command, kit, server_kit

# RFC 5424, section 6: HEADER SP STRUCTURED-DATA SP MSG
FORM = re.compile(
    rb"<(?P<pri>[1-9]?\d|1\d\d)>1 (?P<time>-|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?(Z|[+-]\d\d:\d\d))"
    rb" (?P<host>[!-~]{1,255}) (?P<app>[!-~]{1,48}) (?P<proc>[!-~]{1,128}) (?P<id>[!-~]{1,32}) - (?P<text>.*)",
    re.DOTALL,
)


class Collector:
    """A syslog server on TCP: takes a number of messages of each connection, None for all, and then leaves."""

    def __init__(self, *takes):
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.to = f"tcp://127.0.0.1:{self.socket.getsockname()[1]}"
        self.got, self.takes = [], takes or (None,)
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self):
        with self.socket:
            for most in self.takes:
                link, _ = self.socket.accept()
                with link, link.makefile("rb") as file:
                    for _ in range(most) if most is not None else count():
                        size = b""
                        while (digit := file.read(1)).isdigit():  # RFC 6587: MSG-LEN SP SYSLOG-MSG
                            size += digit
                        if not size:
                            break
                        self.got.append(file.read(int(size)))

    @property
    def texts(self):
        self.thread.join(20)
        return [FORM.fullmatch(m)["text"] for m in self.got]


def log(tmp_path, events):
    """A server's kit with an audit log of so many rounds."""
    folder, _ = server_kit(tmp_path)
    path = folder / "run" / "audit.jsonl"
    path.parent.mkdir(exist_ok=True)
    with Audit(path) as audit:
        for number in range(1, events + 1):
            audit.write("round", round=number)
    return folder, path


def export(folder, to, said=None, side="server"):
    path = folder / ("run" if side == "server" else "state") / "audit.jsonl"
    return exporter(side, folder, path, str(to), "local3", (said if said is not None else []).append)


def lines(path):
    return path.read_bytes().splitlines()


def test_over_tcp_each_line_comes_once_in_order_and_word_for_word(tmp_path):
    folder, path = log(tmp_path, 450)
    collector = Collector()
    assert export(folder, collector.to).once() == 450
    assert collector.texts == lines(path)
    copy = tmp_path / "copy.jsonl"
    copy.write_bytes(b"".join(text + b"\n" for text in collector.texts))
    assert verify(copy) is None  # the collector can verify the chain


def test_the_next_export_goes_on_after_the_last_line_also_in_another_process(tmp_path):
    folder, path = log(tmp_path, 3)
    collector = Collector(None, None)
    assert export(folder, collector.to).once() == 3
    with Audit(path) as audit:
        audit.write("round", round=4)
        audit.write("refused", silo="south", reason="late")
    assert export(folder, collector.to).once() == 2
    assert export(folder, collector.to).once() == 0
    assert [json.loads(text).get("round") for text in collector.texts[:4]] == [1, 2, 3, 4]


def test_what_was_sent_into_a_connection_that_ended_is_sent_again(tmp_path, monkeypatch):
    """The collector leaves after 70 of 300 lines: what its kernel took of the rest is lost, and nobody was told."""
    monkeypatch.setattr(audit_export, "BATCH", 100)
    folder, path = log(tmp_path, 300)
    collector = Collector(70, None)
    with pytest.raises(StorageError, match="not sent goes with the next"):
        export(folder, collector.to).once()
    assert export(folder, collector.to).once() == 300  # no batch was whole
    assert collector.texts == lines(path)[:70] + lines(path)


def test_following_tells_of_a_lost_connection_and_loses_no_line(tmp_path, monkeypatch):
    monkeypatch.setattr(audit_export, "FIRST", 0.01)
    folder, path = log(tmp_path, 5)
    collector, said = Collector(5, None), []
    follower = export(folder, collector.to, said)

    class Enough(Exception):
        pass

    def slept(seconds):
        """Between looks: a line more, until the second connection has its three."""
        if len(collector.got) >= 8:
            raise Enough
        if seconds == audit_export.PAUSE and len(lines(path)) < 8:
            with Audit(path) as audit:
                audit.write("round", round=len(lines(path)) + 1)

    monkeypatch.setattr(audit_export.time, "sleep", slept)
    with pytest.raises(Enough):
        follower.follow()
    texts = collector.texts
    assert [text for k, text in enumerate(texts) if text not in texts[:k]] == lines(path)
    assert any("is lost" in line for line in said)


@pytest.mark.parametrize("kind", ["udp", "unix"])
def test_datagrams(kind, tmp_path):
    folder, path = log(tmp_path, 5)
    taker = socket.socket(socket.AF_INET if kind == "udp" else socket.AF_UNIX, socket.SOCK_DGRAM)
    with taker:
        taker.settimeout(10)
        taker.bind(("127.0.0.1", 0) if kind == "udp" else str(tmp_path / "log"))
        to = f"udp://127.0.0.1:{taker.getsockname()[1]}" if kind == "udp" else f"unix:{tmp_path / 'log'}"
        assert export(folder, to).once() == 5
        got = [taker.recv(65536) for _ in range(5)]
    if kind == "udp":
        assert [FORM.fullmatch(text)["text"] for text in got] == lines(path)
    else:
        assert got == [b"<158>pomona-server[try]: " + text for text in lines(path)]  # 8 x 19 + 6


def test_the_head_of_a_message(tmp_path, monkeypatch):
    folder, path = log(tmp_path, 0)
    with Audit(path) as audit:
        audit.write("received", silo="north", text="Zürich\u2028\n")
        audit.write("refused", silo="north")
        audit.write("admission", silo="north", admitted=False)
        audit.write("admission", silo="north", admitted=True)
        audit.write("x" * 100 + " \n]")
    monkeypatch.setattr(socket, "gethostname", lambda: "a host\n")
    collector = Collector()
    export(folder, collector.to).once()
    assert collector.texts == lines(path)
    heads = [FORM.fullmatch(m) for m in collector.got]
    name = json.loads(lines(path)[0])["time"]
    assert heads[0]["time"].decode() == name
    assert {(h["app"], h["proc"], h["host"]) for h in heads} == {(b"pomona-server", b"try", b"a_host_")}
    # Facility local3 is 19 (RFC 5424, table 1); a warning is severity 4, information 6.
    assert [int(h["pri"]) - 8 * 19 for h in heads] == [6, 4, 4, 6, 6]
    assert [h["id"] for h in heads[:2]] == [b"received", b"refused"]


def test_a_line_too_long_for_syslog_is_named_and_stops_nothing(tmp_path):
    folder, path = log(tmp_path, 1)
    with Audit(path) as audit:
        audit.write("round", present=["n" * 40] * 300)
        audit.write("round", round=3)
    collector = Collector()
    assert export(folder, collector.to).once() == 3
    long = json.loads(collector.texts[1])
    assert long == {"chain": json.loads(lines(path)[1])["chain"], "event": "round", "left_out": len(lines(path)[1])}
    assert all(len(text) <= LONGEST for text in collector.texts)


def test_a_torn_piece_and_a_line_without_its_end_are_no_messages(tmp_path):
    folder, path = log(tmp_path, 2)
    path.write_bytes(path.read_bytes() + b'{"chain": "half')
    collector = Collector(None, None)
    assert export(folder, collector.to).once() == 2
    with Audit(path) as audit:
        audit.write("round", round=3)
    export(folder, collector.to).once()
    assert [json.loads(text)["event"] for text in collector.texts] == ["round", "round", "torn", "round"]


def test_a_log_that_was_rewritten_is_not_gone_on_with(tmp_path):
    folder, path = log(tmp_path, 3)
    collector = Collector()
    out = export(folder, collector.to)
    out.once()
    path.write_bytes(path.read_bytes().replace(b'"round": 3', b'"round": 9'))
    with pytest.raises(StorageError, match="was rewritten"):
        out.once()
    path.unlink()
    with pytest.raises(StorageError, match="is gone"):
        out.once()
    assert (out.folder / CURSOR).stat().st_size


def test_nobody_there_is_one_line_and_a_second_export_is_refused(tmp_path, capsys):
    folder, _ = log(tmp_path, 1)
    with socket.create_server(("127.0.0.1", 0)) as free:
        to = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    assert command("server", "audit", "--folder", str(folder), "--syslog", to) == StorageError.code
    assert capsys.readouterr().err.count("\n") == 1
    out = export(folder, to)
    with locked(out.folder), pytest.raises(LockedError):
        out.once()


@pytest.mark.parametrize("to", ["", "host", "udp:host:1", "udp://host", "tcp://host:0", "unix:log", "http://a:1"])
def test_a_destination_that_is_none_is_refused(to):
    with pytest.raises(ConfigError, match="syslog"):
        Destination.parse(to)


@pytest.mark.parametrize("to", ["udp://loghost:514", "tcp://[::1]:601", "unix:/dev/log"])
def test_a_destination_as_it_is_written(to):
    assert str(Destination.parse(to)) == to


def test_an_unknown_facility_is_refused(tmp_path):
    folder, path = log(tmp_path, 1)
    with pytest.raises(ConfigError, match="facility"):
        exporter("server", folder, path, "unix:/dev/log", "locla0", print)


def test_a_silos_log_is_shown_verified_and_sent(tmp_path, capsys):
    folder, _ = kit(tmp_path)
    (folder / "state").mkdir(exist_ok=True)
    with Audit(folder / "state" / "audit.jsonl") as audit:
        audit.write("answered", round=1, bytes=7)
    collector = Collector()
    where = ("--folder", str(folder))
    assert command("silo", "audit", *where) == 0
    assert "answered" in capsys.readouterr().out
    assert command("silo", "audit", "--verify", *where) == 0
    assert "whole: 1 lines" in capsys.readouterr().out
    assert command("silo", "audit", "--syslog", collector.to, *where) == 0
    assert "sent 1 lines" in capsys.readouterr().out
    assert FORM.fullmatch((collector.texts, collector.got)[1][0])["app"] == b"pomona-silo"
    path = folder / "state" / "audit.jsonl"
    path.write_bytes(path.read_bytes().replace(b"7", b"8"))
    assert command("silo", "audit", "--verify", *where) == ConfigError.code


def test_bytes_that_nobody_acknowledges_are_a_lost_connection(tmp_path, monkeypatch):
    """A collector that stops reading: its kernel's buffers fill up, and what lies in ours was not taken."""
    monkeypatch.setattr(syslog, "PATIENCE", 0.2)
    folder, _ = log(tmp_path, 200)
    monkeypatch.setattr(audit_export, "message", lambda *_: b"x" * 100_000)
    with socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        out = export(folder, f"tcp://127.0.0.1:{deaf.getsockname()[1]}")
        with pytest.raises(StorageError, match=r"timed out|acknowledged"):
            out.once()
    assert not (out.folder / CURSOR).exists()


@pytest.mark.parametrize("words", [("--verify", "--syslog", "unix:/dev/log"), ("--follow",)])
def test_options_that_do_not_go_together_are_refused(tmp_path, words, capsys):
    folder, _ = kit(tmp_path)
    assert command("silo", "audit", *words, "--folder", folder) == ConfigError.code
    assert "--syslog" in capsys.readouterr().err
