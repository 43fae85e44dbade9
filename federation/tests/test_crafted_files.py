"""``server status``, ``silo status`` and ``server audit`` with files and text crafted to harm the
reader.
"""

import json

import pytest
from rich.console import Console

from command_line import command
from pomona.cli.output import laid_out, printable
from pomona.core.errors import ConfigError, StorageError
from pomona.core.table import of_records
from pomona_federation.agreement import Federation
from pomona_federation.audit_log import Audit
from pomona_federation.server.member_registry import MemberRegistry
from test_preflight import kit, server_kit, visit

HOSTILE = "[/red] [bold]x\x1b]0;owned\x07\x1b[2J\nforged \u202eline\u2028"
LIVE = {
    "rounds": 3,
    "present": ["north"],
    "round": 2,
    "unused": {"south": {"silo": "south", "round": 2, "reason": "deadline"}},
    "seconds": 1.5,
}
CRAFTED = {
    "seconds are text": {**LIVE, "seconds": "soon"},
    "unused is a list": {**LIVE, "unused": ["late"]},
    "an unknown reason": {**LIVE, "unused": {"a": {"silo": "a", "round": 1, "reason": "late"}}},
    "present is a number": {**LIVE, "present": 7},
    "bytes beyond a float": {**LIVE, "bytes_down": 10**400},
    "a list": [],
    "null": None,
}
TORN = {
    "torn": '{"round": 2, "pre',
    "not UTF-8": b"\xff\xfe",
    "nested": "[" * 100_000,
    "empty": "",
    "NaN": '{"rounds": NaN}',
}


def put(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def texts(*cases):
    return {name: json.dumps(value) for case in cases for name, value in case.items()}


def run_command(capsys, *arguments):
    """Exit code and output of a command; no terminal control sequences pass."""
    code = command(*arguments)
    out, err = capsys.readouterr()
    assert all(c.isprintable() or c == "\n" for c in out + err)
    assert "Traceback" not in err
    return code, out, err


@pytest.mark.parametrize("case", [*CRAFTED, *TORN])
def test_a_live_file_that_is_none_is_one_line(case, tmp_path, capsys):
    folder, _ = server_kit(tmp_path)
    put(folder / "run" / "live.json", {**texts(CRAFTED), **TORN}[case])
    code, _, err = run_command(capsys, "server", "status", "--folder", str(folder))
    assert code == StorageError.code
    assert err.count("\n") == 1
    assert "live.json cannot be read" in err


@pytest.mark.parametrize("case", [*TORN, "names"])
def test_a_file_of_who_is_waited_for_that_is_none_is_one_line(case, tmp_path, capsys):
    folder, _ = server_kit(tmp_path)
    put(
        folder / "run" / "waiting.json",
        (TORN | {"NaN": '{"since": NaN}', "names": '{"missing": ["north"]}'})[case],
    )
    code, _, err = run_command(capsys, "server", "status", "--folder", str(folder))
    assert (code, err.count("\n")) == (StorageError.code, 1)
    assert "waiting.json cannot be read" in err


@pytest.mark.parametrize(
    "text", ["[]", "{", '{"settled": 1}', '{"settled": 1e999, "silos": []}', "nested", "a size"]
)
def test_a_roster_that_is_none_is_one_line(text, tmp_path, capsys):
    folder, _ = server_kit(tmp_path)
    size = json.dumps({"settled": 1, "silos": [{"name": "north", "size": 10**400}]})
    put(folder / "run" / "roster.json", {"nested": "[" * 100_000, "a size": size}.get(text, text))
    code, _, err = run_command(capsys, "server", "status", "--folder", str(folder))
    assert (code, err.count("\n")) == (StorageError.code, 1)
    assert "roster.json cannot be read" in err


@pytest.mark.parametrize(
    "text", ["{", '{"state": "running", "round": -1}', "[]", '{"state": "\\u001b[2J", "round": 1}']
)
def test_a_status_that_is_none_is_one_line(text, tmp_path, capsys):
    folder, _ = server_kit(tmp_path)
    put(folder / "run" / "status.json", text)
    code, _, err = run_command(capsys, "server", "status", "--folder", str(folder))
    assert (code, err.count("\n")) == (StorageError.code, 1)


@pytest.mark.parametrize(
    "line",
    ["[]", "7", "{}", '{"round": "x"}', '{"round": 1, "bytes_down": "many"}', "[" * 100_000, "{"],
)
def test_a_visit_that_is_none_is_skipped_with_a_word(line, tmp_path, capsys):
    """Among good lines, and as the last."""
    folder, _ = kit(tmp_path)
    path, good = folder / "state" / "rounds.jsonl", json.dumps(visit(1, 0.5))
    put(path, f"{good}\n{line}\n{json.dumps(visit(2, 0.5))}\n{line}\n")
    code, out, _ = run_command(capsys, "silo", "status", "--folder", str(folder))
    assert code == 0
    assert "round     2 of 3" in out
    assert "2 lines of state/rounds.jsonl" in out


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"state": 7}', '{"state": "connected", "restarts": 1e400}']
)
def test_a_nodes_news_that_are_none_are_one_line(text, tmp_path, capsys):
    folder, _ = kit(tmp_path)
    put(folder / "state" / "node" / "node.json", text)
    code, _, err = run_command(capsys, "silo", "status", "--folder", str(folder))
    assert (code, err.count("\n")) == (StorageError.code, 1)


def test_words_of_members_are_shown_and_never_obeyed(tmp_path, capsys):
    """In the table of `status`, in its lines, in `audit`: no markup, no escape sequence, no line of
    their own.
    """
    folder, _ = server_kit(tmp_path)
    record = {"silo": HOSTILE, "round": 2, "reason": "signature", "detail": HOSTILE}
    live = {**LIVE, "unused": {"south": record, HOSTILE: record}}
    put(folder / "run" / "live.json", json.dumps(live))
    code, out, _ = run_command(capsys, "server", "status", "--folder", str(folder))
    assert code == 0
    assert "[/red] [bold]x" in out
    assert not any(line.startswith("forged") for line in out.splitlines())
    with Audit(folder / "run" / "audit.jsonl") as audit:
        audit.write("refused", silo=HOSTILE, reason=HOSTILE)
    code, out, _ = run_command(capsys, "server", "audit", "--folder", str(folder))
    assert (code, len(out.splitlines())) == (0, 1)


def test_a_table_obeys_no_cell_no_heading_and_no_title():
    console = Console(width=200, force_terminal=True, color_system="truecolor")
    with console.capture() as captured:
        console.print(laid_out(of_records([{HOSTILE: HOSTILE, "n": 1}], HOSTILE, [HOSTILE])))
    text = captured.get()
    assert "\x1b]" not in text
    assert "[2J" in text
    assert "\x1b[2J" not in text
    assert text.count("[/red] [bold]x") == 4
    assert printable("a\tb\x00c\u202e") == "a b c "


def test_a_name_that_no_silo_can_have_is_refused_in_one_line(tmp_path, capsys):
    folder, _ = server_kit(tmp_path)

    registry = MemberRegistry(folder / "run", Federation.read(folder / "federation.toml"))
    for name in ("", "../x", "A", "x" * 41, HOSTILE):
        with pytest.raises(ConfigError, match="cannot be a silo") as caught:
            registry.add(name, "", "")
        assert str(caught.value).isprintable()
