"""A silo with an unusable ``device``: each place that reports it does so in a line, and waiting is
visible.
"""

import tomllib

import pytest
import tomli_w
import torch

from command_line import command
from pomona.core.errors import ConfigError, QuorumError
from pomona_federation import status
from pomona_federation.silo.silo_scenario import require_device
from test_consent_policy import entry, ruled, submitted
from test_studies import decided, proposals
from test_study_preflight import checked

pytestmark = pytest.mark.long

FAULTS = [
    RuntimeError("Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU"),
    AssertionError("Torch not compiled with CUDA enabled"),
]


@pytest.fixture(params=FAULTS, ids=lambda fault: type(fault).__name__)
def silo(world, monkeypatch, request):
    """A federation whose silo-0 is set to a GPU that raises, and the line that reports it."""
    federation = world.federation("fedavg", wait=0.5)
    path = federation.kits / "silo-0/silo.toml"
    path.write_text(tomli_w.dumps(tomllib.loads(path.read_text()) | {"device": "cuda"}))

    def unusable(device):
        raise request.param

    monkeypatch.setattr(torch.cuda, "set_device", unusable)
    return (
        federation,
        (
            f"PyTorch cannot use it ({type(request.param).__name__}: {request.param}); set device "
            "= 'cpu'"
        ),
    )


def test_check_says_it_with_and_without_a_study(silo):
    federation, line = silo
    submitted(federation)
    proposals(federation, "silo-0")
    ruled(federation)
    for study in ("", "second"):
        lines, _ = checked(federation.kits / "silo-0", study)
        assert lines["device"].result == lines["data"].result == "failed"
        assert line in lines["device"].text
        assert line in lines["data"].text
    assert line in lines["policy"].text


def test_a_rule_leaves_the_study_to_a_person_with_the_reason(silo, capsys):
    federation, line = silo
    ruled(federation, otherwise="decline")
    submitted(federation)
    [message] = proposals(federation, "silo-0")
    assert line in message
    assert entry(federation).status == "pending"
    assert command("silo", "status", "--folder", federation.kits / "silo-0") == 0
    assert "device = 'cuda', but PyTorch cannot use it" in capsys.readouterr().out.replace(
        "\n", " "
    )


def test_an_accepted_study_that_fails_in_every_round_says_so_until_it_goes_on(silo, monkeypatch):
    federation, line = silo
    kit = federation.kits / "silo-0"
    submitted(federation, decide=0.0)
    proposals(federation, "silo-0")
    decided(federation, "silo-0", "second")
    with pytest.raises(QuorumError):
        federation.run("second")
    [row] = status.silo(kit)["studies"]
    assert (row["decision"], row["round"]) == ("accepted", 0)
    assert line in row["fault"]
    path = kit / "silo.toml"
    path.write_text(path.read_text().replace('"cuda"', '"cpu"'))
    from pomona_federation.server.study_queue import StudyQueue

    StudyQueue(federation.server).resume("second")
    federation.run("second")
    [row] = status.silo(kit)["studies"]
    assert (row["round"], row["fault"]) == (3, "")  # the closing visit is no fourth round


def test_a_gpu_that_is_named_is_the_one_that_is_taken(monkeypatch):
    """And a number is put there: that a driver is found does not say that it works."""
    devices = []
    monkeypatch.setattr(torch.cuda, "set_device", devices.append)
    monkeypatch.setattr(torch, "zeros", lambda *_, device: devices.append(device))
    assert (require_device("cuda:1"), require_device("cpu")) == ("cuda", "cpu")
    assert devices == ["cuda:1", "cuda:1"]
    monkeypatch.setattr(
        torch, "zeros", lambda *_, device: (_ for _ in ()).throw(RuntimeError("out of memory"))
    )
    with pytest.raises(ConfigError, match=r"RuntimeError: out of memory"):
        require_device("cuda:1")
