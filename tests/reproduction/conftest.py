"""The papers' suites lie in the repository, not in the package."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "reproduction"


def pytest_collection_modifyitems(items):
    if not ROOT.is_dir():
        for item in items:
            if Path(__file__).parent in item.path.parents:
                item.add_marker(pytest.mark.skip(reason="needs the folder reproduction/ of the repository"))
