"""``pomona privacy-audit``: what a run reveals, measured."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Annotated

from cyclopts import Parameter, validators
from rich.live import Live
from rich.text import Text

from pomona.audit.audit import RUNS, Told, audit
from pomona.audit.page import NUMBERS, PARTIES, record, verdict, write
from pomona.cli.output import EVERY, Json, console, emit, talk
from pomona.core.errors import ConfigError
from pomona.core.registry import own_code_barred
from pomona.record.run_folder import load

WHOLE = validators.Number(gte=4, lte=4096)  # two runs choose a threshold, two judge it


def privacy_audit(
    run: Path,
    *,
    runs: Annotated[int, Parameter(validator=WHOLE, help="runs that are attacked")] = RUNS,
    epsilon: Annotated[
        tuple[float, ...],
        Parameter(negative="", help="also with differential privacy of this epsilon; repeatable"),
    ] = (),
    out: Annotated[Path | None, Parameter(help="default RUN/privacy-audit")] = None,
    own_code: Annotated[
        bool, Parameter(negative="", help="allow the run to import modules that it names")
    ] = False,
    json: Json = False,
) -> None:
    """Attack a run by what its server and its clients receive, and write a page on what they learn.

    The run is made again many times, with other records in training; the same command goes on after
    a stop.

    Parameters
    ----------
    run
        folder that `pomona run` wrote
    """
    if wrong := [e for e in epsilon if not e > 0]:
        raise ConfigError(f"--epsilon {wrong[0]:g} is not above 0; give for example 8")
    folder = out or run / "privacy-audit"
    try:
        with own_code_barred(not own_code), progress() as told:
            found = audit(load(run), folder, runs, epsilon, told)
            page = write(found)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("the same command continues") from None
    if json:
        emit([record(each) for each in found.measured])
        return
    for each in (m.findings for m in found.measured):
        at = "the run" if each.budget is None else f"epsilon {each.budget:g}"
        for party in PARTIES:
            print(f"{at}: {verdict(each, party)}")
    print(f"page     {page}", f"numbers  {folder / NUMBERS}", sep="\n")


@contextmanager
def progress() -> Iterator[Told]:
    """Yield a function that shows what is done: a line that is redrawn, or one every few
    seconds.
    """
    state, said = ["starting"], [-EVERY]
    with Live(
        get_renderable=lambda: Text(state[0]), console=console, transient=True, refresh_per_second=4
    ) as live:
        if not console.is_terminal:
            live.stop()

        def told(what: str, done: int, of: int) -> None:
            state[0] = f"{what}: {done} of {of}"
            if not console.is_terminal and monotonic() - said[0] >= EVERY:
                said[0] = monotonic()
                talk(state[0])

        yield told
