"""Private gradients of a U-Net with GroupNorm on masks: clipped one sample at a time."""

import torch

from masks import archive, settings
from pomona.config import resolve
from pomona.privacy import noise
from pomona.scenario import Scenario

PRIVACY = {
    "noise_multiplier": 1.0,
    "max_grad_norm": 0.05,
    "delta": 1e-5,
    "acknowledge": ["sample-counts", "metrics", "unlimited-epsilon", "class-names"],
}


def test_each_mask_counts_for_no_more_than_the_norm(tmp_path):
    path = archive(tmp_path / "masks.npz")
    scenario = Scenario.prepare(resolve(settings(path), {"method": "fedavg", "privacy": PRIVACY}))
    private, plain, row = scenario.private(tmp_path), scenario.objective(), scenario.initial()
    index = scenario.resident.rows["train"][0][:5]
    gradients = torch.cat([plain.gradient(row[None], [index[k : k + 1]])[1] for k in range(5)])
    norm = PRIVACY["max_grad_norm"]
    assert gradients.norm(dim=1).min() > norm  # all are clipped
    loss, total = private.clipped_sum(row, index)
    torch.testing.assert_close(
        total, noise.clipped(gradients, norm).sum(0).double(), atol=1e-5, rtol=1e-3
    )
    assert total.norm() <= 5 * norm * (1 + 1e-6)
    expected = plain.gradient(row[None], [index])[0][0]
    torch.testing.assert_close(loss, expected, atol=1e-5, rtol=1e-4)
