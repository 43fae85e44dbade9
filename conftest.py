"""One computing thread in every test process, and real data only where somebody has it."""

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings

from chromium import chromium
from representatives import number, seed

torch.set_num_threads(1)
# How long an example takes is the machine's affair, and no property of the code.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")
# a shell's background job would hand on that it is ignored
signal.signal(signal.SIGINT, signal.default_int_handler)


TURNS = 30


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--draw``: of the tests marked long, one in ``TURNS``; the others are slow ones."""
    parser.addoption(
        "--draw",
        action="store_true",
        help=f"of the tests marked long run one in {TURNS}, drawn by the commit's tree",
    )


@pytest.hookimpl(tryfirst=True)  # before Hypothesis reads its option
def pytest_configure(config: pytest.Config) -> None:
    """Examples of Hypothesis, too, are those of the commit's tree."""
    if config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = number("examples of Hypothesis")


@pytest.hookimpl(tryfirst=True)  # before slow tests are deselected
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Draw the long tests of this commit: each change runs others, and a tree always the same."""
    if config.getoption("--draw"):
        for item in items:
            if item.get_closest_marker("long") and number(f"turn {item.nodeid}") % TURNS:
                item.add_marker(pytest.mark.slow)


def pytest_collection_finish() -> None:
    """Collected tests live to the end: no collection of garbage looks at them again."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """After a failure: what drew the cases of this run."""
    if terminalreporter.stats.get("failed") or terminalreporter.stats.get("error"):
        terminalreporter.write_line(
            f"cases and inputs drawn by POMONA_TEST_SEED={seed()}; set it to run the same"
        )


@pytest.fixture(autouse=True)
def _isolated(request: pytest.FixtureRequest):
    """Random inputs do not depend on the tests before; signal handlers end with their test."""
    torch.manual_seed(number(f"inputs of {request.node.nodeid}"))
    handlers = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)}
    yield
    for one, handler in handlers.items():
        signal.signal(one, handler)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real data sets; the test skips where there is none."""
    folder = os.environ.get("POMONA_DATA")
    if not folder:
        pytest.skip("needs real data: set POMONA_DATA to a folder with mnist/ and others")
    return Path(folder)


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Chromium; the test skips where there is none."""
    with chromium(tmp_path_factory.mktemp("profile")) as driver:
        yield driver
