"""Heart disease: the settings and the example, on synthetic files of the same form and any real
ones present.
"""

import importlib.util
import os
from pathlib import Path

import numpy as np
import pytest

import pomona
from pomona.config import resolve
from pomona.core.errors import ConfigError
from pomona.core.toml import read_file
from pomona.data import read
from pomona.personal import PersonalModel
from pomona.personal.inputs import read as read_inputs
from pomona.record.paired_gain import Gain
from pomona.scenario import Scenario

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
SETTINGS = ROOT / "examples" / "heart-disease.toml"
EXAMPLE = ROOT / "examples" / "heart_disease.py"
FILES = ("cleveland", "hungarian", "switzerland", "va")


def example():
    """Import the example as a module."""
    spec = importlib.util.spec_from_file_location("heart_disease", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_synthetic(folder):
    """Files like the hospitals': 14 columns without names, ? and 0 for gaps, integers written in
    two ways.
    """
    folder.mkdir()
    for number, name in enumerate(FILES):
        draw = np.random.Generator(np.random.Philox(number))
        lines = []
        for k in range(40):
            age = draw.integers(30, 80)
            cells = [
                f"{age}.0" if number == 0 else f"{age}",
                k % 2,
                draw.integers(1, 5),
                "?" if k % 7 == 0 else 130,
            ]
            cells += [
                0 if number == 2 else draw.integers(150, 300),
                "?",
                0,
                150,
                0,
                1.5,
                "?" if k % 2 else 2,
                "?",
            ]
            cells += [(3, "7.0", "?")[draw.integers(3)], int(age > 55) * draw.integers(1, 5)]
            lines.append(",".join(map(str, cells)))
        (folder / f"processed.{name}.data").write_text("\n".join(lines) + "\n")


def test_the_example_prints_both_tables(tmp_path, monkeypatch):
    write_synthetic(tmp_path / "heart_disease")
    monkeypatch.chdir(tmp_path)
    lines = list(example().tables(seeds=1, rounds=1))
    rows = [
        "| fedavg",
        "| fedavg-ft",
        "| ditto",
        "| fedala",
        "| apple",
        "| apple method.core_step=local",
    ]
    first = ["| test AUROC", "| ---", "| separate", *rows]
    second = ["| gain over training alone", "| ---", *rows]
    assert [line.split(" | ")[0] for line in lines] == [*first, "", *second]
    assert {line.count(" | ") for line in lines if line} == {5}


def test_a_cell_of_gains():
    gains = [Gain(0.1, 0.05, 0.2, 9), None, Gain(-0.3, -0.4, -0.1, 9), Gain(0.2, -0.1, 0.3, 9)]
    assert example().gain_text(gains) == "+0.100 [+0.050, +0.200]; +0.000, 1 above, 1 below"
    assert example().gain_text([None]) == "undefined"
    assert (
        example().gain_text([None, Gain(-0.3, -0.4, -0.1, 9)])
        == "undefined; -0.300, 0 above, 1 below"
    )
    assert example().spread(np.array([0.5, 0.7])) == "0.600 +- 0.141"


@pytest.mark.parametrize("fit", ["pooled", "client"])
def test_raw_files_are_answered_as_they_were_trained_on(tmp_path, monkeypatch, fit):
    write_synthetic(tmp_path / "heart_disease")
    monkeypatch.chdir(tmp_path)
    answered(tmp_path, fit)


def test_clients_of_a_partition_have_no_moments_of_their_own(tmp_path, monkeypatch):
    write_synthetic(tmp_path / "heart_disease")
    monkeypatch.chdir(tmp_path)
    changes = {"data": {"fit": "client"}, "partition": {"name": "iid"}, "clients": 4}
    with pytest.raises(ConfigError, match=r"data\.fit=client needs .*partition\.name = natural"):
        Scenario.prepare(resolve(read_file(SETTINGS), changes))


def answered(folder, fit="pooled"):
    """Train a round, and compare the features of each hospital's file for its model with those of
    the training.
    """
    config = resolve(read_file(SETTINGS), {"method": "apple", "rounds": 1, "data": {"fit": fit}})
    pomona.run(config, folder / "run")
    data = Scenario.prepare(config).dataset
    for k, name in enumerate(FILES):
        model = PersonalModel.load(folder / "run" / "models" / f"client-{k:02d}.safetensors")
        samples = read_inputs(Path("heart_disease", f"processed.{name}.data"), model.about)
        client_rows = data.x[data.owners.client == k]
        assert samples.x.tobytes() == client_rows.tobytes()
        answers = model.predict(samples.x)
        assert len(answers) == len(client_rows)
        assert set(answers[0]["probabilities"]) == {"healthy", "diseased"}


@pytest.mark.skipif("POMONA_DATA" not in os.environ, reason="POMONA_DATA names no data folder")
def test_the_real_files(tmp_path, monkeypatch):
    """Counts are those of the data set's own description (heart-disease.names), and of its note on
    zeros.
    """
    files = Path(os.environ["POMONA_DATA"], "heart_disease")
    if not files.exists():
        pytest.skip("heart_disease is not there")
    monkeypatch.chdir(tmp_path)
    Path("heart_disease").symlink_to(files)
    data = read(resolve(read_file(SETTINGS)).data)
    client = data.owners.client
    assert np.bincount(client).tolist() == [303, 294, 123, 200]
    assert [int(data.y[client == k].sum()) for k in range(4)] == [139, 106, 115, 149]
    gaps = {
        c.name: [int(np.isnan(data.raw.x[client == k, i]).sum()) for k in range(4)]
        for i, c in enumerate(data.raw.columns)
    }
    assert gaps["ca"] == [4, 291, 118, 198]
    assert gaps["thal"] == [2, 266, 52, 166]
    assert gaps["slope"] == [0, 190, 17, 102]
    assert (gaps["chol"][1], gaps["chol"][2], gaps["fbs"][2]) == (23, 123, 75)
    # of cp, as met: Cleveland writes 1.0, the others 1
    assert data.raw.values[2] == ("1", "4", "3", "2")
    answered(tmp_path)
