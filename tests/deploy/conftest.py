"""What the tests of a deployment share."""

import pytest
from federation_in_process import World


@pytest.fixture
def world(tmp_path, monkeypatch):
    """A folder to deploy in."""
    return World(tmp_path, monkeypatch)
