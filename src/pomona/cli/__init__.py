"""The command line: thin, typed functions, imported when their command is called."""

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, suppress
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any, NoReturn, TextIO

from cyclopts import App, CycloptsError, UnknownOptionError

from pomona.cli.signals import heeded
from pomona.core.errors import PomonaError, StorageError
from pomona.core.memory import enough
from pomona.core.registry import importing_from

app = App(
    name="pomona",
    help="Personalized cross-silo federated learning: a model of its own for every client.",
    suppress_keyboard_interrupt=False,
    version_flags=("--version",),
    help_flags=("--help", "-h"),
)
data = App(name="data", help="What data there is, and how a partition cuts it, before any training.")
deploy = App(name="deploy", help="A federation between organisations: its kits, and a rehearsal on this machine.")
server = App(name="server", help="The server of a federation between organisations.")
silo = App(name="silo", help="A silo of a federation, on its own machine.")
SERVER = {
    "start": "Run the federation until it ends.",
    "resume": "Go on with a run that was interrupted, or that failed.",
    "status": "Show the round, who is present, absent or rejected and why, bytes and time.",
    "stop": "Stop the server in order.",
    "add": "Add a silo; it joins at the next round.",
    "revoke": "Revoke a silo from the next round on.",
}
SILO = {
    "check": "Find out what is wrong before taking part, and say what would leave the silo.",
    "start": "Take part: keep this silo connected until it is stopped.",
    "status": "Show the node's state, the last visit, certificate and disk.",
    "report": "Show what the federation did for this silo: accuracy, beside training alone, who helped.",
    "stop": "Stop taking part; the silo's state stays.",
}

app.command("pomona.cli.run:demo", name="demo", help="Compare four methods on embedded data, in under a minute.")
app.command("pomona.cli.run:run", name="run", help="Train one federation and record it.")
app.command("pomona.cli.bench:bench", name="bench", help="Run a suite: a table of methods and scenarios, tuned.")
app.command("pomona.cli.report:compare", name="compare", help="Tabulate recorded runs side by side.")
app.command("pomona.cli.report:report", name="report", help="Write the report page of recorded runs, or of a bench.")
app.command("pomona.cli.report:trajectory", name="trajectory", help="Draw a client's way over its loss surface.")
app.command("pomona.cli.report:methods", name="methods", help="List the methods: paper, cost, what stays private.")
app.command("pomona.cli.settings:settings", name="settings", help="Explain the settings of a run: all, or one KEY.")
app.command("pomona.cli.predict:predict", name="predict", help="Let a client's personal model answer.")
app.command("pomona.cli.predict:export", name="export", help="Write a personal model for other programs.")
data.command("pomona.cli.data:list_", name="list", help="List data sets, partitions and models.")
data.command("pomona.cli.data:show", name="show", help="Show a scenario: sizes, label map, divergence.")
app.command(data)
deploy.command("pomona.cli.deploy:provision", name="provision", help="Make keys and kits for server and silos.")
deploy.command("pomona.cli.deploy:renew", name="renew", help="Renew the server's certificate before it ends.")
deploy.command("pomona.cli.rehearse:rehearse", name="rehearse", help="Run a federation on this machine, and compare.")
app.command(deploy)
for name, what in SERVER.items():
    server.command(f"pomona.cli.server:{name}", name=name, help=what)
for name, what in SILO.items():
    silo.command(f"pomona.cli.silo:{name}", name=name, help=what)
for side, name in ((server, "server"), (silo, "silo")):
    side.command(f"pomona.cli.logs:{name}", name="logs", help="Show the logs of all its processes, by time.")
    side.command(f"pomona.cli.uninstall:{name}", name="uninstall", help="Show what lies in the kit, and end it.")
    side.command(f"pomona.cli.backup:{name}", name="backup", help="Write the kit's backup to a file.")
    side.command(f"pomona.cli.backup:restore_{name}", name="restore", help="Make a kit of its backup.")
    side.command(f"pomona.cli.audit:{name}", name="audit", help="Show the audit log, verify it, or send it to syslog.")
    side.command(f"pomona.cli.monitoring:{name}", name="metrics", help="Serve metrics for Prometheus on loopback.")
