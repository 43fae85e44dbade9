"""A step of local training on masks, and the evaluation of a model, against a plain loop in MONAI
and PyTorch.

    python benchmarks/segmentation_step.py [--quick]

The same network from the same weights, the same batches and loss (MONAI's ``DiceCELoss``), SGD with
momentum, one client, one thread. The plain loop has its batches in memory as float tensors; Pomona
gathers and normalises each. The floor is the network's forward and backward pass alone, without
loss and optimizer. Both evaluate the client's test images, Pomona in the batches of a run, and give
the Dice of each. "apart" is the largest difference of a weight after all steps, or of a Dice; more
than ``TOLERANCE`` ends the benchmark. Needs MONAI. Words: the cases to run, of ``2-D``, ``own`` and
``3-D``.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from statistics import median

import torch
from monai.losses import DiceCELoss
from monai.metrics import compute_dice
from monai.networks.utils import one_hot
from torch import Tensor, nn

from pomona.config import resolve
from pomona.core.round import Roster
from pomona.core.toml import Tree
from pomona.data.dataset import Dataset
from pomona.federation.round_plan import round_of
from pomona.methods.base import LocalTraining, sgd
from pomona.metrics.overlap import dice
from pomona.models.parameter_space import ParameterSpace
from pomona.scenario import Scenario
from pomona.tasks.segmentation import counts
from pomona.testing.task_checks import discs
from rounds import scenario_of
from timing import Table, Work, chosen, measured, publish

Batches = Sequence[tuple[Tensor, Tensor]]  # images (b, 1, *S) float32, masks (b, 1, *S) int64

CLASSES = 3
TOLERANCE = 1e-4  # in any weight after all steps, and in any image's Dice
LR, MOMENTUM = 0.01, 0.9
SETTINGS: Tree = {
    "clients": 1,
    "rounds": 1,
    "lr": LR,
    "momentum": MOMENTUM,
    "data": {
        "name": "rounds:noise",
        "targets": "segmentation",
        "test_share": 0.5,
        "validation_share": 0.0,
    },
}


@dataclass(frozen=True)
class Case:
    """A network, and its training images: side, axes, batch, and number of steps."""

    group: str
    name: str
    model: Tree
    side: int
    batch: int
    steps: int
    volume: bool = False


@dataclass(frozen=True)
class Size:
    """Cases and turns."""

    cases: tuple[Case, ...]
    turns: int


def monais(*channels: int, units: int) -> Tree:
    """MONAI's U-Net with these channels, halving the sides between them."""
    return {
        "name": "monai:UNet",
        "args": {
            "channels": list(channels),
            "strides": [2] * (len(channels) - 1),
            "num_res_units": units,
        },
    }


FULL = Size(
    (
        Case("2-D", "monai:UNet, 128 x 128", monais(16, 32, 64, 128, units=2), 128, 4, 6),
        Case("own", "unet, 128 x 128", {"name": "unet", "width": 16, "depth": 3}, 128, 4, 6),
        Case("3-D", "monai:UNet, 32 x 32 x 32", monais(8, 16, 32, units=1), 32, 2, 6, volume=True),
    ),
    7,
)
QUICK = Size(
    (
        Case("2-D", "monai:UNet, 16 x 16", monais(4, 8, units=1), 16, 2, 2),
        Case("own", "unet, 16 x 16", {"name": "unet", "width": 4, "depth": 1}, 16, 2, 2),
        Case("3-D", "monai:UNet, 8 x 8 x 8", monais(4, 8, units=1), 8, 2, 2, volume=True),
    ),
    1,
)


def prepared(case: Case) -> Scenario:
    """One client with as many training images as the steps need, and as many test images."""
    x, y = discs(2 * case.batch * case.steps, case.side, CLASSES, volume=case.volume)
    names = tuple(f"class {k}" for k in range(CLASSES))
    masks = Dataset(
        "noise", "image", x, y, names, len(x), (127.5,), (127.5,), target_kind="segmentation"
    )
    return scenario_of(resolve(SETTINGS, {"model": case.model, "batch_size": case.batch}), masks)


