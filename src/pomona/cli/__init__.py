"""The command line: thin, typed functions, imported when their command is called."""

import errno
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, suppress
from importlib.metadata import entry_points
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any, NoReturn, TextIO

from cyclopts import App, CycloptsError, UnknownOptionError

from pomona.cli.signals import heeded
from pomona.core.errors import PomonaError, StorageError, enough
from pomona.core.registry import importing_from

app = App(
    name="pomona",
    help="Personalized cross-silo federated learning: a personal model for every client.",
    suppress_keyboard_interrupt=False,
    version_flags=("--version",),
    help_flags=("--help", "-h"),
)
COMMANDS = {
    "demo": ("run:demo", "Compare four methods on embedded data, in under a minute."),
    "run": ("run:run", "Train one federation and record it."),
    "bench": ("bench:bench", "Run a suite: a table of methods and scenarios, tuned."),
    "compare": ("report:compare", "Compare recorded runs in one table."),
    "report": ("report:report", "Write the report page of recorded runs, or of a bench."),
    "trajectory": ("report:trajectory", "Draw a client's path over its loss surface."),
    "methods": ("report:methods", "List the methods: paper, cost, what stays private."),
    "settings": ("settings:settings", "Explain the settings of a run: all, or one KEY."),
    "commands": ("commands:commands", "List the commands, with --json for programs."),
    "privacy-audit": (
        "audit:privacy_audit",
        "Attack a recorded run: what its server and clients learn of records.",
    ),
    "predict": ("predict:predict", "Predict with a client's personal model."),
    "export": ("predict:export", "Export a personal model for other programs."),
}
"""The function of each command, in this folder, and its help."""
OF_DATA = {
    "list": ("data:list_", "List data sets, partitions and models."),
    "show": ("data:show", "Show a scenario: sizes, label map, divergence."),
}
data = App(name="data", help="List data sets, and show a partition before any training.")
for _app, _own in ((app, COMMANDS), (data, OF_DATA)):
    for _name, (_function, _help) in _own.items():
        _app.command(f"pomona.cli.{_function}", name=_name, help=_help)
app.command(data)
ENTRY_POINTS = "pomona.commands"
"""Entry points of other packages: functions that add commands to ``app``.

They return the names of commands whose files and folders are readable by their owner only.
"""
PRIVATE = frozenset[str]().union(*(entry.load()(app) for entry in entry_points(group=ENTRY_POINTS)))

FULL = {errno.ENOSPC, errno.EDQUOT}  # the disk, or the account's quota on it
TAKE_SETTINGS = (["run"], ["bench"], ["data", "show"])  # the commands that accept key=value words


def _setting_hint(fault: CycloptsError, given: Sequence[str]) -> str:
    """Return the replacement for an option that is a setting; empty if it is none, or the command
    accepts none.
    """
    if not isinstance(fault, UnknownOptionError) or not any(
        given[: len(c)] == c for c in TAKE_SETTINGS
    ):
        return ""
    from pomona.config import keys  # late: it imports every settings record

    option = (fault.token.keyword or fault.token.value).partition("=")[0]
    word = option.lstrip("-").replace("-", "_")
    known = {key.partition(".")[0] for key in keys({})}
    return f"{option} is a setting, not an option; write {word}=VALUE" if word in known else ""


class SafeStderr:
    """Standard error that may be full or closed: output that cannot be written is dropped."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write the text, or drop it."""
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Drop output that cannot be written now."""
        try:
            self._stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _end(fault: PomonaError) -> NoReturn:
    """Exit with an error's message and code."""
    from pomona.cli.output import shown  # late: successful commands do not need rich for this

    print(*map(shown, fault.text().split("\n")), sep="\n", file=sys.stderr)
    sys.exit(fault.code)


def main(words: Sequence[str] | None = None) -> None:
    """Run a command, by default this process's own; a user's mistake becomes one line and an exit
    code.
    """
    given = list(sys.argv[1:] if words is None else words)
    before = os.umask(0o077) if PRIVATE.intersection(given[:1]) else None
    try:
        with redirect_stderr(SafeStderr(sys.stderr)), heeded():
            _main(given)
    finally:
        if before is not None:
            os.umask(before)


def _main(given: list[str]) -> None:
    command = given[0] if given else ""
    if command == "run" and set(given) & set(app.help_flags):
        from pomona.cli.settings import of_a_run  # late: it imports every settings record

        app["run"].help_epilogue = of_a_run()
    try:
        with enough(f"pomona {command}".rstrip()), importing_from(Path.cwd()):
            app(given, exit_on_error=False, print_error=False)
        # here rather than at the interpreter's exit, so that a closed pipe is not an error
        sys.stdout.flush()
    except PomonaError as fault:
        _end(fault)
    except CycloptsError as fault:
        _misused(fault, given)
    except KeyboardInterrupt as fault:
        _interrupted(str(fault))
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output has left, which is not an error
        sys.exit(0)
    except OSError as fault:
        where, what = fault.filename or _called(given), fault.strerror or fault
        if fault.errno in FULL:
            remedy = "make room"
        elif fault.errno == errno.EFBIG:
            remedy = "raise the limit of a file's size (ulimit -f)"
        elif fault.filename:
            remedy = "use the account that owns it, or correct the path"
        else:  # of a connection, or of an open file
            remedy = "look at the connection, the device or the current folder"
        _end(StorageError(f"{where}: {what}; {remedy}, then give the command again"))


def _called(given: Sequence[str]) -> str:
    """Return the command that the first words name, as far as there is one."""
    at, name = app, app.name[0]
    for word in given:
        if word.startswith("-") or word not in list(at):
            break
        at, name = at[word], f"{name} {word}"
    return name


def _misused(fault: CycloptsError, given: Sequence[str]) -> NoReturn:
    help_ = f"See {_called(given)} --help."
    said = _setting_hint(fault, given) or f"{' '.join(str(fault).split())} {help_}"
    print(f"error[USAGE]: {said}", file=sys.stderr)
    sys.exit(2)


def _interrupted(how: str) -> NoReturn:
    """Exit after Ctrl-C, and say how to continue: what the command says of itself, if anything."""
    if current_thread() is main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second signal could only disturb the exit
    again = how or "the same command starts again"
    print(f"error[INTERRUPTED]: stopped before the end; {again}", file=sys.stderr)
    sys.exit(130)
