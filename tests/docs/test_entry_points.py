"""What an installed package adds without a change here, by the entry points that api.md lists."""

import re
import sys
from pathlib import Path

import pytest
import torch

import pomona
from distributions import installed
from pomona import methods
from pomona.cli import ENTRY_POINTS as COMMANDS
from pomona.cli import report
from pomona.core.errors import ConfigError
from pomona.data import formats
from pomona.data.formats import image_formats
from pomona.lifecycle import versions
from pomona.objective import engine
from problems import Notes, tiny

API = (Path(__file__).parents[2] / "docs/api.md").read_text()
GROUPS = [
    methods.ENTRY_POINTS,
    formats.ENTRY_POINTS,
    image_formats.ENTRY_POINTS,
    engine.ENTRY_POINTS,
    COMMANDS,
]
OUTSIDE = """
from typing import Literal

import pyarrow as pa

from pomona.data.formats import Format
from pomona.data.formats.columns import Columns
from pomona.data.formats.image_formats import ImageFormat
from pomona.methods.one_model.fedavg import FedAvg
from pomona.objective.pytorch import TorchObjective


class Mine(FedAvg):
    name: Literal["mine"] = "mine"


class Misnamed(FedAvg):
    name: Literal["another"] = "another"


class Slow:
    interface, package, release, emulates_bf16 = 2, "outside", "9 abacus", True

    def objective(self, task):
        return TorchObjective(task.module, task.space, task.data, task.criterion, task.precision)


def read(path, settings):
    return Columns(("words",), (pa.chunked_array([path.read_text().split()]),))


TABLE, IMAGE = Format("words", "outside:read"), ImageFormat("outside:read")
"""


@pytest.fixture(autouse=True)
def outside(tmp_path, monkeypatch):
    points = {
        "pomona.methods": {"mine": "outside:Mine", "other": "outside:Misnamed"},
        "pomona.readers": {".words": "outside:TABLE"},
        "pomona.image_readers": {".pic": "outside:IMAGE"},
        "pomona.engines": {"abacus": "outside:Slow"},
    }
    installed(monkeypatch, tmp_path / "site", points, outside=OUTSIDE)
    for cached in (formats.formats, image_formats.image_formats):
        cached.cache_clear()
    yield
    for cached in (formats.formats, image_formats.image_formats):
        cached.cache_clear()
    sys.modules.pop("outside", None)


def test_the_page_lists_every_group():
    assert re.findall(r"^\| [a-z ]+ \| `(pomona\.\w+)` \|", API, re.MULTILINE) == GROUPS


def test_a_method_has_a_short_name_and_its_address_is_another_word_for_it(tmp_path):
    by_name, by_address, fedavg = (
        pomona.run(tiny(name), tmp_path / f"run{k}")
        for k, name in enumerate(("mine", "outside:Mine", "fedavg"))
    )
    assert by_name.config == by_address.config
    assert by_name.config["method"]["name"] == "mine"
    for models in zip(*(r.models.values() for r in (by_name, by_address, fedavg)), strict=True):
        assert all(torch.equal(m[k], models[0][k]) for m in models for k in m)
    assert tiny("mine+median").method.name == "mine+median"
    assert methods.code_of("mine+median") == "outside:Mine"
    with pytest.raises(ConfigError, match="did you mean mine"):
        pomona.Config(method="mind")


def test_a_method_under_another_name_is_refused_with_the_remedy():
    with pytest.raises(ConfigError, match=r"other.*name: Literal\['other'\]"):
        pomona.Config(method="other")
    with pytest.raises(ConfigError, match=r"short name 'another'.*entry point.*pomona\.methods"):
        pomona.Config(method="outside:Misnamed")


def test_methods_of_packages_are_listed(capsys, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(methods, "outside", lambda: {"mine": "outside:Mine"})
        report.methods(json=True)
    assert '"mine"' in capsys.readouterr().out


def test_an_engine_computes_is_recorded_and_says_whether_bf16_pays():
    notes = Notes()
    by_torch, by_abacus = (
        pomona.run(tiny("fedavg", engine=name, precision="bf16"), callback=notes)
        for name in ("torch", "abacus")
    )
    assert [r.loss for r in by_abacus.rounds] == [r.loss for r in by_torch.rounds]
    assert by_abacus.config["engine"] == "abacus"
    assert versions()["outside"] == "9 abacus"
    assert any("abacus engine emulates bf16" in line for line in notes.said)


def test_an_engine_that_is_not_installed_is_refused():
    with pytest.raises(ConfigError, match=r"engine = 'abaca' is not possible: .*not installed"):
        pomona.run(tiny("fedavg", engine="abaca"))


def test_formats_have_suffixes(tmp_path):
    (tmp_path / "a.words").write_text("one two")
    (columns,) = formats.read([tmp_path / "a.words"], None)
    assert columns.arrays[0].to_pylist() == ["one", "two"]
    assert image_formats.by_suffix(Path("a.pic")).opener == "outside:read"
