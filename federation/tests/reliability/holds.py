"""What must hold after a fault; the docstrings are the last column of ``fault_table``."""

import json

import injections as inject
import numpy as np
import torch
from safetensors.torch import load_file
from world import files, results

from pomona.config import resolve
from pomona.core.toml import read_file
from pomona.scenario import Scenario
from pomona.storage import checkpoint
from pomona.storage.run_status import read_status

ABSENT = inject.absent()
ALWAYS_ABSENT = inject.absent(rounds=range(1, 6))


def as_undisturbed(world, row):
    """Same result as an undisturbed run."""
    assert results(world.out) == world.undisturbed(row.arguments)
    assert read_status(world.out).state == "finished"


def as_absent(world, row):
    """Same result as a run in which that client is absent in that round."""
    assert results(world.out) == world.undisturbed(row.arguments, ABSENT)


def resumes(world, row):
    """The status says so; resumed without the fault, it ends with the result of an undisturbed
    run.
    """
    assert read_status(world.out).code == row.code
    assert world.run(row.arguments, "--resume") == 0
    as_undisturbed(world, row)


def stops(world, row):
    """The status says so; the rounds that were committed are whole."""
    assert read_status(world.out).code == row.code
    newest, corrupt = checkpoint.newest(world.out / "checkpoints")
    assert not corrupt
    assert read_status(world.out).round == (newest.number if newest else 0)


def unwritten(world, row):
    """Nothing was computed or written."""
    assert not world.out.exists()


def unchanged(world, row):
    """Nothing was computed; the file is as it was."""
    assert world.out.read_text() == "mine"


def untouched(world, row):
    """No file of the run changes except its status."""
    changed = {p.name for p, state in files(world.out).items() if world.original.get(p) != state}
    assert changed <= {"status.json", ".lock"}
    assert world.original.keys() == files(world.out).keys()


def finite(world, row):
    """No NaN in any checkpoint or event."""
    for path in world.out.glob("checkpoints/*.safetensors"):
        assert all(t.isfinite().all() for t in load_file(path).values())
    assert "NaN" not in (world.out / "events.jsonl").read_text()
    stops(world, row)


def in_quarantine(world, row):
    """The peers end as in a run without that client, which is not asked again after three
    refusals.
    """
    models = []
    for folder, fault in ((world.out, None), (world.folder / "without", ALWAYS_ABSENT)):
        if fault:
            with world.patch.context() as patch:
                fault(patch)
                assert world.run(row.arguments, out=folder) == 0
        models.append(
            {
                p.name: p.read_bytes()
                for p in folder.glob("*/client-*.safetensors")
                if "01" not in p.name
            }
        )
    assert models[0] == models[1] != {}
    rounds = [e for e in results(world.out)[1] if e["event"] == "round"]
    assert [e["cohort"] for e in rounds] == [[0, 2, 3]] * len(rounds)
    events = [json.loads(line) for line in (world.out / "events.jsonl").read_text().splitlines()]
    assert [len(e["refused"]) for e in events if e["event"] == "round"] == [1, 1, 1, 0, 0]


def stays_put(world, row):
    """Valid: every model stays the initial one, up to the rounding of averages."""
    models = [load_file(p) for p in sorted(world.out.glob("models/*.safetensors"))]
    assert len(models) == 4
    for model in models:
        for name, tensor in model.items():
            torch.testing.assert_close(tensor, models[0][name], rtol=1e-5, atol=1e-7)
    rounds = [e for e in results(world.out)[1] if e["event"] == "round"]
    assert [e["cohort"] for e in rounds] == [[0, 1, 2, 3]] * len(rounds) != []


def trains(world, row):
    """Every client trains, with a finite loss."""
    rounds = [e for e in results(world.out)[1] if e["event"] == "round"]
    assert all(0 < loss < 10 for e in rounds for loss in e["loss"])
    assert rounds


def as_floats(world, row):
    """Models see them from -1 to 1, as float64 arithmetic gives them."""
    with np.load(world.folder / "own.npz") as stored:
        images = stored["x"]
    scenario = Scenario.prepare(resolve(read_file(world.out / "config.toml")))
    inputs, _ = scenario.objective().data.gather(torch.arange(len(images)))
    assert images.min() == 0
    assert images.max() == 255
    np.testing.assert_allclose(
        inputs[:, 0].numpy(), (images.astype(np.float64) - 127.5) / 127.5, rtol=1e-6
    )
    trains(world, row)


def nulls(world, row):
    """It has an accuracy, and null where a figure needs two classes."""
    finals = [e for e in results(world.out)[1] if e["event"] == "final" and e["client"] == 0]
    assert finals
    assert all(e["accuracy"] is not None and e["auroc"] is None for e in finals)
    trains(world, row)


def nothing_outside(world, row):
    """No file outside the run's folder; the names are kept as they are."""
    assert {p.name for p in world.folder.iterdir()} == {"run", "own.csv"}
    names = json.loads((world.out / "events.jsonl").read_text().splitlines()[0])["clients"]
    assert "../../x" in names
    trains(world, row)


def unharmed(world, row):
    """Its code is not run."""
    assert not (world.folder / "canary").exists()
