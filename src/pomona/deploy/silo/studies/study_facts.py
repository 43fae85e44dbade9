"""What a study would do at this silo and what it would cost, found out on the silo's own data before anything runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from pomona.core.round import Roster
from pomona.deploy.agreement import Federation
from pomona.deploy.messages.tensor_bytes import Encoding
from pomona.deploy.silo.data.silo_scenario import at_place, worst_cost
from pomona.deploy.silo.data.survey_preflight import readable
from pomona.deploy.silo.privacy.privacy_budget import Cost, PrivacyBudget
from pomona.deploy.silo.studies.silo_in_study import Silo
from pomona.federation.batchnorm_statistics import accompanied
from pomona.federation.run_checks import caution, cautions
from pomona.federation.schedule import round_of
from pomona.methods.base import Rows
from pomona.scenario import Scenario

ANY_RUN = ""


@dataclass(frozen=True)
class Traffic:
    """Bytes of models that a silo receives and sends in a round, without headers, and the rounds."""

    down: int
    up: int
    rounds: int

    @property
    def mb_a_round(self) -> float:
        """Megabytes both ways."""
        return (self.down + self.up) / 1e6

    @property
    def mb_in_all(self) -> float:
        """Megabytes both ways in all rounds."""
        return self.mb_a_round * self.rounds

    def __str__(self) -> str:
        each = f"{self.down / 1e6:.3g} MB down and {self.up / 1e6:.3g} MB up a round"
        return f"{each}, {self.mb_in_all:.3g} MB in {self.rounds} rounds"


@dataclass(frozen=True)
class StudyText:
    """What a study says, whatever data a silo has.

    Attributes:
        method, model: their names; "" of a survey, which has none.
        task: SHA-256 of its section task; "" of a survey.
        files: SHA-256 of first weights and of own code, by what people call them.
        acknowledge: names of the releases past the noise that it acknowledges.
        rounds: of all trials.
    """

    method: str = ""
    model: str = ""
    task: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    acknowledge: tuple[str, ...] = ()
    rounds: int = 0

    @classmethod
    def of(cls, federation: Federation) -> "StudyText":
        """That of a federation with the study's terms. Raises ConfigError for terms that cannot be run."""
        if federation.survey:
            return cls()
        config = federation.config()
        weights = {"first weights": sha256} if (sha256 := config.model.init_sha256) else {}
        return cls(
            config.method.name,
            config.model.name,
            federation.task.sha256,
            weights | federation.own_code,
            config.privacy.acknowledge if config.privacy else (),
            sum(terms.config().rounds for terms in federation.trials() or (federation,)),
        )


@dataclass(frozen=True)
class StudyFacts:
    """What a study is on a silo's data.

    Attributes:
        cost: of the whole study at worst.
        total: of all studies on the same data with this one.
        traffic: of a silo.
    """

    cost: Cost
    total: Cost
    traffic: Traffic


def facts(silo: Silo) -> StudyFacts:
    """Find them out. Raises PomonaError where the data or the network do not fit the study."""
    total = PrivacyBudget(silo.folder).total_with(silo.claim(ANY_RUN), silo.file.data)
    if asked := silo.federation.survey:
        readable(silo.file.data, asked)
        return StudyFacts(silo.claim(ANY_RUN).worst(), total, Traffic(0, 0, 0))
    trials = silo.federation.trials() or (silo.federation,)
    return StudyFacts(worst_cost(silo.own), total, _in_all([traffic(silo.own, terms) for terms in trials]))


def remarks(silo: Silo) -> list[str]:
    """What a simulation on the own data would say before it starts: of data, network, method and settings.

    Raises PomonaError as ``facts``.
    """
    runs = [terms.config() for terms in silo.federation.trials() or (silo.federation,)]
    return list(dict.fromkeys([*cautions(silo.own), *filter(None, map(caution, runs))]))


def traffic(own: Scenario, federation: Federation) -> Traffic:
    """What goes to and fro in a round with all places taken, from the method itself."""
    known = at_place(own, federation, 0, {})
    config, samples = known.config, len(own.partition.clients[0].train)
    server = accompanied(config.method.method().server, known.initial)
    roster = Roster((samples,) * federation.places, config.largest_share)
    begun = server.start(known.initial, roster, config.seed)
    encoding = Encoding(federation.wire, federation.places)
    down = server.down(begun, (0,), roster, round_of(config, 1))
    received = sum(_rows(entry) * _bytes(entry.bank[0], encoding) for entry in down.values())
    sent = sum(_bytes(tensor, encoding) for tensor in server.expects(begun).values())
    if federation.evaluate:  # the models come last, when all have been sent
        received = len(federation.evaluate.models) * sent
    return Traffic(received, sent, config.rounds)


def _in_all(trials: Sequence[Traffic]) -> Traffic:
    """The rounds of all trials, each taken for as heavy as the heaviest."""
    down, up = max(t.down for t in trials), max(t.up for t in trials)
    return Traffic(down, up, sum(t.rounds for t in trials))


def _rows(entry: Rows) -> int:
    """How many rows a silo gets where its request fills all places; in the first round some may be empty."""
    return 1 if entry.index.dim() == 1 else entry.index.shape[1]


def _bytes(tensor: Tensor, encoding: Encoding) -> int:
    return encoding.narrow(torch.empty_like(tensor, device="meta")).nbytes
