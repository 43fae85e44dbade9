"""Segmentation in a federation: the silos' models equal those of the simulation, bit by bit."""

from dataclasses import replace

import numpy as np
import pytest

import pomona
from federation_in_process import Federation, deployed, equal, loaded
from masks import archive, settings
from pomona.config import resolve
from pomona.core.errors import DataError
from pomona.record.run_folder import load
from pomona.scenario import Scenario
from pomona_federation.agreement import Federation as Agreement
from pomona_federation.rehearsal.inputs import federation_file
from pomona_federation.silo.kept_data import conformed
from pomona_federation.task_settings import TaskSettings


def config(folder, **over):
    small = settings(archive(folder / "masks.npz"))
    return resolve(
        small,
        {"largest_share": 0.5, "engine": "torch", "method": {"name": "apple", "budget": 1}, **over},
    )


@pytest.mark.long
@pytest.mark.parametrize(
    ("patch", "over"),
    [
        (None, {}),
        ({"size": [4, 6], "blend": "gaussian"}, {}),
        # the network has normalisation layers, which stay in the silos
        (None, {"method": {"name": "fedbn"}}),
    ],
    ids=["whole", "patches", "norms"],
)
def test_a_federation_learns_masks_as_its_simulation_does(patch, over, tmp_path):
    if patch:
        pytest.importorskip("monai")
    network = {**settings(tmp_path)["model"], "patch": patch}
    federation = Federation(tmp_path, config(tmp_path, model=network, **over))
    federation.run()
    out = tmp_path / "simulation"
    pomona.run(federation.simulation, out)
    expected = loaded(
        {n: out / "models" / f"client-{i:02d}.safetensors" for i, n in enumerate(federation.names)}
    )
    assert equal(deployed(federation), expected)
    ours, simulated = load(federation.server / "run"), load(out)
    assert ours.metric.name == simulated.metric.name == "dice"
    for one, other in zip(ours.evaluations, simulated.evaluations, strict=True):
        assert one.value == tuple(None if v is None else round(v, 4) for v in other.value)


def test_patches_are_agreed_on(tmp_path):
    network, found = settings(tmp_path)["model"], set()
    for patch in (None, {"size": [4, 6]}, {"size": [4, 4]}, {"size": [4, 4], "overlap": 0.5}):
        said = federation_file(
            Scenario.prepare(config(tmp_path, model={**network, "patch": patch})), "127.0.0.1:28443"
        )
        (tmp_path / "federation.toml").write_text(said)
        found.add(Agreement.load(tmp_path / "federation.toml").agreement)
    assert len(found) == 4


def agreed(**over):
    task = {
        "kind": "image",
        "input_shape": (8, 8, 1),
        "targets": "segmentation",
        "classes": ("a", "b", "c"),
    }
    return TaskSettings(**(task | over))


def test_what_is_agreed_of_masks():
    assert agreed().outputs == 3
    for wrong, words in (
        ({"classes": (), "outputs": 2}, "name the classes"),
        ({"kind": "table", "input_shape": (4,)}, "is for kind = 'image'"),
    ):
        with pytest.raises(ValueError, match=words):
            agreed(**wrong)


def test_a_silo_with_other_classes_is_refused(tmp_path):
    data = Scenario.prepare(config(tmp_path)).dataset
    with pytest.raises(
        DataError,
        match=r"classes: \('background', 'class 1', 'class 2'\) here, .* \('a', 'b', 'c'\)",
    ):
        conformed(data, agreed())
    alike = replace(data, classes=("a, b", "c", "d"))
    with pytest.raises(DataError, match=r"set data\.classes to these in this order"):
        conformed(alike, agreed(classes=("a", "b, c", "d")))
    kept = conformed(data, agreed(classes=data.classes))
    assert np.array_equal(kept.y, data.y)
    with pytest.raises(DataError, match="the agreement says"):
        conformed(data, agreed(classes=data.classes, input_shape=(9, 9, 1)))
