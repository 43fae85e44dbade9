"""A silo's personal model of an earlier study, for an evaluation: found, and checked against the agreement."""

from pathlib import Path

from torch import Tensor

from pomona.core.errors import ProtocolError
from pomona.models.parameter_space import ParameterSpace
from pomona.record import model_file
from pomona.scenario import Scenario
from pomona_federation.agreement import Federation
from pomona_federation.json_store import read_json
from pomona_federation.silo.settings import SiloFile
from pomona_federation.silo.studies.known_studies import KnownStudies
from pomona_federation.silo.studies.pinned_agreement import PINNED, PinnedAgreement


def judged_model(kit: Path, federation: Federation, own: Scenario, place: int, start: Tensor | None) -> Tensor | None:
    """The model (d,) that a silo starts a study with: in an evaluation the evaluated one, if it has one.

    Args:
        kit: the silo's.
        federation: the terms of the evaluation.
        own: the silo's data under these terms, as a scenario of one client.
        place: the silo's.
        start: the starting model otherwise; None for the run's initial model.

    Raises:
        ProtocolError: the model is missing, is another network's, or the silo's data have changed since.
        StorageError: its file is damaged.
    """
    terms, file = federation.evaluate, SiloFile.load(kit / "silo.toml")
    if terms is None or file.name not in terms.models:
        return start
    if terms.models[file.name] != place:
        raise ProtocolError(f"the study expects this silo's model at place {terms.models[file.name]}, it has {place}")
    source, folder = _source(kit, terms.agreement or "")
    path = folder / "models" / "personal.safetensors"
    if not path.exists():
        raise ProtocolError(f"the study evaluates models of {terms.of or 'the first study'}, but there is no {path}")
    _require_same(source, federation)
    pinned = read_json(PinnedAgreement, folder / PINNED)
    known = pinned.rows if pinned and source.view == federation.view else None
    if known not in {None, own.partition.sha256}:
        raise ProtocolError(
            "this silo's data, or its division, is not what its model was trained on, which might be evaluated on "
            "samples that it has seen; put the data back, or have the study name a view of other data"
        )
    return ParameterSpace(own.module()).row(model_file.tensors(path))


def _source(kit: Path, agreement: str) -> tuple[Federation, Path]:
    """The terms under which the models were trained, and the folder of this silo's files. Raises ProtocolError."""
    standing, studies = Federation.read(kit / "federation.toml"), KnownStudies(kit)
    if known := studies.find(agreement):
        return studies.agreed(standing, known), studies.home(known)
    if standing.comes_with_study and standing.agreement == agreement:
        return standing, kit / "state"
    raise ProtocolError(f"this silo knows no study with the hash {agreement[:16]}, whose models are to be evaluated")


def _require_same(source: Federation, federation: Federation) -> None:
    """Require the same network and preprocessing, without which a model's parameters mean nothing."""
    trained, judged = source.config(), federation.config()
    pairs = {
        "section task": (source.task, federation.task),
        "run.model": (trained.model, judged.model),
        "run.seed": (trained.seed, judged.seed),
    }
    for key, (one, other) in pairs.items():
        if one != other:
            raise ProtocolError(f"{key} is not that of the study whose models are evaluated; give the same")
