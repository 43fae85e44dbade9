"""From raw files by a survey to trained models, with no knowledge of the data beyond the silos'
settings.
"""

import tomllib

import numpy as np
import pytest
import tomli_w

from federation_in_process import LocalGrid, run_study
from pomona_federation.provision.provision import provision
from pomona_federation.silo import history
from pomona_federation.survey import page
from surveying import HOSPITALS, heart_disease, surveyed

pytestmark = pytest.mark.long


def test_from_raw_files_by_a_survey_to_trained_models(tmp_path):
    """The silos' settings and the survey's task: nothing else is known of the data, and models
    learn from it.
    """
    page.write(
        surveyed({hospital: heart_disease(hospital) for hospital in HOSPITALS}), tmp_path / "survey"
    )
    tree = {
        "name": "hearts",
        "server": "127.0.0.1:28443",
        "quorum": 1,
        "wait": 5.0,
        "run": {
            "method": "fedavg-ft",
            "rounds": 6,
            "lr": 0.05,
            "batch_size": 16,
            "model": {"name": "logistic"},
        },
        "silo": [{"name": hospital} for hospital in HOSPITALS],
        **tomllib.loads((tmp_path / "survey" / "task.toml").read_text()),
    }
    (tmp_path / "federation.toml").write_text(tomli_w.dumps(tree))
    kits = tmp_path / "kits"
    provision(tmp_path / "federation.toml", kits)
    for hospital in HOSPITALS:
        path = kits / hospital / "silo.toml"
        data = heart_disease(hospital).model_dump(mode="json", exclude_unset=True)
        path.write_text(tomli_w.dumps(tomllib.loads(path.read_text()) | {"data": data}))
    grid = LocalGrid({10 + i: kits / hospital for i, hospital in enumerate(HOSPITALS)})
    run_study(grid, kits / "server")
    scores = {}
    for hospital in HOSPITALS:
        visits, _ = history.read(kits / hospital / "state")
        scores[hospital] = [
            s.accuracy for s in visits[-1].scores if s.split == "test" and s.model == "personal"
        ]
    assert np.mean([*scores.values()]) > 0.7
