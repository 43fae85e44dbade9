"""``pomona deploy simulate``: a study on one machine."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from pomona.cli.output import Json, config_of, emit
from pomona.cli.run import closing, watched
from pomona.results.web.report_page import write
from pomona_federation.rehearsal.task_samples import of_study


def simulate(
    study: Path,
    *words: str,
    out: Annotated[Path | None, Parameter(help="folder for the record; default runs/METHOD-STUDY-TIME")] = None,
    dry_run: Annotated[bool, Parameter(negative="", help="print the resolved settings and stop")] = False,
    json: Json = False,
) -> None:
    """Simulate and record a study, with the same models as the federation would train on the same rows.

    Parameters
    ----------
    study
        a STUDY.toml or federation.toml with its sections run and task
    words
        the data, which must fit the task, and other settings: data=csv data.path=rows.csv data.client_column=silo
    """
    below, prepare = of_study(study)
    config = config_of(words, under=below)
    if dry_run:
        emit(config.tree()) if json else print(config.toml(), end="")
        return
    name = f"{config.method.name}-{study.stem}".replace(":", ".")
    folder = out or Path("runs") / f"{name}-{datetime.now(UTC):%Y%m%d-%H%M%S-%f}"
    result = watched(config, folder, prepare=prepare)
    page = write([result], folder)
    if json:
        emit({**result.summary, "folder": folder, "report": page})
    else:
        closing(result, folder, page)
