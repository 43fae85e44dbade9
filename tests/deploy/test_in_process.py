"""The unchanged Flower apps over a grid in this process, against the simulator: the same models, bit by bit."""

import pytest
from local import Federation, settings
from safetensors.torch import load_file

import pomona
from pomona.federation.status import read_status


def models(federation, folder):
    """The personal models of the silos, and those of the simulation of the same files."""
    deployed = {
        n: load_file(federation.kits / n / "state" / "models" / "personal.safetensors") for n in federation.names
    }
    pomona.run(federation.simulation, folder / "simulation")
    simulated = {
        n: load_file(folder / "simulation" / "models" / f"client-{i:02d}.safetensors")
        for i, n in enumerate(federation.names)
    }
    return deployed, simulated


@pytest.mark.parametrize("method", ["fedavg", {"name": "apple", "budget": 1}])
def test_deployed_models_are_those_of_the_simulation(method, tmp_path):
    federation = Federation(tmp_path, settings(method=method))
    federation.run()
    deployed, simulated = models(federation, tmp_path)
    for name, own in deployed.items():
        assert own.keys() == simulated[name].keys()
        assert all(own[k].equal(simulated[name][k]) for k in own)
    assert read_status(federation.server / "run").state == "finished"
