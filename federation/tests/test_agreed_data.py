"""Agreed data properties: dtype, units and network inputs, from one site's files or custom code."""

import tomllib

import numpy as np
import pytest

from command_line import command
from pomona.config import resolve
from pomona.core.errors import ConfigError, DataError
from pomona.core.rng import stream
from pomona.data import Dataset
from pomona.scenario import Scenario
from pomona_federation.agreement import Federation
from pomona_federation.rehearsal.inputs import federation_file
from pomona_federation.silo.kept_data import conformed
from pomona_federation.task_settings import TaskSettings


def test_numbers_that_a_network_sees_are_those_of_the_agreement():
    task = TaskSettings(
        kind="image", input_shape=(6, 6, 2), dtype="uint16", classes=("a", "b"), shift=(7.0,)
    )
    x = stream(4, "scans").integers(0, 2000, (8, 6, 6, 2)).astype(np.uint16)
    dataset = conformed(
        Dataset("scans", "image", x, np.arange(8) % 2, ("a", "b"), 8, (1.0,), (2.0,)), task
    )
    assert (dataset.shift, dataset.scale, dataset.learn) == ((7.0,), (1.0,), None)


def test_silos_agree_on_a_dtype():
    """A silo whose files have another dtype brings its numbers into the one agreed on, or is told
    that it cannot.
    """
    task = TaskSettings(
        kind="image", input_shape=(4, 6, 5, 1), dtype="float32", classes=("dark", "bright")
    )
    x = stream(3, "volumes").integers(0, 2**15, (48, 4, 6, 5, 1)).astype(np.uint16)
    x[1::2] += 2**15  # from row 1 on numbers that int16 has not
    dataset = Dataset(
        "volumes", "image", x, np.arange(48) % 2, ("dark", "bright"), 48, (32768.0,), (16384.0,)
    )
    result = conformed(dataset, task)
    np.testing.assert_array_equal(result.x, x.astype(np.float32))
    assert (result.x.dtype, result.shift, result.scale) == (np.float32, (0.0,), (1.0,))
    with pytest.raises(
        DataError, match="the data: row 1 is uint16 and does not fit into int16; store int16"
    ):
        conformed(dataset, task.model_copy(update={"dtype": "int16"}))
    with pytest.raises(
        DataError, match=r"shape of a sample: \(4, 6, 5, 1\) here, the agreement says \(6, 5, 1\)"
    ):
        conformed(dataset, task.model_copy(update={"input_shape": (6, 5, 1)}))


def test_silos_agree_on_the_units_of_targets():
    x = stream(0, "days").normal(size=(600, 3)).astype(np.float32)
    y = x @ np.array([[1.0, 200.0], [0.5, -90.0], [0.0, 10.0]]) + [4.0, 1000.0]
    data = Dataset("days", "table", x, y.astype(np.float32), (), 600)
    settings = {"method": "fedavg", "rounds": 1, "lr": 0.1, "model": "logistic", "clients": 3}
    scenario = Scenario.prepare(resolve(settings), lambda _: data)
    task = TaskSettings.model_validate(
        tomllib.loads(federation_file(scenario, "127.0.0.1:9"))["task"]
    )
    assert task.target_scale == scenario.dataset.target_scale
    assert conformed(data, task).target_shift == scenario.dataset.target_shift
    with pytest.raises(ValueError, match="target_scale must be positive"):
        TaskSettings.model_validate({**task.model_dump(), "target_scale": (0.0, 1.0)})


def test_section_task_is_written_for_silos_with_files_like_these(tmp_path, capsys):
    """Every age that is known is 3, so that the median of any rows is."""
    rows = [f"{3 if k % 4 else ''},{'AB'[k % 2]},{'ill' if k % 3 else 'well'}" for k in range(40)]
    (tmp_path / "t.csv").write_text("\n".join(["age,ward,outcome", *rows]) + "\n")
    args = [
        "data=table",
        f"data.path={tmp_path / 't.csv'}",
        "data.label_column=outcome",
        'data.categories=["ward"]',
    ]
    args += ["clients=2", "data.missing=median", "partition=iid", "--out", tmp_path / "task.toml"]
    assert command("deploy", "task", *args) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "task.toml")
    task = TaskSettings.model_validate(tomllib.loads((tmp_path / "task.toml").read_text())["task"])
    assert task.preprocessing.features == ("age", "age missing", "ward=A", "ward=B")
    assert (task.preprocessing.columns[0].fill, task.classes, task.input_shape) == (
        3,
        ("ill", "well"),
        (4,),
    )
    assert len(task.shift) == len(task.scale) == 4


METHOD = """
from pomona.methods import base
from pomona.methods.one_model.fedavg import FedAvg


class Own(base.MethodSettings):
    def method(self):
        return FedAvg().method()
"""


def test_a_federation_may_name_a_method_of_its_own(tmp_path, monkeypatch):
    (tmp_path / "own_method_elsewhere.py").write_text(METHOD)
    monkeypatch.syspath_prepend(tmp_path)
    silos = [{"name": "north"}, {"name": "south"}]
    task = {"kind": "table", "input_shape": [3], "classes": ["a", "b"]}
    terms = {
        "name": "hospitals",
        "server": "localhost:9000",
        "insecure": True,
        "silo": silos,
        "task": task,
    }
    run = {"method": "own_method_elsewhere:Own", "rounds": 2, "lr": 0.1}
    assert (
        Federation.from_tree({**terms, "run": run}).kit_terms.config.method.name
        == "own_method_elsewhere:Own"
    )
    with pytest.raises(ConfigError, match="section run: cannot load 'nowhere:Own'"):
        Federation.from_tree(
            {**terms, "run": {**run, "method": "nowhere:Own"}}
        ).kit_terms.require_computable()
