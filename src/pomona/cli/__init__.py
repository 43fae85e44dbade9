"""The command line: thin, typed functions, imported when their command is called."""

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, suppress
from importlib.metadata import entry_points
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any, NoReturn, TextIO

from cyclopts import App, CycloptsError, UnknownOptionError

from pomona.core.errors import PomonaError, StorageError, enough
from pomona.core.registry import importing_from

app = App(
    name="pomona",
    help="Personalized cross-silo federated learning: a personal model for every client.",
    suppress_keyboard_interrupt=False,
    version_flags=("--version",),
    help_flags=("--help", "-h"),
)
data = App(name="data", help="List data sets, and show a partition before any training.")
app.command(
    "pomona.cli.run:demo",
    name="demo",
    help="Compare four methods on embedded data, in under a minute.",
)
app.command("pomona.cli.run:run", name="run", help="Train one federation and record it.")
app.command(
    "pomona.cli.bench:bench",
    name="bench",
    help="Run a suite: a table of methods and scenarios, tuned.",
)
app.command("pomona.cli.report:compare", name="compare", help="Compare recorded runs in one table.")
app.command(
    "pomona.cli.report:report",
    name="report",
    help="Write the report page of recorded runs, or of a bench.",
)
app.command(
    "pomona.cli.report:trajectory",
    name="trajectory",
    help="Draw a client's path over its loss surface.",
)
app.command(
    "pomona.cli.report:methods",
    name="methods",
    help="List the methods: paper, cost, what stays private.",
)
app.command(
    "pomona.cli.settings:settings",
    name="settings",
    help="Explain the settings of a run: all, or one KEY.",
)
app.command(
    "pomona.cli.commands:commands",
    name="commands",
    help="List the commands, with --json for programs.",
)
app.command(
    "pomona.cli.audit:privacy_audit",
    name="privacy-audit",
    help="Attack a recorded run: what its server and clients learn of records.",
)
app.command(
    "pomona.cli.predict:predict", name="predict", help="Predict with a client's personal model."
)
app.command(
    "pomona.cli.predict:export", name="export", help="Export a personal model for other programs."
)
data.command("pomona.cli.data:list_", name="list", help="List data sets, partitions and models.")
data.command(
    "pomona.cli.data:show", name="show", help="Show a scenario: sizes, label map, divergence."
)
app.command(data)
COMMANDS = "pomona.commands"
"""Entry points of other packages: functions that add commands to ``app``.

They return the names of commands whose files and folders are readable by their owner only.
"""
PRIVATE = frozenset[str]().union(*(entry.load()(app) for entry in entry_points(group=COMMANDS)))
# after Ctrl-C
GOES_ON = {
    "run": "`pomona run ... --resume` continues",
    "bench": "the same command continues",
    "privacy-audit": "the same command continues",
}


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
        with redirect_stderr(SafeStderr(sys.stderr)), heeded(), importing_from(Path.cwd()):
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
        with enough(f"pomona {command}".rstrip()):
            app(given, exit_on_error=False, print_error=False)
        # here rather than at the interpreter's exit, so that a closed pipe is not an error
        sys.stdout.flush()
    except PomonaError as fault:
        _end(fault)
    except CycloptsError as fault:
        _misused(fault, given)
    except KeyboardInterrupt:
        _interrupted(command)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output has left, which is not an error
        sys.exit(0)
    except OSError as fault:
        if fault.filename is None:
            raise
        _end(
            StorageError(
                f"{fault.filename}: {fault.strerror}; use the account that owns it, or correct "
                "the path"
            )
        )


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


def _interrupted(command: str) -> NoReturn:
    """Exit after Ctrl-C, and say how to continue."""
    if current_thread() is main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second signal could only disturb the exit
    again = GOES_ON.get(command, "the same command starts again")
    print(f"error[INTERRUPTED]: stopped before the end; {again}", file=sys.stderr)
    sys.exit(130)


SOON = 0.01  # seconds until a lost signal is delivered again, when the callback has returned
CODE = 143


@contextmanager
def heeded() -> Iterator[None]:
    """SIGTERM ends the block with SystemExit(143); neither it nor Ctrl-C is swallowed by a
    callback.

    SIGTERM keeps its handler after the block, for the interpreter's shutdown. Outside the main
    thread, where Python runs no handlers, nothing changes.
    """
    if current_thread() is not main_thread():
        yield
        return
    lost: list[signal.Signals] = []

    def again(*_: object) -> None:
        if lost:
            signal.raise_signal(lost.pop())  # handled or postponed elsewhere from here on

    def hook(unraisable: "sys.UnraisableHookArgs") -> None:
        number = _signal(unraisable.exc_value)
        if number is None:
            before(unraisable)
            return
        lost[:] = [number]
        signal.setitimer(signal.ITIMER_REAL, SOON)

    signal.signal(signal.SIGTERM, _terminate)
    alarm, before = signal.signal(signal.SIGALRM, again), sys.unraisablehook
    sys.unraisablehook = hook
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.unraisablehook = before
        signal.signal(signal.SIGALRM, alarm)


def _signal(fault: BaseException | None) -> signal.Signals | None:
    """Return the signal of an exception, None for others."""
    if isinstance(fault, KeyboardInterrupt):
        return signal.SIGINT
    return signal.SIGTERM if isinstance(fault, SystemExit) and fault.code == CODE else None


def _terminate(*_: object) -> NoReturn:
    """End a run on SIGTERM as on Ctrl-C: the current round is dropped, and the status is
    written.
    """
    raise SystemExit(CODE)
