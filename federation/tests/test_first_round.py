"""A silo that lies in the first round, over a grid in this process: it is refused by name, and the
others' models are those of a run in which it was absent.
"""

import numpy as np
import pytest

from federation_in_process import deployed, equal
from pomona.core.errors import QuorumError
from pomona_federation.audit_log import complete_lines
from pomona_federation.messages.tensor_bytes import sha256
from pomona_federation.silo import client_app

pytestmark = pytest.mark.long


def lying(patch, factor, rounds=(1,)):
    """Make silo-1 multiply its signed model in some rounds."""
    answer = client_app.ClientApp.answer

    def answers(self, task, enclosed):
        body, uplink = answer(self, task, enclosed)
        if task.trains and task.number in rounds and self.silo.file.name == "silo-1":
            header = int.from_bytes(uplink[:8], "little") + 8
            row = np.frombuffer(uplink[header:], "<f4") * np.float32(factor)
            uplink = uplink[:header] + row.tobytes()
            body = body.model_copy(update={"uplink": sha256(uplink)})
        return body, uplink

    patch.setattr(client_app.ClientApp, "answer", answers)


def decisions(federation):
    """Silo, reason and limits of the uplinks of round 1."""
    lines = complete_lines(federation.server / "run" / "audit.jsonl")
    return {
        e["silo"]: (e.get("detail", ""), e["limits"]["model"])
        for e in lines
        if e["event"] in {"admitted", "unused"} and e["round"] == 1
    }


@pytest.mark.parametrize("factor", [1e6, 1e30])
@pytest.mark.parametrize("method", ["fedavg", "fedavg+clipped"])
def test_a_lie_of_one_in_three_silos_in_the_first_round_costs_nobody_else(method, factor, world):
    federation = world.federation(method={"name": method}, run={"rounds": 4}, quorum=2)
    lying(world.patch, factor)
    federation.run()
    judged = decisions(federation)
    assert {silo for silo, (reason, _) in judged.items() if reason} == {"silo-1"}
    reason, limit = judged["silo-1"]
    assert "norm" in reason
    assert limit is not None
    assert equal(deployed(federation), world.simulated(federation, absent={(1, 1)}))


def test_a_lie_of_one_in_two_silos_is_named_when_the_round_fails_for_it(world):
    federation = world.federation(method={"name": "fedavg"}, run={"clients": 2}, quorum=2)
    lying(world.patch, 1e6)
    with pytest.raises(QuorumError, match="silo-1, round 1: tensor 'model' has norm"):
        federation.run()