STUDY = {
    "submit": "Take a study into the queue.",
    "list": "List the studies in their order, with the silos' decisions.",
    "begin": "Start a study with the silos that have accepted.",
    "result": "Print what a survey, an evaluation or a search has found.",
    "abort": "End a study, or take it out of the queue.",
    "resume": "Put a study that was aborted, or that failed, back into the queue.",
}
study = App(name="study", help="Studies on a standing federation, one after another.")
for name, what in STUDY.items():
    names = ("begin", "start") if name == "begin" else name
    study.command(f"pomona.cli.studies:{'list_' if name == 'list' else name}", name=names, help=what)
server.command(study)
DECISIONS = {
    "studies": "List the studies that the server has offered, and what was decided on each.",
    "accept": "Accept a study: this silo does its tasks from then on.",
    "decline": "Decline a study: this silo does none of its tasks.",
}
for name, what in DECISIONS.items():
    silo.command(f"pomona.cli.studies:{name}", name=name, help=what)
server.command("pomona.cli.monitoring:dashboard", name="dashboard", help="Serve a page of the state on loopback.")
deploy.command("pomona.cli.key_renewal:certify", name="renew-key", help="Certify a silo's next key.")
server.command("pomona.cli.key_renewal:swap", name="renew-key", help="Let a silo's next key take its key's place.")
silo.command("pomona.cli.key_renewal:begin", name="renew-key", help="Make this silo's next key.")
silo.command("pomona.cli.key_renewal:use", name="use-key", help="Take this silo's next key into use.")
app.command(server)
app.command(silo)

PRIVATE = (["deploy"], ["server"], ["silo"])  # commands on kits: what they write is for its owner alone, folders too
GOES_ON = {"run": "`pomona run ... --resume` goes on", "bench": "the same command goes on"}  # after Ctrl-C


TAKE_SETTINGS = (["run"], ["bench"], ["data", "show"])  # the commands that take key=value words


def _setting_hint(fault: CycloptsError, given: Sequence[str]) -> str:
    """What to write in place of an option that is a setting; empty where it is none, or the command takes none."""
    if not isinstance(fault, UnknownOptionError) or not any(given[: len(c)] == c for c in TAKE_SETTINGS):
        return ""
    from pomona.config import keys  # late: it reads every settings record

    option = (fault.token.keyword or fault.token.value).partition("=")[0]
    word = option.lstrip("-").replace("-", "_")
    known = {key.partition(".")[0] for key in keys({})}
    return f"{option} is a setting, not an option; write {word}=VALUE" if word in known else ""


class SafeStderr:
    """Standard error whose file may be full or whose reader may be gone: what cannot be said harms nothing else."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Say it, or not."""
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
    """End with the line and the code of a fault."""
    from pomona.cli.output import shown  # late: most commands end well, and do not need rich before they begin

    print(*map(shown, fault.text().split("\n")), sep="\n", file=sys.stderr)
    sys.exit(fault.code)


def main(words: Sequence[str] | None = None) -> None:
    """Run a command, this process's own without words; a user's mistake is one line and an exit code."""
    given = list(sys.argv[1:] if words is None else words)
    before = os.umask(0o077) if given[:1] in PRIVATE else None
    try:
        with redirect_stderr(SafeStderr(sys.stderr)), heeded(), importing_from(Path.cwd()):
            _main(given)
    finally:
        if before is not None:
            os.umask(before)


def _main(given: list[str]) -> None:
    if given[:1] == ["run"] and set(given) & set(app.help_flags):
        from pomona.cli.settings import of_a_run  # late: it reads every settings record

        app["run"].help_epilogue = of_a_run()
    try:
        with enough(f"pomona {given[0] if given else ''}".rstrip()):
            app(given, exit_on_error=False, print_error=False)
        sys.stdout.flush()  # here, and not at the interpreter's end, a reader that has left is no fault
    except PomonaError as fault:
        _end(fault)
    except CycloptsError as fault:
        said = _setting_hint(fault, given) or f"{' '.join(str(fault).split())} See pomona --help."
        print(f"error[USAGE]: {said}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        if current_thread() is main_thread():
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second one could only disturb the end
        again = GOES_ON.get(given[0] if given else "", "the same command begins anew")
        print(f"error[INTERRUPTED]: stopped before the end; {again}", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output left; that is not a fault
        sys.exit(0)
    except OSError as fault:
        if fault.filename is None:
            raise
        _end(StorageError(f"{fault.filename}: {fault.strerror}; use the account that owns it, or mend the path"))
