"""A rehearsal with the federation's own task: synthetic samples in its form, and refusal of data
that does not fit.
"""

import numpy as np
import pytest
import tomli_w

from pomona.cli import main
from pomona.config import resolve
from pomona.core.errors import ConfigError, DataError
from pomona_federation.agreement import Federation
from pomona_federation.rehearsal.inputs import (
    DEALT,
    ROLES,
    SAMPLES,
    data_section,
    federation_file,
    of_study,
    scenario,
    synthetic,
    write_rows,
)
from pomona_federation.silo.settings import SiloFile
from pomona_federation.silo.silo_scenario import own_scenario

pytestmark = pytest.mark.long

COLUMNS = [{"name": "age"}, {"name": "sex", "kind": "category", "values": ["f", "m"]}]
FLAT, IMAGE = {"kind": "table", "input_shape": [4]}, {"kind": "image", "classes": ["a", "b"]}
COLUMNAR = {"classes": ["a", "b"], "preprocessing": {"columns": COLUMNS}}
TASKS = {
    "columns": FLAT | {"input_shape": [3]} | COLUMNAR,
    "numbers": FLAT | {"targets": "regression", "outputs": 2, "target_scale": [3.0, 4.0]},
    "flags": FLAT | {"targets": "multilabel", "outputs": 3, "shift": [50.0]},
    "times": FLAT | {"targets": "survival", "time_edges": [1.0, 2.0, 5.0]},
    "photos": IMAGE | {"input_shape": [6, 5, 3], "shift": [99.0], "scale": [50.0]},
    "scans": IMAGE | {"input_shape": [4, 6, 5, 1], "dtype": "int16", "scale": [400.0]},
    "masks": IMAGE | {"input_shape": [8, 8, 1], "targets": "segmentation"},
}
TASKS["photos"]["classes"] = ["a", "b", "c"]
MLP = {"name": "mlp", "hidden": [4]}
MODELS = {"masks": {"name": "unet", "width": 2, "depth": 1}, "scans": MLP}


def federation(folder, task, **run):
    """An agreement of two silos."""
    tree = {
        "name": "try",
        "server": "127.0.0.1:9",
        "run": {"method": "fedavg", "lr": 0.1, "model": MLP} | run,
        "task": task,
        "silo": [{"name": "north"}, {"name": "south"}],
    }
    path = folder / "federation.toml"
    path.write_text(tomli_w.dumps(tree))
    return Federation.load(path)


@pytest.mark.parametrize("name", TASKS)
def test_silos_read_what_is_made_up_for_the_task_agreed_on(name, tmp_path):
    settings = federation(tmp_path, TASKS[name], model=MODELS.get(name, MLP))
    samples = scenario(settings, {})
    (tmp_path / "federation.toml").write_text(federation_file(samples, "127.0.0.1:9"))
    rehearsed = Federation.load(tmp_path / "federation.toml")
    assert rehearsed.study.task == settings.study.task.model_copy(update={"preprocessing": None})
    for i, silo in enumerate(("silo-0", "silo-1")):
        section = data_section(samples, {silo: write_rows(samples, i, tmp_path / silo)})
        (tmp_path / "silo.toml").write_text(tomli_w.dumps({"name": silo, "data": section}))
        read = own_scenario(SiloFile.load(tmp_path / "silo.toml"), rehearsed.kit_terms, i)
        for split, role in (("train", 0), ("validation", 1), ("test", 2)):
            rows = getattr(samples.partition.clients[i], split)
            own_rows = getattr(read.partition.clients[0], split)
            assert len(own_rows) == SAMPLES * ROLES.count(role) / len(ROLES)
            np.testing.assert_array_equal(read.dataset.x[own_rows], samples.dataset.x[rows])
            np.testing.assert_array_equal(read.dataset.y[own_rows], samples.dataset.y[rows])


def test_a_network_sees_numbers_about_standard_normal_and_every_class():
    for name in ("photos", "scans", "flags"):
        task = Federation.from_tree(
            {
                "name": "try",
                "server": "127.0.0.1:9",
                "task": TASKS[name],
                "silo": [{"name": "north"}],
            }
        ).study.task
        dataset = synthetic(task, ["north"], 1)
        scaled = (dataset.x.astype(float) - task.shift) / task.scale
        assert abs(scaled.mean()) < 0.1
        assert abs(scaled.std() - 1) < 0.1
        assert not task.classes or set(dataset.y) == set(range(len(task.classes)))


