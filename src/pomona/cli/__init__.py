"""The command line: thin, typed functions, imported when their command is called."""

import errno
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, suppress
from importlib.metadata import entry_points
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any, NoReturn, TextIO

from cyclopts import App, CycloptsError, MissingArgumentError, UnknownOptionError

from pomona.core.errors import PomonaError, StorageError, explaining_memory_errors
from pomona.core.registry import importing_from

app = App(
    name="pomona",
    help="Personalized cross-silo federated learning: a personal model for every client.",
    suppress_keyboard_interrupt=False,
    version_flags=("--version",),
    help_flags=("--help", "-h"),
)
COMMANDS = {
    "demo": (
        "run:demo",
        "Compare training alone, FedAvg and four personalized methods, in one to three minutes.",
    ),
    "new": ("new:new", "Write a project of your own that runs at once."),
    "run": ("run:run", "Train one federation and record it."),
    "bench": ("bench:bench", "Run a suite: a table of methods and scenarios, tuned."),
    "compare": ("report:compare", "Compare recorded runs in one table."),
    "coefficients": (
        "report:coefficients",
        "Odds and hazard ratios of a recorded run's linear models, with intervals.",
    ),
    "report": ("report:report", "Write the report page of recorded runs, or of a bench."),
    "elsewhere": (
        "report:elsewhere",
        "Evaluate each client's model on the other clients' test rows.",
    ),
    "methods": ("report:methods", "List the methods: paper, cost, what stays private."),
    "settings": ("settings:settings", "Explain the settings of a run: all, or one KEY."),
    "commands": ("commands:commands", "List the commands, with --json for programs."),
    "privacy-audit": (
        "audit:privacy_audit",
        "Attack a recorded run: what its server and clients learn about records.",
    ),
    "predict": ("predict:predict", "Predict with a client's personal model."),
    "export": ("predict:export", "Export a personal model for other programs."),
}
"""The function of each command, in this folder, and its help."""
OF_DATA = {
    "list": ("data:list_", "List data sets, partitions and models."),
    "show": ("data:show", "Show how data are divided: sizes, labels, divergence."),
}
data = App(name="data", help="List data sets, and show a partition before any training.")
for _app, _commands in ((app, COMMANDS), (data, OF_DATA)):
    for _name, (_function, _help) in _commands.items():
        _app.command(f"pomona.cli.{_function}", name=_name, help=_help)
app.command(data)
ENTRY_POINTS = "pomona.commands"
"""Entry points of other packages: functions that add commands to ``app``.

They return the names of commands whose files and folders are readable by their owner only.
"""
PRIVATE = frozenset[str]().union(*(entry.load()(app) for entry in entry_points(group=ENTRY_POINTS)))

DISK_FULL = {errno.ENOSPC, errno.EDQUOT}  # the disk, or the account's quota on it
TAKE_SETTINGS = (["run"], ["bench"], ["data", "show"])  # the commands that accept key=value words


def _setting_hint(fault: CycloptsError, arguments: Sequence[str]) -> str:
    """Return how a setting is written, for a command that takes settings and got an unknown
    option.
    """
    if not isinstance(fault, UnknownOptionError) or not any(
        arguments[: len(c)] == c for c in TAKE_SETTINGS
    ):
        return ""
    option = (fault.token.keyword or fault.token.value).partition("=")[0]
    setting = option.lstrip("-").replace("-", "_")
    return f" A setting is written {setting}=VALUE."


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


def _exit(fault: PomonaError) -> NoReturn:
    """Exit with an error's message and code."""
    from pomona.cli.output import printable  # late: successful commands do not need rich for this

    print(*map(printable, fault.text().split("\n")), sep="\n", file=sys.stderr)
    sys.exit(fault.code)


def main(argv: Sequence[str] | None = None) -> None:
    """Run a command, by default this process's own; a user's mistake becomes one line and an exit
    code.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    umask = os.umask(0o077) if PRIVATE.intersection(arguments[:1]) else None
    try:
        with redirect_stderr(SafeStderr(sys.stderr)), handle_signals():
            _main(arguments)
    finally:
        if umask is not None:
            os.umask(umask)


def _main(arguments: list[str]) -> None:
    command = arguments[0] if arguments else ""
    if command == "run" and set(arguments) & set(app.help_flags):
        from pomona.cli.settings import run_help  # late: it imports every settings record

        app["run"].help_epilogue = run_help()
    try:
        with explaining_memory_errors(f"pomona {command}".rstrip()), importing_from(Path.cwd()):
            app(arguments, exit_on_error=False, print_error=False)
        # here rather than at the interpreter's exit, so that a closed pipe is not an error
        sys.stdout.flush()
    except PomonaError as fault:
        _exit(fault)
    except CycloptsError as fault:
        _exit_usage(fault, arguments)
    except KeyboardInterrupt as fault:
        _exit_interrupted(str(fault))
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output has left, which is not an error
        sys.exit(0)
    except OSError as fault:
        _exit(_storage_error(fault, arguments))


def _storage_error(fault: OSError, arguments: Sequence[str]) -> StorageError:
    """Return the error for a fault of the system, with what to do about it."""
    if fault.errno in DISK_FULL:
        remedy = "make room"
    elif fault.errno == errno.EFBIG:
        remedy = "raise the limit of a file's size (ulimit -f)"
    elif fault.filename:
        remedy = "use the account that owns it, or correct the path"
    else:  # of a connection, or of an open file
        remedy = "check the connection, the device or the current folder"
    subject, problem = fault.filename or _command_path(arguments), fault.strerror or fault
    return StorageError(f"{subject}: {problem}; {remedy}, then run the command again")


def _command_path(arguments: Sequence[str]) -> str:
    """Return the command that the first arguments name, or the longest part that exists."""
    group, name = app, app.name[0]
    for argument in arguments:
        if argument.startswith("-") or argument not in list(group):
            break
        group, name = group[argument], f"{name} {argument}"
    return name


def _exit_usage(fault: CycloptsError, arguments: Sequence[str]) -> NoReturn:
    text, hint = " ".join(str(fault).split()), _setting_hint(fault, arguments)
    command = _command_path(arguments)
    if isinstance(fault, MissingArgumentError) and fault.argument and fault.argument.index == 0:
        text = f"{command}: {fault.argument.name.lstrip('-').upper()} is missing."
    print(f"error[USAGE]: {text}{hint} See {command} --help.", file=sys.stderr)
    sys.exit(2)


def _exit_interrupted(hint: str) -> NoReturn:
    """Exit after Ctrl-C, with the command's own hint on how to continue, if any."""
    if current_thread() is main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second signal could only disturb the exit
    remedy = hint or "the same command starts again"
    print(f"error[INTERRUPTED]: stopped before the end; {remedy}", file=sys.stderr)
    sys.exit(130)


SOON = 0.01  # seconds until a lost signal is delivered again, when the callback has returned
CODE = 143


@contextmanager
def handle_signals() -> Iterator[None]:
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
            previous_hook(unraisable)
            return
        lost[:] = [number]
        signal.setitimer(signal.ITIMER_REAL, SOON)

    signal.signal(signal.SIGTERM, _terminate)
    alarm, previous_hook = signal.signal(signal.SIGALRM, again), sys.unraisablehook
    sys.unraisablehook = hook
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.unraisablehook = previous_hook
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
