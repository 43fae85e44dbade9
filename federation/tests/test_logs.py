"""One log per process with time, level and round, without colours and secrets; all logs merged by
time.
"""

import json
import logging
import os
import re
import sys

import pytest

from pomona.cli import main
from pomona_federation.silo import client_app
from pomona_federation.supervision import process_logs
from pomona_federation.supervision.process_logs import (
    LINE,
    LogFile,
    LogReader,
    at_round,
    logging_to,
    parsed,
)
from pomona_federation.supervision.supervisor import Supervisor

pytestmark = pytest.mark.long

STAMP = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (INFO|WARNING|ERROR) +(\[round \d+\] )?\S.*"
)


def lines(path):
    return path.read_text().splitlines()


def test_what_a_child_and_its_child_print_is_stamped_without_colours(tmp_path):
    grandchild = "import sys; print('[of the grandchild]', file=sys.stderr)"
    program = (
        "import os, subprocess, sys\nprint('\\x1b[92mINFO \\x1b[0m:      ready', flush=True)\n"
        "print('ERROR :     \\x07it broke', flush=True)\nprint('2026-11-22T06:42:04.123Z ERROR "
        "[uvicorn] INFO: two', flush=True)\nprint('Traceback (most recent call last):\\n  File 1', "
        f"flush=True)\nsubprocess.run([sys.executable, '-c', {grandchild!r}])\nos.abort()"
    )
    supervisor = Supervisor(
        [sys.executable, "-c", program], dict(os.environ), tmp_path / "logs" / "node.log"
    )
    process = supervisor.start()
    process.wait()
    supervisor.settle()
    texts = lines(tmp_path / "logs" / "node.log")
    assert all(STAMP.fullmatch(line) for line in texts)
    rows = [(line.level, line.text) for line in (parsed("node", text) for text in texts)]
    assert rows[:3] == [("INFO", "ready"), ("ERROR", "it broke"), ("ERROR", "[uvicorn] INFO: two")]
    assert ("ERROR", "  File 1") in rows
    assert any(text == "[of the grandchild]" for _, text in rows)
    assert (tmp_path / "logs" / "node.log").stat().st_mode & 0o077 == 0


def test_no_log_follows_a_link(tmp_path):
    target, log = tmp_path / "target", LogFile(tmp_path / "logs" / "app.log")
    log.write("first")
    log.path.rename(target)
    log.path.symlink_to(target)
    content_before = target.read_bytes()
    log.write("second")
    assert target.read_bytes() == content_before


def test_a_process_writes_its_own_records_with_the_round_and_what_ended_it(tmp_path):
    logger, path = logging.getLogger("pomona"), tmp_path / "logs" / "server.log"
    state_before = logger.level, list(logger.handlers)

    def works():
        logger.info("begun")
        at_round(3)
        logger.warning("two\nlines \x1b[31mred")
        with logging_to(tmp_path / "another.log"):
            logger.info("of another")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), logging_to(path):
        works()
    logger.error("after the end")
    assert (logger.level, logger.handlers) == state_before
    records = [parsed("server", line) for line in lines(path)]
    assert [(f.level, f.round, f.text) for f in records[:3]] == [
        ("INFO", None, "begun"),
        ("WARNING", 3, "two"),
        ("WARNING", 3, "lines red"),
    ]
    assert (records[-1].level, records[-1].text) == ("ERROR", "ZeroDivisionError")
    assert not any("another" in f.text for f in records)
    assert any("Traceback" in f.text for f in records)
    assert all(LINE.fullmatch(line) for line in lines(path))


def test_a_long_log_is_set_aside_once(tmp_path, monkeypatch):
    log = LogFile(tmp_path / "a.log")
    log.write("x" * 100)
    monkeypatch.setattr(process_logs, "LIMIT", 50)
    log.write("the last of the old file")
    log.write("the first of the new one")
    assert len(lines(tmp_path / "a.log.1")) == 2
    assert [parsed("a", line).text for line in lines(tmp_path / "a.log")] == [
        "the first of the new one"
    ]


def test_a_full_disk_ends_nothing(tmp_path, monkeypatch):
    def no_space(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(process_logs.os, "write", no_space)
    LogFile(tmp_path / "a.log").write("lost")
    assert lines(tmp_path / "a.log") == []


def stamped(second, text):
    return f"2026-11-22T06:42:{second:02d}.000Z {text}\n"


def test_logs_are_merged_by_time_and_followed(tmp_path, capsys):
    folder = tmp_path / "run" / "logs"
    folder.mkdir(parents=True)
    (tmp_path / "federation.toml").touch()  # a server's kit
    (folder / "server.log").write_text(
        stamped(2, "INFO     [round 1] b") + stamped(5, "ERROR    e") + " of another\n"
    )
    (folder / "superlink.log").write_text(
        stamped(1, "INFO     a") + stamped(4, "WARNING  d \x1b[2J") + "half a li"
    )
    (folder / "server.log.1").write_text(stamped(0, "INFO     oldest"))
    reader = LogReader(folder)
    assert [line.text for line in reader.last(9)] == [
        "oldest",
        "a",
        "b",
        "d \x1b[2J",
        "e",
        " of another",
    ]
    assert reader.new() == []
    with (folder / "superlink.log").open("a") as file:
        file.write("ne\n" + stamped(7, "INFO     g"))
    assert [line.text for line in reader.new()] == ["half a line", "g"]
    (folder / "server.log").replace(folder / "server.log.1")
    (folder / "server.log").write_text(stamped(8, "INFO     h"))
    assert [line.text for line in reader.new()] == ["h"]
    assert LogReader(folder).last(0) == []

    with pytest.raises(SystemExit, match="0"):
        main(["server", "logs", "--folder", str(tmp_path), "--lines", "1"])
    assert capsys.readouterr().out == "2026-11-22T06:42:08.000Z server     INFO     h\n"
    with pytest.raises(SystemExit, match="0"):
        main(["server", "logs", "--folder", str(tmp_path), "--json"])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {
        "time": "2026-11-22T06:42:02.000Z",
        "process": "server",
        "level": "INFO",
        "round": 1,
        "text": "b",
    } in rows
    silo = tmp_path / "silo"
    silo.mkdir()
    for name in ("federation.toml", "silo.toml"):
        (silo / name).touch()
    with pytest.raises(SystemExit, match="6"):
        main(["silo", "logs", "--folder", str(silo)])
    assert "nothing has been started here yet" in capsys.readouterr().err


def test_both_sides_of_a_federation_write_their_logs_and_no_path_of_a_silo_reaches_the_server(
    world,
):
    federation = world.federation()

    answer = client_app.ClientApp.answer

    def answers(self, task, rows):
        if self.silo.file.name == "silo-1" and task.number == 2:
            raise FileNotFoundError(f"{self.silo.state}/patients.csv")
        return answer(self, task, rows)

    world.patch.setattr(client_app.ClientApp, "answer", answers)
    federation.run()
    server = [
        parsed("server", text) for text in lines(federation.server / "run" / "logs" / "server.log")
    ]
    assert [line.round for line in server if line.text.startswith("committed with")] == [1, 2, 3]
    assert any(
        line.level == "WARNING" and line.text.startswith("silo-1 was not used") for line in server
    )
    assert not any("patients" in line.text for line in server)
    silo_lines = [
        parsed("app", text)
        for text in lines(federation.kits / "silo-1" / "state" / "logs" / "app.log")
    ]
    assert any(line.round == 2 and "patients.csv" in line.text for line in silo_lines)
    assert any(line.round == 3 and line.text.startswith("answered with") for line in silo_lines)
