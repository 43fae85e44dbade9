"""Label smoothing: the loss by its definition, refusals, and runs with it on each engine."""

import pytest
import torch
from torch.testing import assert_close

import pomona
from pomona.core.errors import ConfigError
from pomona.models import ModelSettings
from pomona.tasks import TASKS
from pomona.tasks.criterion import criterion
from problems import tiny


def test_the_loss_is_cross_entropy_with_the_target_mixed_with_all_classes():
    outputs = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    targets = torch.tensor([0, 1, 2, 3, 0, 1])
    mixed = 0.8 * torch.nn.functional.one_hot(targets, 4) + 0.2 / 4
    expected = -(mixed * outputs.log_softmax(1)).sum(1)
    assert_close(
        criterion(ModelSettings(label_smoothing=0.2), TASKS["classes"])(outputs, targets), expected
    )


@pytest.mark.parametrize(
    ("targets", "loss"), [("regression", "auto"), ("multilabel", "auto"), ("classes", "own:loss")]
)
def test_it_is_refused_where_it_has_no_meaning(targets, loss):
    with pytest.raises(
        ConfigError, match=r"model\.label_smoothing = 0\.1 is for classes and model\.loss = auto"
    ):
        criterion(ModelSettings(label_smoothing=0.1, loss=loss), TASKS[targets])


def test_engines_agree_and_it_changes_the_run():
    smoothed = {"model": {"name": "mlp", "hidden": [8], "label_smoothing": 0.3}, "rounds": 1}
    single, stacked = (pomona.run(tiny("fedavg", rows_per_call=n, **smoothed)) for n in (1, 4))
    plain = pomona.run(tiny("fedavg", rounds=1))
    assert single.rounds[0].loss == pytest.approx(stacked.rounds[0].loss, rel=1e-5)
    assert single.rounds[0].loss != plain.rounds[0].loss
