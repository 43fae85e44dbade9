"""The server's audit log records each decision on an uplink: silo, round, norms and limits,
reason.
"""

from collections import Counter
from statistics import median

import numpy as np
import pytest
from safetensors.numpy import load

from pomona.core.errors import QuorumError
from pomona.federation.norm_bounds import FACTOR, FACTOR_EARLY
from pomona.record.run_folder import load as load_run
from pomona_federation.audit_log import complete_lines, verify
from pomona_federation.silo import client_app
from test_faults import mistaken, tensors
from test_hostile_members import forged

pytestmark = pytest.mark.long


def decisions(federation):
    path = federation.server / "run" / "audit.jsonl"
    assert verify(path) is None
    return [e for e in complete_lines(path) if e["event"] in {"admitted", "unused"}]


def sent_norms(patch):
    """A dictionary filled with the norm of the core that each silo sends in each round."""
    norms, answer = {}, client_app.ClientApp.answer

    def answers(self, task, enclosed):
        body, uplink = answer(self, task, enclosed)
        if task.trains:
            norms[task.number, self.silo.file.name] = float(
                np.linalg.norm(load(uplink)["core"].astype(np.float64))
            )
        return body, uplink

    patch.setattr(client_app.ClientApp, "answer", answers)
    return norms


def test_each_uplink_has_one_line_with_its_norm_and_the_limit(world):
    federation = world.federation(quorum=2)
    mistaken(world.patch, tensors(lambda u: {**u, "core": u["core"] * 1e6}))
    norms = sent_norms(world.patch)
    federation.run()
    lines = decisions(federation)
    assert sorted((e["round"], e["silo"]) for e in lines) == sorted(norms)
    (refused,) = [e for e in lines if e["event"] == "unused"]
    assert (refused["round"], refused["silo"]) == (2, "silo-1")
    assert (refused["stage"], refused["reason"]) == ("admission", "norm")
    assert refused["detail"].startswith("tensor")
    limit = FACTOR * median([n for (number, _), n in norms.items() if number < 3])
    for line in lines:
        true = norms[line["round"], line["silo"]]
        assert line["norms"].keys() == line["limits"].keys() == {"core"}
        assert line["norms"]["core"] == pytest.approx(true, rel=1e-5)
        if line["round"] == 1:  # three norms, and five make a median of those accepted before
            first = median([n for (number, _), n in norms.items() if number == 1])
            assert line["limits"]["core"] >= FACTOR_EARLY * first * (1 - 1e-5)
        if line["round"] == 2:
            assert line["limits"]["core"] == pytest.approx(limit, rel=1e-5)


def test_a_round_that_is_tried_again_is_judged_twice_and_a_fault_is_a_decision_too(world):
    federation = world.federation(quorum=3)
    forged(
        federation,
        lambda answer: {**answer, "fault": "the loss is not finite", "uplink": "", "rows": {}},
    )
    with pytest.raises(QuorumError):
        federation.run()
    lines = [(e["silo"], e.get("reason")) for e in decisions(federation) if e["round"] == 2]
    assert Counter(lines) == dict.fromkeys(
        [("silo-0", None), ("silo-1", "diverged"), ("silo-2", None)], 2
    )
    assert {e["detail"] for e in decisions(federation) if e["event"] == "unused"} == {
        "silo-1: the loss is not finite"
    }


def test_the_record_names_the_silo_whose_uplink_was_refused(world):
    federation = world.federation(quorum=2)
    mistaken(world.patch, tensors(lambda u: {**u, "core": u["core"] * 1e6}))
    federation.run()
    assert [
        line.partition(": ")[0]
        for row in load_run(federation.server / "run").rounds
        for line in row.refused
    ] == ["silo-1, round 2"]


def test_too_few_uplinks_name_the_silo_that_was_refused(world):
    federation = world.federation(quorum=3)
    mistaken(world.patch, tensors(lambda u: {**u, "core": u["core"] * 1e6}))
    with pytest.raises(QuorumError, match="silo-1, round 2: tensor"):
        federation.run()
