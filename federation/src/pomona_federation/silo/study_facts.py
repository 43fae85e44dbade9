"""A study's effects and costs at this silo, determined on the silo's own data before anything
runs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from pomona.config import Config
from pomona.core.errors import DataError, listed
from pomona.core.round import Roster
from pomona.federation.batchnorm_statistics import with_statistics
from pomona.federation.round_plan import round_of
from pomona.federation.run_checks import caution, cautions
from pomona.methods.base import Initial, Rows
from pomona.models.parameter_space import ParameterSpace
from pomona.scenario import Scenario
from pomona_federation.agreed_scenario import network_outline
from pomona_federation.agreement import StudyAgreement
from pomona_federation.messages.tensor_bytes import Encoding
from pomona_federation.silo.privacy_budget import Cost, PrivacyBudget
from pomona_federation.silo.silo_in_study import Silo
from pomona_federation.silo.silo_scenario import at_member, worst_cost
from pomona_federation.survey.settings import ColumnsReply
from pomona_federation.survey.silo import columns

MAX_COLUMNS = 12  # most columns named in a line


def summary(data: ColumnsReply) -> str:
    """Summary of raw data, as a survey reads them."""
    names = [column.name for column in data.columns]
    shape = (
        f", each of shape {data.shape}" if data.shape else f"; columns {listed(names, MAX_COLUMNS)}"
    )
    return f"{data.rows} training samples of kind {data.kind}, targets {data.targets}{shape}"


@dataclass(frozen=True)
class Traffic:
    """Bytes of models that a silo receives and sends per round, without headers, and the rounds."""

    downlink: int
    uplink: int
    rounds: int

    @property
    def mb_a_round(self) -> float:
        """Megabytes per round, both ways."""
        return (self.downlink + self.uplink) / 1e6

    @property
    def mb_in_all(self) -> float:
        """Megabytes in all rounds, both ways."""
        return self.mb_a_round * self.rounds

    def __str__(self) -> str:
        per_round = f"{self.downlink / 1e6:.3g} MB down and {self.uplink / 1e6:.3g} MB up a round"
        return f"{per_round}, {self.mb_in_all:.3g} MB in {self.rounds} rounds"


@dataclass(frozen=True)
class StudyText:
    """Content of a study, independent of a silo's data.

    Attributes:
        method, model: their names; "" for a survey, which has none.
        trains: whether that method trains a model.
        task: SHA-256 of its section task; "" for a survey.
        files: SHA-256 of first weights and of custom code, by their names for people.
        acknowledge: names of the acknowledged releases without noise.
        rounds: of all trials.
        epochs: passes over the training data, by all models that the method trains there, in all
            rounds and trials; a study that counts steps counts each as one, since it may be.
    """

    method: str = ""
    model: str = ""
    trains: bool = False
    task: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    acknowledge: tuple[str, ...] = ()
    rounds: int = 0
    epochs: int = 0

    @classmethod
    def from_terms(cls, terms: StudyAgreement) -> "StudyText":
        """Content of an agreed study. Raises ConfigError for one that cannot be run."""
        if terms.survey:
            return cls()
        config = terms.config
        trials = [run.config for run in terms.runs]
        weights = {"first weights": sha256} if (sha256 := config.model.init_sha256) else {}
        return cls(
            config.method.name,
            config.model.name,
            terms.evaluate is None,
            terms.task.sha256,
            weights | terms.own_code,
            config.privacy.acknowledge if config.privacy else (),
            sum(trial.rounds for trial in trials),
            sum(map(_epochs, trials)),
        )


@dataclass(frozen=True)
class StudyFacts:
    """A study's costs on a silo's data.

    Attributes:
        cost: of the whole study in the worst case.
        total: of all studies on the same data with this one.
        traffic: of a silo.
        loss: of the untrained model on a first batch; 0 in a survey.
    """

    cost: Cost
    total: Cost
    traffic: Traffic
    loss: float = 0.0


def facts(silo: Silo) -> StudyFacts:
    """Determine the facts. Raises PomonaError if the data or the network do not fit the study."""
    loss = 0.0 if silo.terms.survey else _untrained_loss(silo.local)
    total = PrivacyBudget(silo.folder).total_with(silo.claim(), silo.file.data)
    if survey := silo.terms.survey:
        columns(survey, silo.file.data, silo.member)
        return StudyFacts(silo.claim().worst(), total, Traffic(0, 0, 0))
    study_traffic = _total([traffic(silo.local, run) for run in silo.terms.runs])
    return StudyFacts(worst_cost(silo.local), total, study_traffic, loss)


def _untrained_loss(local: Scenario) -> float:
    """Loss of the untrained model on a first batch. Raises DataError without training samples, or
    if it or its gradient is not finite.
    """
    train, objective = local.partition.clients[0].train, local.objective()
    if not len(train):
        raise DataError("no training rows; name a file that has some in section data of silo.toml")
    rows = torch.from_numpy(train[: max(objective.least_batch, local.config.batch_size)])
    model = local.initial().unsqueeze(0)
    loss, gradient = objective.gradient(model, [rows.to(model.device)])
    if not bool(torch.isfinite(loss).all() and torch.isfinite(gradient).all()):
        raise DataError(
            "the untrained model's loss on this data is not finite; check shift, scale and the data"
        )
    return float(loss[0])


def remarks(silo: Silo) -> list[str]:
    """Warnings that a simulation on the silo's data would give before it starts: on data, network,
    method and settings.

    Raises PomonaError as ``facts``.
    """
    runs = [run.config for run in silo.terms.runs]
    lines = [note.text for note in cautions(silo.local)]
    return list(dict.fromkeys([*lines, *filter(None, map(caution, runs))]))


def traffic(local: Scenario, terms: StudyAgreement) -> Traffic:
    """Traffic per round with all places taken, measured on the method itself."""
    scenario = at_member(local, terms, 0, {})
    return _traffic(scenario.config, terms, scenario.initial, len(local.partition.clients[0].train))


def outlined(terms: StudyAgreement) -> Traffic:
    """Traffic from a study's text alone, by the shapes of its tensors: allocates none of them and
    reads no data.

    It is 0 for a survey and for networks of custom code, whose tensors are known only once they are
    built; for a method whose downlink depends on values, it is the uplink. Raises ConfigError for a
    network that does not fit the task.
    """
    if terms.survey:
        return Traffic(0, 0, 0)
    return _total([_outlined(run) for run in terms.runs])


def _outlined(terms: StudyAgreement) -> Traffic:
    config, module = terms.config, network_outline(terms)
    if module is None:
        return Traffic(0, 0, config.rounds)
    space = ParameterSpace(module, config.buffers)
    row = torch.empty(space.size, device="meta")
    trained_row, buffers = row[: space.trained], row[space.trained :]
    return _traffic(config, terms, Initial.from_space(space, lambda _: trained_row, buffers), 1)


def _traffic(config: Config, terms: StudyAgreement, initial: Initial, samples: int) -> Traffic:
    server = with_statistics(config.method.method().server, initial)
    roster = Roster((samples,) * terms.federation.places, config.largest_share)
    state = server.start(initial, roster, config.seed)
    encoding = Encoding(terms.run_study.wire, terms.federation.places)
    uplink_bytes = sum(_bytes(tensor, encoding) for tensor in server.uplink_form(state).values())
    if aggregation := config.secure_aggregation:  # masked integers, whatever the wire
        uplink_bytes = (
            sum(t.numel() for t in server.uplink_form(state).values()) * aggregation.bits // 8
        )
    if terms.evaluate:  # models come last, when all have been sent
        return Traffic(len(terms.evaluate.models) * uplink_bytes, uplink_bytes, config.rounds)
    try:
        downlink = server.downlink(state, (0,), roster, round_of(config, 1))
    except (NotImplementedError, RuntimeError):
        if initial.statistics.device.type != "meta":
            raise
        return Traffic(0, uplink_bytes, config.rounds)
    return Traffic(
        sum(_rows(entry) * _bytes(entry.bank[0], encoding) for entry in downlink.values()),
        uplink_bytes,
        config.rounds,
    )


def _epochs(config: Config) -> int:
    """The most passes of a silo over its training data in a run: one for each gradient, or step,
    that is taken.
    """
    gradients = config.method.method().card.privacy.gradients
    return sum(g.per_batch * g.batches_in_all(config.passes, 1, config.rounds) for g in gradients)


def _total(trials: Sequence[Traffic]) -> Traffic:
    """The rounds of all trials, each counted as heavy as the heaviest."""
    downlink, uplink = max(t.downlink for t in trials), max(t.uplink for t in trials)
    return Traffic(downlink, uplink, sum(t.rounds for t in trials))


def _rows(entry: Rows) -> int:
    """Number of rows a silo gets if its request fills all places; in the first round some may be
    empty.
    """
    return 1 if entry.index.dim() == 1 else entry.index.shape[1]


def _bytes(tensor: Tensor, encoding: Encoding) -> int:
    return encoding.narrow(torch.empty_like(tensor, device="meta")).nbytes
