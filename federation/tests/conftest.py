"""Fixtures shared by the deployment tests."""

import pytest

from federation_in_process import APPLE, Federation, World, settings
from real_federation import federation as processes_of
from real_federation import launched
from test_faults import mistaken, tensors


@pytest.fixture
def world(tmp_path, monkeypatch):
    """A folder to deploy in."""
    return World(tmp_path, monkeypatch)


@pytest.fixture
def federation(world):
    """Three silos, none of which has worked yet."""
    return world.federation("fedavg", wait=0.5)


@pytest.fixture
def local(tmp_path, request):
    """Three started silos and a server as real processes, which all end with the test."""
    with processes_of(tmp_path / "local", **getattr(request, "param", {})) as processes:
        yield launched(processes)


@pytest.fixture(scope="session")
def ran(tmp_path_factory):
    """The kits of a federation after three rounds, with silo-1's uplink of the second refused.

    Read only.
    """
    with pytest.MonkeyPatch.context() as patch:
        mistaken(patch, tensors(lambda u: {**u, "core": u["core"] * 1e6}))
        federation = Federation(tmp_path_factory.mktemp("ran"), settings(method=APPLE), quorum=2)
        federation.run()
    return federation.kits
