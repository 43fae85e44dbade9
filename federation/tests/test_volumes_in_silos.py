"""16-bit volumes in a federation: the silos' models equal those of the simulation, bit by bit."""

import numpy as np
import pytest

import pomona
from federation_in_process import Federation, deployed, equal, loaded
from pomona.config import resolve
from pomona.core.rng import stream

pytestmark = pytest.mark.long


def test_a_federation_learns_volumes_as_its_simulation_does(tmp_path):
    x = stream(5, "volumes").integers(0, 4000, (60, 3, 4, 5, 2)).astype(np.uint16)
    x[1::2] += 900
    np.savez(tmp_path / "volumes.npz", x=x, y=np.arange(60) % 2)
    tree = {
        "data": {"name": "arrays", "path": str(tmp_path / "volumes.npz")},
        "model": {"name": "mlp", "hidden": [4]},
    }
    tree |= {
        "method": {"name": "apple", "budget": 1},
        "clients": 3,
        "rounds": 2,
        "lr": 0.05,
        "batch_size": 8,
    }
    fixed = {"workers": 1, "engine": "torch", "largest_share": 0.5}
    federation = Federation(tmp_path, resolve({**tree, **fixed}))
    terms = federation.toml.read_text()
    assert 'dtype = "uint16"' in terms
    federation.run()
    base = tmp_path / "simulation"
    pomona.run(federation.simulation, base)
    expected = loaded(
        {n: base / "models" / f"client-{i:02d}.safetensors" for i, n in enumerate(federation.names)}
    )
    assert equal(deployed(federation), expected)
