"""``pomona server logs`` and ``pomona silo logs``: the logs of all processes of one side, by time."""

import json
import time
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from pomona.cli.output import Json, say
from pomona.core.errors import StorageError
from pomona_federation.supervision.process_logs import LogLine, LogReader

PAUSE = 0.5  # seconds between looks for new lines
Lines = Annotated[int, Parameter(validator=Number(gte=0, lte=10**6), help="number of last lines")]
Follow = Annotated[bool, Parameter(negative="", help="show new lines too, until Ctrl-C")]


def server(
    *, folder: Annotated[Path, Parameter(help="the server's kit")] = Path("kits/server"), lines: Lines = 100,
    follow: Follow = False, json: Json = False,
) -> None:  # fmt: skip
    """Show the last lines of the server's logs, by time, in UTC: its supervisor's, SuperLink's and the ServerApp's."""
    _show(folder / "run" / "logs", lines, follow, json)


def silo(
    *, folder: Annotated[Path, Parameter(help="the silo's kit")] = Path(), lines: Lines = 100,
    follow: Follow = False, json: Json = False,
) -> None:  # fmt: skip
    """Show the last lines of the silo's logs, by time, in UTC: its supervisor's, the SuperNode's and its app's."""
    _show(folder / "state" / "logs", lines, follow, json)


def _show(folder: Path, count: int, follow: bool, as_json: bool) -> None:
    if not folder.is_dir():
        raise StorageError(f"{folder} is missing; nothing has been started here yet")
    reader = LogReader(folder)
    try:
        _print(reader.last(count), as_json)
        while follow:
            time.sleep(PAUSE)
            _print(reader.new(), as_json)
    except KeyboardInterrupt:
        return
    except OSError as fault:
        raise StorageError(f"{folder} cannot be read ({fault.strerror}); fix its permissions") from None


def _print(lines: list[LogLine], as_json: bool) -> None:
    for line in lines:
        number = "" if line.round is None else f"[round {line.round}] "
        text = f"{line.time or '-':<24} {line.process:<10} {line.level:<8} {number}{line.text}"
        say(json.dumps(vars(line)) if as_json else text)
