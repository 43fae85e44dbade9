"""The examples with pretrained weights, at a small size: digits instead of CIFAR, two clients, one
round.
"""

import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from pomona.models import ModelSettings, build

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL = ["data.name=digits", "data.train_limit=60", "data.test_limit=30", "workers=1"]
HEAD = 10 * (512 + 1)
# two 3x3 convolutions of 512 channels: A (4, 512, 3, 3) and B (512, 4)
LORA = 2 * 4 * (9 * 512 + 512)


@pytest.fixture
def example(monkeypatch):
    """Import the module, with its folder on the path as when it is run."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    yield __import__("pretrained_resnet")
    for name in ("pretrained_resnet", "trained_parts"):
        sys.modules.pop(name, None)


def test_rounds_that_evaluate_count_only_where_all_do(example):
    watch = sys.modules["trained_parts"].Watch()
    watch.rounds = [(50.0, 60.0, True), (1.0, 10.0, False), (3.0, 20.0, False), (70.0, 80.0, True)]
    assert watch.medians() == ["2.00", "15.00"]
    watch.rounds = [(50.0, 60.0, True), (70.0, 90.0, True)]
    assert watch.medians() == ["60.00", "75.00"]


def cells(text):
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")][2:]
    return {(row[0], row[1]): row[2:] for row in rows}


@pytest.mark.slow
def test_what_is_pretrained_is_what_federations_start_from(example, monkeypatch, tmp_path, capsys):
    weights = tmp_path / "resnet18.safetensors"
    monkeypatch.setattr(sys, "argv", ["x", "pretrain", str(weights), "--epochs", "1", *SMALL])
    example.main()
    assert "test accuracy" in capsys.readouterr().out
    tensors = load_file(weights)
    model = build(ModelSettings(name="resnet18"), (1, 8, 8), 10).state_dict()
    assert {k: t.shape for k, t in tensors.items()} == {k: t.shape for k, t in model.items()}
    assert not torch.equal(tensors["stem.bn.running_var"], model["stem.bn.running_var"])
    argv = ["federate", str(weights), "--rounds", "1", *SMALL, "clients=2", "partition=iid"]
    monkeypatch.setattr(sys, "argv", ["x", *argv])
    monkeypatch.setattr(example, "METHODS", ("fedrep", "apple"))
    example.main()
    table = cells(capsys.readouterr().out)
    parameters = [t.numel() for k, t in model.items() if k.rpartition(".")[2] in {"weight", "bias"}]
    rows = {"head": HEAD, "LoRA": HEAD + LORA, "all": sum(parameters)}
    assert table.keys() == {(trained, method) for trained in rows for method in example.METHODS}
    for (trained, method), (row, traffic, *_) in table.items():
        numbers = int(row.replace(",", ""))
        assert numbers == rows[trained]
        down_mb, up_mb = map(float, traffic.split(","))
        # its last layer stays with the client
        numbers_sent = numbers - HEAD if method == "fedrep" else numbers
        assert up_mb == pytest.approx(2 * 4 * numbers_sent / 1e6, rel=5e-3, abs=2e-5)
        # APPLE: of two clients, one other's core each
        assert down_mb == pytest.approx(up_mb, rel=5e-3, abs=2e-5)
