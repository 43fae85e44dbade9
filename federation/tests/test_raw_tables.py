"""Raw tables at silos: the agreement defines how they become numbers, equal to the simulator's."""

import tomllib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tomli_w

import pomona
from federation_in_process import APPLE, LocalGrid, deployed, equal, loaded, run_study
from pomona.config import resolve
from pomona.core.errors import ConfigError, DataError
from pomona.data import data_settings, read
from pomona.data.tables import tabular
from pomona.personal import PersonalModel
from pomona.scenario import Scenario
from pomona_federation.provision.provision import provision
from pomona_federation.rehearsal.inputs import federation_file
from pomona_federation.silo.kept_data import agreed_data, conformed
from pomona_federation.task_settings import TaskSettings, of_files

SITES = ("north", "east", "south")
ROWS = {"train": 48, "test": 12}  # silos draw their validation rows
HEAD = "age,ward,visit,dose,outcome"
LABELS = {"label_column": "outcome", "classes": ["well", "ill"]}
TERMS = {
    "missing": "median",
    "categories": ["ward"],
    "dates": ["visit"],
    "missing_values": {"dose": [0]},
}


def site(folder, number):
    """A site's files: gaps in other columns than the others', its own ward, and its own column
    order.
    """
    draw, files = np.random.Generator(np.random.Philox(number)), {}
    order = [(k + number) % 4 for k in range(4)]
    for split, count in ROWS.items():
        lines = []
        for _ in range(count):
            age = draw.integers(20, 90)
            cells = [
                f"{age}",
                f"{'ABC'[draw.integers(3)]}" if draw.random() < 0.7 else f"only {number}",
                f"2024-{draw.integers(1, 13):02d}-03",
                f"{draw.integers(3)}",
            ]
            if draw.random() < 0.3:
                cells[number] = ""
            lines.append(
                ",".join(
                    [*(cells[k] for k in order), "ill" if age + draw.normal(0, 9) > 55 else "well"]
                )
            )
        files[split] = folder / f"{split}.csv"
        head = HEAD.split(",")
        files[split].write_text(
            "\n".join([",".join([*(head[k] for k in order), "outcome"]), *lines]) + "\n"
        )
    return {key: str(path) for key, path in files.items()}


def sorted_columns(files, folder):
    """The same rows with all columns in one order, as one simulation needs them."""
    folder.mkdir()
    paths = {}
    for split, path in files.items():
        rows = [line.split(",") for line in Path(path).read_text().splitlines()]
        order = [rows[0].index(name) for name in HEAD.split(",")]
        paths[split] = str(folder / f"{split}.csv")
        (folder / f"{split}.csv").write_text(
            "\n".join(",".join(row[k] for k in order) for row in rows) + "\n"
        )
    return paths


@pytest.mark.long
def test_raw_tables_in_silos_give_the_models_of_the_simulation(tmp_path):
    files = {}
    for k, name in enumerate(SITES):
        (tmp_path / name).mkdir()
        files[name] = site(tmp_path / name, k)
    clients = [{"name": n, **sorted_columns(files[n], tmp_path / f"{n} sorted")} for n in SITES]
    run = {
        "method": APPLE,
        "model": {"name": "mlp", "hidden": [8]},
        "rounds": 3,
        "lr": 0.1,
        "batch_size": 16,
        "engine": "torch",
    }
    config = resolve(
        {**run, "workers": 1, "largest_share": 0.5, "partition": {"name": "natural"}},
        {"data": {"clients": clients, **LABELS, **TERMS}},
    )
    scenario = Scenario.prepare(config)
    (preprocessing,) = scenario.dataset.preprocessing
    tree = tomllib.loads(
        federation_file(scenario, "127.0.0.1:28443", deadline=60.0, wait=5.0, quorum=1)
    )
    tree["task"] = of_files(scenario.dataset)
    (tmp_path / "federation.toml").write_text(tomli_w.dumps(tree))
    kits = tmp_path / "kits"
    provision(tmp_path / "federation.toml", kits)
    names = [silo["name"] for silo in tree["silo"]]
    for name, paths in zip(names, files.values(), strict=True):
        path = kits / name / "silo.toml"
        data = {"clients": [{"name": name, **paths}], **LABELS}
        path.write_text(tomli_w.dumps(tomllib.loads(path.read_text()) | {"data": data}))
    grid = LocalGrid({10 + i: kits / n for i, n in enumerate(names)})
    run_study(grid, kits / "server")

    pomona.run(config, tmp_path / "run")
    theirs = {
        n: tmp_path / "run" / "models" / f"client-{i:02d}.safetensors" for i, n in enumerate(names)
    }
    assert equal(deployed(SimpleNamespace(names=names, kits=kits)), loaded(theirs))
    model = PersonalModel.load(kits / names[0] / "state" / "models" / "personal.safetensors")
    assert model.about.preprocessing == preprocessing
    assert model.about.columns == preprocessing.features


