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
from pomona_federation.silo.silo_scenario import at_place, worst_cost
from pomona_federation.survey.replies import ColumnsReply
from pomona_federation.survey.silo import columns

NAMED = 12  # most columns named in a line


def summary(data: ColumnsReply) -> str:
    """Summary of raw data, as a survey reads them."""
    names = [form.name for form in data.columns]
    shape = f", each of shape {data.shape}" if data.shape else f"; columns {listed(names, NAMED)}"
    return f"{data.rows} training samples of kind {data.kind}, targets {data.targets}{shape}"


@dataclass(frozen=True)
class Traffic:
    """Bytes of models that a silo receives and sends per round, without headers, and the rounds."""

    down: int
    up: int
    rounds: int

    @property
    def mb_a_round(self) -> float:
        """Megabytes per round, both ways."""
        return (self.down + self.up) / 1e6

    @property
    def mb_in_all(self) -> float:
        """Megabytes in all rounds, both ways."""
        return self.mb_a_round * self.rounds

    def __str__(self) -> str:
        each = f"{self.down / 1e6:.3g} MB down and {self.up / 1e6:.3g} MB up a round"
        return f"{each}, {self.mb_in_all:.3g} MB in {self.rounds} rounds"


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
    def of(cls, agreed: StudyAgreement) -> "StudyText":
        """Content of an agreed study. Raises ConfigError for one that cannot be run."""
        if agreed.survey:
            return cls()
        config = agreed.config
        trials = [one.config for one in agreed.runs]
        weights = {"first weights": sha256} if (sha256 := config.model.init_sha256) else {}
        return cls(
            config.method.name,
            config.model.name,
            agreed.evaluate is None,
            agreed.task.sha256,
            weights | agreed.own_code,
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
    loss = 0.0 if silo.agreed.survey else _untrained_loss(silo.own)
    total = PrivacyBudget(silo.folder).total_with(silo.claim(), silo.file.data)
    if asked := silo.agreed.survey:
        columns(asked, silo.file.data, silo.member)
        return StudyFacts(silo.claim().worst(), total, Traffic(0, 0, 0))
    moved = _in_all([traffic(silo.own, one) for one in silo.agreed.runs])
    return StudyFacts(worst_cost(silo.own), total, moved, loss)


def _untrained_loss(own: Scenario) -> float:
    """Loss of the untrained model on a first batch. Raises DataError without training samples, or
    if it or its gradient is not finite.
    """
    train, objective = own.partition.clients[0].train, own.objective()
    if not len(train):
        raise DataError("no training rows; name a file that has some in section data of silo.toml")
    rows = torch.from_numpy(train[: max(objective.least_batch, own.config.batch_size)])
    model = own.initial().unsqueeze(0)
    loss, gradient = objective.gradient(model, [rows.to(model.device)])
    if not bool(torch.isfinite(loss).all() and torch.isfinite(gradient).all()):
        raise DataError(
            "the untrained model's loss on this data is not finite; look at shift and scale, and "
            "at the data"
        )
    return float(loss[0])


def remarks(silo: Silo) -> list[str]:
    """Warnings that a simulation on the silo's data would give before it starts: on data, network,
    method and settings.

    Raises PomonaError as ``facts``.
    """
    runs = [one.config for one in silo.agreed.runs]
    lines = [note.text for note in cautions(silo.own)]
    return list(dict.fromkeys([*lines, *filter(None, map(caution, runs))]))


def traffic(own: Scenario, agreed: StudyAgreement) -> Traffic:
    """Traffic per round with all places taken, measured on the method itself."""
    known = at_place(own, agreed, 0, {})
    return _moved(known.config, agreed, known.initial, len(own.partition.clients[0].train))


def outlined(agreed: StudyAgreement) -> Traffic:
    """Traffic from a study's text alone, by the shapes of its tensors: allocates none of them and
    reads no data.

    It is 0 for a survey and for networks of custom code, whose tensors are known only once they are
    built; for a method whose downlink depends on values, it is the uplink. Raises ConfigError for a
    network that does not fit the task.
    """
    if agreed.survey:
        return Traffic(0, 0, 0)
    return _in_all([_outlined(one) for one in agreed.runs])


def _outlined(agreed: StudyAgreement) -> Traffic:
    config, module = agreed.config, network_outline(agreed)
    if module is None:
        return Traffic(0, 0, config.rounds)
    space = ParameterSpace(module, config.buffers)
    row = torch.empty(space.size, device="meta")
    start, rest = row[: space.trained], row[space.trained :]
    return _moved(config, agreed, Initial.from_space(space, lambda _: start, rest), 1)


def _moved(config: Config, agreed: StudyAgreement, initial: Initial, samples: int) -> Traffic:
    server = with_statistics(config.method.method().server, initial)
    roster = Roster((samples,) * agreed.federation.places, config.largest_share)
    begun = server.start(initial, roster, config.seed)
    encoding = Encoding(agreed.run_study.wire, agreed.federation.places)
    sent = sum(_bytes(tensor, encoding) for tensor in server.uplink_form(begun).values())
    if terms := config.secure_aggregation:  # masked integers, whatever the wire
        sent = sum(t.numel() for t in server.uplink_form(begun).values()) * terms.bits // 8
    if agreed.evaluate:  # models come last, when all have been sent
        return Traffic(len(agreed.evaluate.models) * sent, sent, config.rounds)
    try:
        down = server.downlink(begun, (0,), roster, round_of(config, 1))
    except (NotImplementedError, RuntimeError):
        if initial.statistics.device.type != "meta":
            raise
        return Traffic(0, sent, config.rounds)
    return Traffic(
        sum(_rows(entry) * _bytes(entry.bank[0], encoding) for entry in down.values()),
        sent,
        config.rounds,
    )


def _epochs(config: Config) -> int:
    """The most passes of a silo over its training data in a run: one for each gradient, or step,
    that is taken.
    """
    asked = config.method.method().card.privacy.gradients
    return sum(g.per_batch * g.batches_in_all(config.passes, 1, config.rounds) for g in asked)


def _in_all(trials: Sequence[Traffic]) -> Traffic:
    """The rounds of all trials, each counted as heavy as the heaviest."""
    down, up = max(t.down for t in trials), max(t.up for t in trials)
    return Traffic(down, up, sum(t.rounds for t in trials))


def _rows(entry: Rows) -> int:
    """Number of rows a silo gets if its request fills all places; in the first round some may be
    empty.
    """
    return 1 if entry.index.dim() == 1 else entry.index.shape[1]


def _bytes(tensor: Tensor, encoding: Encoding) -> int:
    return encoding.narrow(torch.empty_like(tensor, device="meta")).nbytes