@pytest.mark.parametrize(
    ("task", "model", "message"),
    [
        (TASKS["photos"], {"name": "lenet"}, "lenet"),
        (TASKS["numbers"], {"name": "unet"}, "unet"),
        (
            {"kind": "text", "input_shape": [9], "vocabulary": 7, "classes": ["a", "b"]},
            MLP,
            "texts",
        ),
    ],
)
def test_a_model_that_does_not_fit_the_task_fails_before_anything_starts(
    task, model, message, tmp_path
):
    with pytest.raises(ConfigError, match=message):
        scenario(federation(tmp_path, task, model=model), {})


def test_data_that_is_named_has_to_fit_the_task(tmp_path):
    digits = {
        "kind": "image",
        "input_shape": [8, 8, 1],
        "classes": [str(k) for k in range(10)],
        "scale": [16.0],
    }
    settings = {"data": {"name": "digits"}}
    prepared = scenario(federation(tmp_path, digits), settings)
    assert (prepared.dataset.scale, len(prepared.partition.clients)) == ((16.0,), 2)
    for changes, message in (
        ({"input_shape": [9, 8, 1]}, r"shape of a sample: \(8, 8, 1\)"),
        ({"classes": ["a", "b"]}, r"classes: .*'0'.* says .*'a'"),
    ):
        with pytest.raises(DataError, match=message):
            scenario(federation(tmp_path, digits | changes), settings)


@pytest.fixture
def rows(tmp_path):
    """A table of two silos with two numeric targets of mean 7."""
    table, rng = tmp_path / "rows.csv", np.random.default_rng(0)
    lines = [",".join(map(str, [*rng.normal(7, 1, 6), i % 2])) for i in range(40)]
    table.write_text("\n".join(["a,b,c,d,y,z,silo", *lines]))
    return {
        "name": "table",
        "path": str(table),
        "label_columns": ["y", "z"],
        "client_column": "silo",
        "targets": "regression",
    }


def study(folder, **keys):
    """A STUDY.toml of regression."""
    run = {"method": "fedavg", "lr": 0.1, "rounds": 2, "model": MLP}
    path = folder / "STUDY.toml"
    path.write_text(tomli_w.dumps({"name": "second", "run": run, "task": TASKS["numbers"]} | keys))
    return path


def test_a_study_is_simulated_with_its_own_terms(tmp_path, rows):
    below, prepare = of_study(study(tmp_path))
    prepared = prepare(resolve(below, {"data": rows}))
    # a federation's, where section run says nothing; a run's own is 1
    assert prepared.config.largest_share == 0.5
    assert prepared.config.rounds == 2
    assert prepared.names == ["0", "1"]
    assert prepared.dataset.target_scale == (3.0, 4.0)  # as agreed, not the table's deviation of 1
    assert prepared.dataset.target_shift == (0.0,)
    settings = {"data": {"name": "digits"}, **DEALT, "clients": 2, "workers": 1}
    digits = {
        "kind": "image",
        "input_shape": [8, 8, 1],
        "classes": [str(k) for k in range(10)],
        "scale": [16.0],
    }
    federated = federation(tmp_path, digits)
    below, prepare = of_study(tmp_path / "federation.toml")
    simulated, rehearsed = prepare(resolve(below, settings)), scenario(federated, settings)
    assert simulated.config.tree() == rehearsed.config.tree()
    for ours, theirs in zip(simulated.partition.clients, rehearsed.partition.clients, strict=True):
        np.testing.assert_array_equal(ours.train, theirs.train)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"kind": "survey", "run": {}, "task": None}, "kind = 'survey' trains no model"),
        ({"run": {"method": "fedavg", "lr": "auto", "model": MLP}}, "run.lr must be a number"),
        (
            {"run": {"method": "fedavg", "clients": 3, "model": MLP}},
            "run.clients is not a key of a federation",
        ),
    ],
)
def test_what_no_federation_trains_is_not_simulated(keys, message, tmp_path):
    path = study(tmp_path, **{k: v for k, v in keys.items() if v is not None})
    if "task" in keys:
        path.write_text('name = "second"\nkind = "survey"\n')
    with pytest.raises(ConfigError, match=f"STUDY.toml: .*{message}"):
        of_study(path)


def test_a_study_runs_on_the_command_line_and_asks_for_data(tmp_path, rows, capsys):
    path = study(tmp_path)
    with pytest.raises(SystemExit, match="2"):
        main(["deploy", "simulate", str(path)])
    assert f"{path} does not name data" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["run", "fedavg", str(path)])
    assert (
        "is a study of a federation; simulate it: pomona deploy simulate" in capsys.readouterr().err
    )
    data_settings = [f"data.{key}={value}" for key, value in rows.items() if key != "label_columns"]
    arguments = [*data_settings, 'data.label_columns=["y", "z"]', "--out", str(tmp_path / "out")]
    with pytest.raises(SystemExit, match="0"):
        main(["deploy", "simulate", str(path), *arguments])
    assert "FedAvg  global  received" in capsys.readouterr().out