def agreement(tmp_path, text="age,ward,outcome\n1,A,well\n,B,ill\n3,A,ill\n"):
    """An agreement derived from a table."""
    path = tmp_path / "first.csv"
    path.write_text(text)
    data = read(
        data_settings(name="table", path=path, **LABELS, missing="median", categories=("ward",))
    )
    return TaskSettings(
        kind="table",
        input_shape=(data.x.shape[1],),
        classes=("well", "ill"),
        preprocessing=data.preprocessing[0],
    )


def silo(tmp_path, text, task):
    """A silo's data under an agreement."""
    path = tmp_path / "own.csv"
    path.write_text(text)
    return conformed(
        read(
            tabular.settings_as_agreed(
                data_settings(name="table", path=path, **LABELS), task.preprocessing
            )
        ),
        task,
    )


def test_a_silos_gaps_and_wards_are_read_by_the_agreement(tmp_path):
    task = agreement(tmp_path)
    assert task.preprocessing.features == ("age", "age missing", "ward=A", "ward=B")
    dataset = silo(tmp_path, "ward,outcome,age\nC,ill,\n?,well,7\n", task)
    assert dataset.x.tolist() == [[2, 1, 0, 0], [7, 0, 1, 0]]
    assert "column ward: 1 of 2 rows have categories" in dataset.notes[-1]


def test_a_silos_table_without_a_header_is_read_as_the_simulations_is(tmp_path):
    path = tmp_path / "own.csv"
    path.write_text("30,2024-03-01,A,well\n,2024-03-02,B,ill\n50,2024-03-05,B,ill\n")
    by_number = {"name": "table", "path": path, "label_column": 3, "classes": ["well", "ill"]}
    options = {"categories": (2,), "dates": (1,), "missing": "median"}
    data = read(data_settings(**by_number, **options))
    task = of_files(data)
    silo = agreed_data(data_settings(**by_number), TaskSettings.model_validate(task))
    assert np.array_equal(silo.x, data.x)
    assert silo.y.tolist() == data.y.tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("age,outcome\n1,ill\n2,well\n", "data.categories: .*own.csv has no column 'ward'"),
        (
            "age,ward,sex,outcome\n1,A,1,ill\n2,B,0,well\n",
            "has the columns age, ward, sex, but the agreement says age, ward",
        ),
        (
            "age,ward,outcome\nold,A,ill\n2,B,well\n",
            "column age: 1 of 2 are not finite numbers, first 'old'",
        ),
    ],
)
def test_a_table_that_does_not_fit_the_agreement(tmp_path, text, message):
    with pytest.raises(Exception, match=message) as fault:
        silo(tmp_path, text, agreement(tmp_path))
    assert "\n" not in str(fault.value)


def test_a_silo_without_rows_of_some_class_takes_the_agreed_ones(tmp_path):
    path = tmp_path / "own.csv"
    path.write_text("age,ward,outcome\n3,A,ill\n7,B,ill\n")
    settings = data_settings(name="table", path=path, label_column="outcome")
    dataset = agreed_data(settings, agreement(tmp_path))
    assert (dataset.classes, dataset.y.tolist()) == (("well", "ill"), [1, 1])
    path.write_text("age,ward,outcome\n3,A,ill\n7,B,dead\n")
    with pytest.raises(DataError, match="an unknown class"):
        agreed_data(settings, agreement(tmp_path))


def test_gaps_are_refused_where_none_were_agreed_on(tmp_path):
    task = agreement(tmp_path)
    first, second = task.preprocessing.columns
    strict = task.preprocessing.model_copy(
        update={"columns": (first.model_copy(update={"fill": None, "flagged": False}), second)}
    )
    task = task.model_copy(update={"preprocessing": strict, "input_shape": (3,)})
    with pytest.raises(DataError, match="has gaps in age, where the agreement has none"):
        silo(tmp_path, "age,ward,outcome\n,A,ill\n2,B,well\n", task)


def test_preprocessing_and_shape_of_an_agreement_fit(tmp_path):
    task = agreement(tmp_path)
    for changes, message in (
        ({"input_shape": (5,)}, r"preprocessing makes tables of input_shape = \[4\]"),
        (
            {"kind": "image", "input_shape": (2, 2, 4)},
            "preprocessing is for kind = 'table', not 'image'",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            TaskSettings.model_validate({**task.model_dump(exclude={"dtype"}), **changes})


def test_a_preprocessing_for_each_client_is_no_agreement(tmp_path):
    clients = []
    for k, name in enumerate(SITES):
        (tmp_path / name).mkdir()
        clients.append(
            {"name": name, **sorted_columns(site(tmp_path / name, k), tmp_path / f"{name} sorted")}
        )
    data = {"clients": clients, "fit": "client", **LABELS, **TERMS}
    with pytest.raises(
        ConfigError, match=r"data\.fit = client learns a preprocessing for each client"
    ):
        of_files(
            Scenario.prepare(resolve({"partition": {"name": "natural"}, "data": data})).dataset
        )