class Pomona:
    """One client's local training and evaluation, as in a run."""

    def __init__(self, scenario: Scenario) -> None:
        self.objective, self.round = scenario.objective(), round_of(scenario.config, 1)
        self.roster, self.first = (
            Roster((len(scenario.partition.clients[0].train),)),
            scenario.initial(),
        )

    def training(self) -> LocalTraining:
        """The client in a round."""
        return LocalTraining(self.objective, (0,), self.roster, self.round)

    def train(self) -> Tensor:
        """An epoch; the weights (d,) after it."""
        return sgd(self.training(), self.first.unsqueeze(0).clone(), self.round)[0]

    def evaluate(self) -> Tensor:
        """Dice (n, C) of each test image, NaN if it contains nothing of a class."""
        counted, _ = self.objective.batchwise(self.first, 0, "test", counts)
        return torch.from_numpy(dice(counted.double().numpy()))

    def batches(self) -> Batches:
        """The epoch's batches in MONAI's form: contiguous, masks with an axis for channels."""
        return [self._plain(batch.indices[0]) for (batch,) in self.training().steps(1)]

    def test(self, size: int) -> Batches:
        """The test images in batches."""
        return [self._plain(index) for index in self.objective.data.rows["test"][0].split(size)]

    def _plain(self, index: Tensor) -> tuple[Tensor, Tensor]:
        x, y = self.objective.data.gather(index)
        return x.contiguous(), y.unsqueeze(1)


def plain_train(module: nn.Module, batches: Batches) -> nn.Module:
    """An epoch as in MONAI's tutorials, on a copy."""
    module = deepcopy(module).train()
    optimizer = torch.optim.SGD(module.parameters(), lr=LR, momentum=MOMENTUM)
    loss_function = DiceCELoss(to_onehot_y=True, softmax=True)
    losses = []
    for images, masks in batches:
        optimizer.zero_grad()
        loss = loss_function(module(images), masks)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return module


@torch.no_grad()
def plain_evaluate(module: nn.Module, batches: Batches) -> Tensor:
    """Dice (n, C) of each image, 1 if it contains nothing of a class."""
    module.eval()
    scores = []
    for images, masks in batches:
        claimed = one_hot(module(images).argmax(1, keepdim=True), CLASSES)
        scores.append(compute_dice(claimed, one_hot(masks, CLASSES), ignore_empty=False))
    return torch.cat(scores)


def passes(module: nn.Module, batches: Batches, backward: bool) -> None:
    """Forward, and backward with given output gradients: the network alone."""
    module.train(backward)
    for images, _ in batches:
        with torch.set_grad_enabled(backward):
            outputs = module(images)
        if backward:
            module.zero_grad()
            outputs.backward(torch.full_like(outputs, 1e-3))


def compare(case: Case, turns: int) -> Table:
    """Measure a case, and compare the numbers of both sides."""
    scenario = prepared(case)
    ours, module = Pomona(scenario), scenario.module()
    training, test = ours.batches(), ours.test(case.batch)
    space = ParameterSpace(module)
    differences = {
        "a step": float((space.pack(plain_train(module, training)) - ours.train()).abs().max()),
        "evaluation, an image": difference(plain_evaluate(module, test), ours.evaluate()),
    }
    if max(differences.values()) > TOLERANCE:
        raise SystemExit(f"{case.name}: weights or Dice differ: {differences}")
    steps: dict[str, Work] = {
        "plain loop": partial(plain_train, module, training),
        "Pomona": ours.train,
        "forward and backward alone": partial(passes, module, training, True),
    }
    images: dict[str, Work] = {
        "plain loop": partial(plain_evaluate, module, test),
        "Pomona": ours.evaluate,
        "forward alone": partial(passes, module, test, False),
    }
    rows: dict[str, Table] = {}
    samples = sum(len(x) for x, _ in test)
    for operation, works, count in (
        ("a step", steps, len(training)),
        ("evaluation, an image", images, samples),
    ):
        wall, cpu = measured(works, turns)
        for name in works:
            rows[f"{operation}: {name}"] = {
                "median ms": 1e3 * wall.median(name) / count,
                "CPU ms": 1e3 * cpu.median(name) / count,
                "cost": 1 / median(wall.ratios(name)),
                "CPU cost": cpu.cost(name),
                "apart": differences[operation] if name == "Pomona" else None,
            }
    notes = {
        "parameters": space.trained,
        "batch": case.batch,
        "steps": len(training),
        "images": samples,
    }
    return publish(f"Segmentation: {case.name}", rows, turns, **notes)


def difference(expected: Tensor, actual: Tensor) -> float:
    """The largest difference of Dice, over classes present or predicted in an image."""
    defined = ~actual.isnan()
    return float((expected.double() - actual)[defined].abs().max())


def main(size: Size, arguments: list[str]) -> list[Table]:
    """Measure and print."""
    torch.set_num_threads(1)
    return [
        compare(case, size.turns) for case in size.cases if not arguments or case.group in arguments
    ]


if __name__ == "__main__":
    main(*chosen(QUICK, FULL))
