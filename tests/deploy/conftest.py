"""What the tests of a deployment share."""

import pytest
from local import Federation, settings
from safetensors.torch import load_file

import pomona
from pomona.transport.processes import Inline

APPLE = {"name": "apple", "budget": 1}


class World:
    """A federation and its simulation in one test's folder."""

    def __init__(self, folder, monkeypatch):
        self.folder, self.patch = folder, monkeypatch

    def federation(self, method=APPLE, run=(), **options):
        """A federation of three silos, before its first round."""
        return Federation(self.folder, settings(method=method, **dict(run)), **options)

    def simulated(self, federation, absent=(), membership=None):
        """The simulation's personal models, with clients absent in rounds as in {(round, client), ...}."""
        visit = Inline.visit

        def visits(transport, asked, down):
            replies = visit(transport, asked, down)
            return [r for r in replies if not asked.trains or (asked.round.number, r.client) not in absent]

        config = federation.simulation
        if membership:
            config = config.model_copy(update={"membership": membership})
        with self.patch.context() as patch:
            patch.setattr(Inline, "visit", visits)
            out = self.folder / "simulation"
            pomona.run(config, out)
        return loaded({n: out / "models" / f"client-{i:02d}.safetensors" for i, n in enumerate(federation.names)})


@pytest.fixture
def world(tmp_path, monkeypatch):
    """A folder to deploy in."""
    return World(tmp_path, monkeypatch)


def deployed(federation):
    """The silos' personal models."""
    return loaded({n: federation.kits / n / "state" / "models" / "personal.safetensors" for n in federation.names})


def loaded(paths):
    """Models by name; none of whoever never took part."""
    return {n: load_file(path) for n, path in paths.items() if path.exists()}


def same(one, other):
    """Whether models are equal bit by bit."""
    return one.keys() == other.keys() and all(
        one[n].keys() == other[n].keys() and all(one[n][k].equal(other[n][k]) for k in one[n]) for n in one
    )
