"""A custom method in a federation: every member has its code, and the agreement contains the code's
hash.
"""

import sys
import tomllib
from types import SimpleNamespace

import pytest
import tomli_w

from distributions import installed
from federation_in_process import deployed, equal
from pomona.core.errors import ConfigError, QuorumError
from pomona.storage.run_status import read_status
from pomona_federation.agreement import Federation
from pomona_federation.audit_log import complete_lines
from pomona_federation.named_code import named_code
from pomona_federation.silo.settings import SiloFile
from pomona_federation.silo.study_proposals import require_harmless
from pomona_federation.status import server as server_status

pytestmark = pytest.mark.long

MODULE = """
from pomona.methods.base import MethodSettings
from pomona.methods.one_model.fedavg import FedAvg


class Mine(MethodSettings):
    def method(self):
        return FedAvg().method()
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """The file of module ``mine``, which only this test can import."""
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "mine.py").write_text(MODULE)
    monkeypatch.syspath_prepend(folder)
    yield folder / "mine.py"
    sys.modules.pop("mine", None)


def names_another_method(kit, method):
    """Change the method in a kit's federation.toml."""
    path = kit / "federation.toml"
    tree = tomllib.loads(path.read_text())
    tree["run"]["method"] = {"name": method}
    path.write_text(tomli_w.dumps(tree))


def reasons(federation):
    """Why silos were turned away, by name, from the server's log."""
    lines = list(complete_lines(federation.server / "run" / "audit.jsonl"))
    return {line["silo"]: line["detail"] for line in lines if line["event"] == "unused"}


def test_it_trains_as_in_the_simulation(world, module):
    federation = world.federation({"name": "mine:Mine"})
    federation.run()
    assert equal(deployed(federation), world.simulated(federation))
    assert server_status(federation.server)["method"] == "mine:Mine"


def test_a_silo_without_the_code_says_so(world, module):
    """The silo's file names a module that cannot be imported, as mine.py cannot where nobody has
    put it.
    """
    federation = world.federation({"name": "mine:Mine"}, quorum=2, wait=0.5)
    names_another_method(federation.kits / "silo-1", "not_here:Mine")
    federation.run()
    assert reasons(federation) == {
        "silo-1": "PROTOCOL: section run: cannot load 'not_here:Mine' (No module named "
        "'not_here'); give an importable module:attribute"
    }


def test_the_agreement_holds_the_hash_of_the_code(world, module):
    federation = world.federation({"name": "mine:Mine"})
    agreement = Federation.load(federation.toml).agreement
    assert Federation.load(federation.toml).agreement == agreement
    module.write_text(MODULE + "\n# changed\n")
    assert Federation.load(federation.toml).agreement != agreement


def test_a_method_of_another_package_is_own_code_by_its_short_name_too(
    world, tmp_path, monkeypatch
):
    text = MODULE.replace("def method", "name: Literal['mine'] = 'mine'\n\n    def method")
    points = {"pomona.methods": {"mine": "another:Mine"}}
    installed(monkeypatch, tmp_path, points, another=f"from typing import Literal\n{text}")
    federation = world.federation({"name": "mine"})
    agreement = Federation.load(federation.toml).agreement
    (tmp_path / "another.py").write_text(f"{text}\n# changed\n")
    assert Federation.load(federation.toml).agreement != agreement
    assert named_code({"method": "mine"}) == ["another:Mine"]
    silo = SiloFile.model_construct(code=())
    study = SimpleNamespace(name="s", run={"method": {"name": "mine"}})
    with pytest.raises(ConfigError, match="would run own code, another:Mine"):
        require_harmless(study, silo)


def agreement_with(path, **run):
    """The agreement of a federation.toml with these additional keys in section run."""
    tree = tomllib.loads(path.read_text())
    tree["run"] |= run
    path.write_text(tomli_w.dumps(tree))
    return Federation.load(path).agreement


def test_the_agreement_holds_the_hash_of_a_metric_s_code(world, module):
    federation = world.federation({"name": "fedavg"})
    agreement = agreement_with(federation.toml, metric="-mine:Mine")
    module.write_text(MODULE + "\n# changed\n")
    assert agreement_with(federation.toml) != agreement


def test_a_network_of_a_package_is_no_own_code(world):
    federation = world.federation({"name": "fedavg"})
    agreement = Federation.load(federation.toml).agreement
    assert agreement_with(federation.toml, model={"name": "monai:DenseNet121"}) != agreement


def test_a_module_that_only_the_server_names_is_not_imported_by_a_silo(world, module):
    federation = world.federation({"name": "mine:Mine"}, wait=0.5)
    (module.parent / "theirs.py").write_text(MODULE)
    names_another_method(federation.server, "theirs:Mine")
    served, imported = federation.grid._served, []

    def watched(message):
        sys.modules.pop("theirs", None)  # the server has imported it in this process
        answer = served(message)
        imported.append("theirs" in sys.modules)
        return answer

    federation.grid._served = watched
    with pytest.raises(QuorumError):
        federation.run()
    assert imported == [False] * 3
    assert all(
        "the server runs something other than what this silo agreed to" in r
        for r in reasons(federation).values()
    )
    assert reasons(federation).keys() == set(federation.names)


def test_a_server_without_the_code_ends_with_the_reason(world, module):
    """A status with code 2 ends the server, where a ServerApp that only dies is started again."""
    federation = world.federation({"name": "mine:Mine"})
    names_another_method(federation.server, "not_here:Mine")
    with pytest.raises(ConfigError):
        federation.run()
    status = read_status(federation.server / "run")
    assert (status.state, status.code, status.round) == ("failed", 2, 0)
    assert "cannot load 'not_here:Mine'" in status.reason
