import pytest
from runs import Spawner


@pytest.fixture(scope="module")
def spawner():
    with Spawner() as processes:
        yield processes
