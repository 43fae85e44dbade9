"""The command line: thin, typed functions, imported when their command is called."""

import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from threading import current_thread, main_thread
from typing import NoReturn

from cyclopts import App, CycloptsError

from pomona.errors import PomonaError

app = App(
    name="pomona",
    help="Personalized cross-silo federated learning: a model of its own for every client.",
    suppress_keyboard_interrupt=False,
    version_flags=("--version",),
    help_flags=("--help", "-h"),
)
data = App(name="data", help="What data there is, and how a partition cuts it, before any training.")

app.command("pomona.cli.training:demo", name="demo", help="Compare four methods on embedded data, in under a minute.")
app.command("pomona.cli.training:run", name="run", help="Train one federation and record it.")
app.command("pomona.cli.looking:compare", name="compare", help="Tabulate recorded runs side by side.")
app.command("pomona.cli.looking:report", name="report", help="Write the report page of recorded runs.")
app.command("pomona.cli.looking:methods", name="methods", help="List the methods: paper, cost, what stays private.")
app.command("pomona.cli.using:predict", name="predict", help="Let a client's personal model answer.")
data.command("pomona.cli.data:list_", name="list", help="List data sets, partitions and models.")
data.command("pomona.cli.data:show", name="show", help="Show a scenario: sizes, label map, divergence.")
app.command(data)


def main(words: Sequence[str] | None = None) -> None:
    """Run a command, this process's own without words; a user's mistake is one line and an exit code."""
    if current_thread() is main_thread():
        signal.signal(signal.SIGTERM, _terminate)
    sys.path.append(str(Path.cwd()))  # module:function of a user's own, as `python -m` would find it
    try:
        app(sys.argv[1:] if words is None else words, exit_on_error=False, print_error=False)
    except PomonaError as fault:
        print(fault.line(), file=sys.stderr)
        sys.exit(fault.code)
    except CycloptsError as fault:
        print(f"error[USAGE]: {' '.join(str(fault).split())} See pomona --help.", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("error[INTERRUPTED]: stopped before the end; `pomona run ... --resume` goes on", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output left; that is not a fault
        sys.exit(0)


def _terminate(*_: object) -> NoReturn:
    """SIGTERM ends a run as Ctrl-C does: the round in flight is dropped, the status is written."""
    raise SystemExit(143)
