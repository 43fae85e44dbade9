"""``pomona privacy-audit``: what a run reveals, measured."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter, validators

from pomona.audit import RUNS
from pomona.cli.output import Flag, Json, StatusLine, emit, printable
from pomona.core.errors import ConfigError
from pomona.core.registry import own_code_barred
from pomona.record.run_folder import load

if TYPE_CHECKING:
    from pomona.audit.findings import Findings

RUN_COUNT = validators.Number(gte=4, lte=4096)  # two runs choose a threshold, two judge it


def privacy_audit(
    run: Path,
    *,
    runs: Annotated[int, Parameter(validator=RUN_COUNT)] = RUNS,
    epsilon: Annotated[tuple[float, ...], Parameter(negative="")] = (),
    out: Path | None = None,
    own_code: Flag = False,
    json: Json = False,
) -> None:
    """Attack a run with what its server and its clients receive, and report what they learn.

    The run is repeated many times with other records in training; the same command continues after
    a stop.

    Parameters
    ----------
    run
        folder that `pomona run` wrote
    runs
        number of runs to attack
    epsilon
        also attack runs trained with this epsilon; repeatable
    out
        default RUN/privacy-audit
    own_code
        allow the run to import modules that it names
    """
    if invalid := [e for e in epsilon if not e > 0]:
        raise ConfigError(f"--epsilon {invalid[0]:g} must be above 0, for example 8")
    folder = out or run / "privacy-audit"
    try:
        result = load(run)
        with own_code_barred(not own_code), StatusLine() as line:
            line.show(f"reading the data of {printable(str(run))}", 0, 1, "reading")
            from pomona.audit.audit import audit  # late: what follows imports PyTorch
            from pomona.audit.page import NUMBERS, record, write

            def show(stage: str, completed: int, total: int) -> None:
                line.show(f"{stage}: {completed} of {total}", completed, total, stage)

            results = audit(result, folder, runs, epsilon, show)
            page = write(results)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("the same command continues") from None
    if json:
        emit([record(measured) for measured in results.measured])
        return
    for measured in results.measured:
        _print_verdicts(measured.findings)
    print(f"page     {page}", f"numbers  {folder / NUMBERS}", sep="\n")


def _print_verdicts(findings: "Findings") -> None:
    from pomona.audit.page import PARTIES, verdict

    scope = "the run" if findings.budget is None else f"epsilon {findings.budget:g}"
    for party in PARTIES:
        print(f"{scope}: {verdict(findings, party)}")
