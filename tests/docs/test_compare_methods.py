"""The example that compares methods on a settings file: its cells by hand, and its table on the
committed settings.
"""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from pomona.config import resolve
from pomona.core.toml import read_file
from pomona.record.paired_gain import Gain

ROOT = Path(__file__).parents[2]
WITH_SETTING = "fedprox method.mu=0.5"  # a method with a setting of its own


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location(
        "compare_methods", ROOT / "examples" / "compare_methods.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_worst_is_the_mean_over_seeds_of_the_worst_client(example, monkeypatch):
    """Means 0.5, 0.6 and undefined: over clients 0.55; the worst is 0.3 and 0.1, 0.2."""
    runs = [[0.3, 0.8, float("nan")], [0.7, 0.4, 0.1]]
    monkeypatch.setattr(example, "values", lambda run: run)
    monkeypatch.setattr(
        "pomona.gains", lambda run, _: ([], Gain(0.1, -0.2, 0.3, 9) if run is runs[0] else None)
    )
    cells = ["0.500", "0.600", "nan", "0.550", "0.200"]
    assert example.row("separate", runs, runs) == f"| separate | {' | '.join(cells)} |  |"
    gain = "+0.100 (-0.200 to +0.300); undefined"
    assert example.row("apple", runs, runs) == f"| apple | {' | '.join(cells)} | {gain} |"


def test_the_settings_of_the_dialysis_centres_make_a_table(example, tmp_path, monkeypatch):
    """On made-up patients of two centres whose columns are those of the real file."""
    draw = np.random.Generator(np.random.Philox(1))
    rows = ["pid,event,time,fac_center,fac_disease,num_age,num_begin"]
    for k in range(60):
        disease = ("hypert", "renal", "other")[k % 3]
        rows.append(
            f"{k},{int(draw.random() < 0.6)},{draw.integers(1, 60)},{k % 2},{disease},{draw.integers(20, 80)},5"
        )
    (tmp_path / "dialysis.csv").write_text("\n".join(rows) + "\n")
    monkeypatch.chdir(tmp_path)
    lines = list(
        example.lines(
            read_file(ROOT / "examples/dialysis.toml"), {"rounds": 1}, 1, ("separate", WITH_SETTING)
        )
    )
    assert lines[0] == "| method | 0 | 1 | mean | worst | gain over training alone |"
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| separate", f"| {WITH_SETTING}"]
    assert {line.count(" | ") for line in lines} == {5}


def test_the_settings_of_the_retina_cameras_are_those_of_the_guide():
    config = resolve(read_file(ROOT / "examples/retina-vessels.toml"))
    assert [client.name for client in config.data.clients] == ["CHASE_DB1", "HRF", "STARE"]
    assert (config.model.name, config.optimizer.name, config.lr, config.batch_size) == (
        "unet",
        "adamw",
        0.01,
        2,
    )
