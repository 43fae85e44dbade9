"""``pomona deploy rehearse`` and ``simulate``: try out a federation or a study on this machine
beforehand.
"""

import sys
import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from pomona.cli.arguments import config_of
from pomona.cli.output import Flag, Json, activity, emit, print_table, respond, size
from pomona.core.errors import ConfigError
from pomona.core.table import of_records
from pomona.core.toml import read_file

if TYPE_CHECKING:
    from pomona_federation.rehearsal.run import Rehearsal


def rehearse(
    federation: Path,
    *words: str,
    to: Annotated[Path | None, Parameter(name="--out")] = None,
    json: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> None:
    """Run a federation on this machine, TLS and keys on, then the simulator on the same seeds, and
    compare.

    Parameters
    ----------
    federation
        the federation.toml; its silos, run and task are rehearsed, on synthetic samples in the
        task's form
    words
        key=value of a run, overriding the file: rounds=5, model=lenet; or your own data, which must
        fit the task and is partitioned among the silos: data=table data.path=rows.csv
        partition.beta=0.1
    to
        folder for kits, logs and records; new
    json
        machine-readable output
    """
    from pomona_federation.agreement import Federation

    planned = Federation.load(federation)
    with activity("reading the data"):
        from pomona.config import read_overrides  # late: what follows imports PyTorch
        from pomona_federation.rehearsal.inputs import scenario
        from pomona_federation.rehearsal.run import rehearse as rehearsed

        prepared = scenario(planned, read_overrides(words))
    folder = to or Path("rehearsals") / f"{planned.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    if folder.exists():
        raise ConfigError(f"{folder} already exists; give another --out")
    study = planned.study
    assert study is not None, "scenario refuses a federation without a study"
    rehearsal = rehearsed(
        prepared,
        folder,
        _log,
        wire=study.wire,
        share_scores=study.share_scores,
        deadline=study.deadline,
        patience=study.patience,
        insecure=planned.insecure,
        mutual_tls=planned.mutual_tls,
        quorum=min(planned.quorum, len(planned.silo)),
    )
    if json:
        emit({**asdict(rehearsal), "largest": rehearsal.largest, "folder": str(rehearsal.folder)})
    else:
        _show(rehearsal)


def _log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _show(rehearsal: "Rehearsal") -> None:
    from pomona_federation.server.registry_admin import uplinks

    server = rehearsal.folder / "kits" / "server"
    used = {name: uplinks(server, name) for name in rehearsal.difference}
    rows = [
        {
            "silo": name,
            "personal model": "as the simulator's, bit by bit"
            if d == 0
            else f"up to {d:.3g} away from it",
            "uplinks used": f"{used[name]['used']} of {used[name]['rounds']}",
        }
        for name, d in rehearsal.difference.items()
    ]
    print_table(of_records(rows))
    if refused := [name for name, history in used.items() if history["unused"]]:
        print(f"why not all: pomona server why {refused[0]} --folder {server}")
    downlink, uplink = median(rehearsal.bytes_down), median(rehearsal.bytes_up)
    print(
        f"{len(rehearsal.seconds)} rounds: {median(rehearsal.seconds):.1f} s each (median), the "
        f"simulator's {median(rehearsal.simulated_seconds):.2f} s; {size(downlink)} down "
        f"and {size(uplink)} up, all silos together; ready after {rehearsal.started:.0f} s"
    )
    print(
        "memory (most of one process): "
        + ", ".join(f"{k} {size(v)}" for k, v in sorted(rehearsal.memory.items()))
    )
    print(f"kits, logs and records: {rehearsal.folder}")


def simulate(
    study: Path,
    *words: str,
    members: Path | None = None,
    out: Path | None = None,
    dry_run: Flag = False,
    json: Json = False,
) -> None:
    """Simulate and record a study, with the same models as the federation would train on the same
    rows.

    Parameters
    ----------
    study
        a STUDY.toml or federation.toml with its sections run and task
    words
        the data, which must fit the task, and other settings: data=table data.path=rows.csv
        data.client_column=silo
    members
        federation.toml or server's kit that names the silos, one per client of the data; default
        STUDY itself, if it names silos
    out
        folder for the record; default runs/METHOD-STUDY-TIME
    dry_run
        print the resolved settings and stop
    """
    read_file(study)  # a wrong one is answered before PyTorch is imported
    from pomona.cli.run_outcome import prepared, print_summary, run_with_progress
    from pomona.results.web.report_page import write
    from pomona_federation.rehearsal.inputs import of_study

    below, prepare = of_study(study, members)
    config = config_of(words, base=below)
    if dry_run:
        respond(json, config.tree(), *config.toml().splitlines())
        return
    name = f"{config.method.name}-{study.stem}".replace(":", ".")
    folder = out or Path("runs") / f"{name}-{datetime.now(UTC):%Y%m%d-%H%M%S-%f}"
    result = run_with_progress(prepared(config, prepare), folder)
    page = write([result], folder)
    if json:
        emit({**result.summary, "folder": folder, "report": page})
    else:
        print_summary(result, folder, page)
