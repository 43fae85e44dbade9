"""A federation of real processes on loopback for fault tests, and the simulation that it must
equal.
"""

import os
import signal
from contextlib import contextmanager

from safetensors.torch import load_file

from federation_in_process import settings
from pomona.federation.transport import Inline
from pomona.record.run_folder import load
from pomona.scenario import Scenario
from pomona.simulation import simulate
from pomona_federation.rehearsal.run import local_federation
from pomona_federation.supervision.supervisor import process_tree

ROUNDS = 5
PATIENT = {"deadline": 240.0, "wait": 240.0, "patience": 200.0, "quorum": 2}


@contextmanager
def federation(folder, rounds=ROUNDS, **options):
    """Kits of three silos and a server on loopback; their processes end with the test."""
    scenario = Scenario.prepare(settings(method={"name": "apple", "budget": 1}, rounds=rounds))
    with local_federation(scenario, folder, **(PATIENT | options)) as local:
        yield local
        descendants = set(below(os.getpid()))
    assert not descendants & {
        process for process, command in process_tree(os.getpid()).items() if "pomona" in command
    }


def launched(local):
    """The federation with all processes started."""
    for owner in ("server", *local.names):
        local.start(owner)
    return local


READER = """
import time
from pathlib import Path
from pomona.data import data_settings, read

def data(settings):
    flag = Path(__file__).with_suffix("")
    if flag.exists():
        BEFORE
    section = settings.model_dump(exclude_unset=True, exclude={"name"})
    return read(data_settings(**section))
"""


def reads_by(kit, name, statement):
    """Let a silo read its data by a module of its own, which runs a line before that whenever the
    returned file is there.
    """
    (kit / f"{name}.py").write_text(READER.replace("BEFORE", statement))
    settings_text = (kit / "silo.toml").read_text()
    assert settings_text.count('name = "arrays"') == 1
    (kit / "silo.toml").write_text(
        settings_text.replace('name = "arrays"', f'name = "{name}:data"')
    )
    return kit / name


def reached(number):
    """Whether a round is committed and the federation still runs."""
    return lambda status: status.round >= number or status.state != "running"


def finished(status):
    """Whether the federation has ended; a stopped ServerApp is restarted by its
    supervisor.
    """
    return status.state in {"finished", "failed"}


def expected(local, monkeypatch):
    """The simulation's models, with every silo absent in the rounds that the server completed
    without it.
    """
    cohorts = {r.round: r.cohort for r in load(local.server / "run").rounds}
    folder = local.folder / "simulation"
    return simulated(local.simulation, cohorts, folder, monkeypatch), cohorts


def simulated(scenario, cohorts, folder, monkeypatch):
    """The models by client of a simulation whose clients are absent where they are not in a
    round's cohort; without those that never took part. After the last round unseen clients adapt.
    """
    visit = Inline.visit

    def visits(transport, request, downlink):
        replies = visit(transport, request, downlink)
        return [
            r
            for r in replies
            if not request.trains
            or r.reply.client in cohorts.get(request.round.number, request.ids)
        ]

    with monkeypatch.context() as patch:
        patch.setattr(Inline, "visit", visits)
        simulate(scenario, folder)
    paths = (folder / "models").glob("client-*.safetensors")
    return {int(path.stem.removeprefix("client-")): load_file(path) for path in paths}


def check(local, monkeypatch, complete=True):
    """Check the models; ``complete``: no silo was absent in any round."""
    models, cohorts = expected(local, monkeypatch)
    if complete:
        assert set(cohorts.values()) == {(0, 1, 2)}
    for k, name in enumerate(local.names):
        theirs = models[k]
        ours = load_file(local.silo(name) / "state" / "models" / "personal.safetensors")
        assert all(ours[k].equal(theirs[k]) for k in theirs), name
    return cohorts


def kill(processes, number=signal.SIGKILL):
    """Signal processes. Fails if the list is empty."""
    assert processes
    for process in processes:
        process.send_signal(number)


def below(pid):
    """Descendants of a process."""
    return [process for process in process_tree(pid) if process.pid != pid]
