"""The example of three retina cameras, on the real photographs."""

import runpy
from pathlib import Path

import numpy as np
import pytest

from pomona.config import resolve
from pomona.simulation import run

EXAMPLE = Path(__file__).parents[2] / "examples" / "retina_vessels.py"
CAMERAS = {"chase_db1": (22, 6), "hrf": (34, 11), "stare": (15, 5)}
SPLITS = ("train", "test")


@pytest.mark.slow
def test_three_cameras_are_three_clients(real_data, tmp_path):
    source = real_data / "retina_vessels" / "retina256.npz"
    if not source.exists():
        pytest.skip("needs retina_vessels/retina256.npz in POMONA_DATA")
    runpy.run_path(str(EXAMPLE))["main"](str(source), str(tmp_path))
    clients = [
        {"name": name} | {split: str(tmp_path / f"{name}-{split}.npz") for split in SPLITS}
        for name in CAMERAS
    ]
    for name, sizes in CAMERAS.items():
        for split, size in zip(SPLITS, sizes, strict=True):
            with np.load(tmp_path / f"{name}-{split}.npz") as arrays:
                assert arrays["x"].shape == (size, 64, 64, 3)
                assert 0.1 < arrays["y"].mean() < 0.3
    data = {"clients": clients, "targets": "segmentation", "classes": ["background", "vessel"]}
    settings = {
        "data": data,
        "partition": {"name": "natural"},
        "model": {"name": "unet", "width": 4, "depth": 2},
    }
    result = run(
        resolve(settings, {"method": "fedrep", "rounds": 1, "batch_size": 4, "workers": 1})
    )
    assert result.about["clients"] == list(CAMERAS)
    judged = result.curve(*result.about["headline"])[-1]
    assert judged.samples == tuple(test for _, test in CAMERAS.values())
    assert all(0 <= value <= 1 for value in judged.value)
