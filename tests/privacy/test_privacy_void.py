"""No page gives an epsilon where training records leave without noise: it would be no bound."""

import pytest

import pomona
from pomona.cli.run_outcome import _privacy_line
from pomona.results.summary_table import table
from problems import Notes, tiny

pytestmark = pytest.mark.long

COVERED = ["sample-counts", "metrics", "unlimited-epsilon"]
TERMS = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "delta": 1e-3}


@pytest.mark.parametrize(
    ("method", "release"), [("fedavg-data", "shared-samples"), ("fedavg", "training-loss")]
)
def test_what_leaves_without_noise_voids_epsilon_on_every_page(method, release, tmp_path):
    pytest.importorskip("opacus")
    privacy, notes = {**TERMS, "acknowledge": [*COVERED, release]}, Notes()
    result = pomona.run(
        tiny(method, privacy=privacy, rounds=1, batch_size=1000), tmp_path / "run", callback=notes
    )
    void, costs = f"no bound: {release}", result.summary["privacy"]
    assert void in costs["void"]
    assert void in _privacy_line(costs)
    assert any("at most epsilon" in note and void in note for note in notes.said)
    assert f"Void: {void}" in (tmp_path / "run/models/client-00.card.md").read_text()
    assert {row["epsilon"] for row in table([result])} == {None}
