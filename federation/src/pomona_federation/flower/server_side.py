"""The server of a plain Flower app: Pomona's round loop over Flower's grid."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from time import monotonic
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from flwr.serverapp.strategy import Result as PlainResult
from torch import Tensor, nn

from pomona.core.bounds import SPLITS
from pomona.core.errors import ConfigError, ProtocolError, QuorumError, listed
from pomona.federation.callbacks import NullCallback, RunNotes
from pomona.federation.round_plan import cohort_size
from pomona.lifecycle import close_record
from pomona.methods.base import MethodSettings
from pomona.metrics.nan_safe import mean_of_known
from pomona.record.result import Result
from pomona.record.rows import Evaluation, RoundRow
from pomona.user_training import UserFederation, user_config
from pomona_federation.flower import records
from pomona_federation.flower.grid_transport import GridExchange, GridTransport
from pomona_federation.flower.records import Introduction

logger = logging.getLogger("flwr")
LARGEST_SHARE = 0.5
"""Largest weight of one client in a mean, as in Pomona's own federations."""
ELSEWHERE = (
    "leave it out of strategy(...) and start(...): messages and means are the method's, and each "
    "client evaluates its own model in the message that trains, by the test of personalize; a "
    "global model is in result.arrays after start"
)
UNSUPPORTED = (
    "Pomona's methods in a plain Flower app: no consent to a study, no signatures, no ledger of "
    "privacy, no resuming after a restart; Pomona's own server and silos have these "
    "(docs/guides/federation.md)"
)


@dataclass
class FlowerResult(PlainResult):
    """Flower's result; ``personal`` is the run as Pomona records it, scores by client included."""

    personal: Result | None = None


def strategy(
    method: str | Mapping[str, Any] | MethodSettings, model: nn.Module, **settings: Any
) -> "PersonalStrategy":
    """Return a strategy for a ServerApp; every client calls ``personalize``.

    Args:
        method: a name of ``pomona methods``, or a section ``method``.
        model: of the form of the clients' models.
        settings: of ``Config``, as for ``pomona.personalize``, and Flower's ``fraction_train``,
            ``min_available_nodes`` (2), and ``min_train_nodes``: answers that a round needs, more
            than half of those asked if not set. ``largest_share``, of one client in a mean by
            samples, is 0.5 if not set, as a client reports its own number of samples.

    Raises:
        ConfigError: also for a method that cannot be had around a user's own training.
    """
    nodes = settings.pop("min_available_nodes", 2), settings.pop("min_train_nodes", None)
    if "fraction_train" in settings:
        settings["participation"] = settings.pop("fraction_train")
    if misplaced := sorted(settings.keys() & signature(FedAvg).parameters.keys()):
        raise ConfigError(f"{', '.join(misplaced)}: {ELSEWHERE}")
    if "rounds" in settings:
        raise ConfigError("rounds: give num_rounds to start")
    settings = {"largest_share": LARGEST_SHARE, "method": method, **settings}
    user_config(1, **settings)
    return PersonalStrategy(settings, model, *nodes)


@dataclass
class PersonalStrategy:
    """Runs a method by Flower's grid; ``start`` is called as that of Flower's strategies.

    Attributes:
        settings: of ``Config``.
        model: its values are replaced by the initial arrays.
        min_available_nodes, min_train_nodes: as for ``strategy``.
    """

    settings: dict[str, Any]
    model: nn.Module
    min_available_nodes: int
    min_train_nodes: int | None

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        **unused: Any,
    ) -> FlowerResult:
        """Run all rounds.

        Args:
            grid: as Flower gives it.
            initial_arrays: the values where training starts.
            num_rounds: of training; models are evaluated by the same messages.
            timeout: seconds for each exchange, and for nodes to connect.
            train_config: passed on with each message as "config", with "server-round".
            unused: other arguments of Flower's strategies, which are refused unless None.

        Returns:
            Flower's result. Metrics are means over clients; ``arrays`` has the global model of a
            method with one, and is empty otherwise.
        """
        if arguments := [name for name, value in unused.items() if value is not None]:
            raise ConfigError(f"{', '.join(arguments)}: {ELSEWHERE}")
        self.model.load_state_dict(initial_arrays.to_torch_state_dict())
        logger.warning(UNSUPPORTED)
        exchange = GridExchange(grid, timeout, train_config or ConfigRecord())
        federation, nodes = self._federation(self._introductions(exchange), num_rounds)
        transport = GridTransport(exchange, federation, nodes, initial_arrays)
        record, start_time = federation.record(), monotonic()
        cohort = cohort_size(federation.config, len(nodes))
        quorum = self.min_train_nodes or cohort // 2 + 1
        notes = RunNotes(_Log())
        roster = federation.roster
        if not roster.shares.equal(replace(roster, largest=1.0).shares):
            notes.add(f"largest_share: no client weighs more than {roster.largest:g}")
        loop = federation.loop(transport, record, notes, quorum)
        state = loop.run()
        return _result(federation, state, close_record(record, monotonic() - start_time))

    def _introductions(self, exchange: GridExchange) -> dict[int, Introduction]:
        """Return who is connected and can take part, by node; the log names the others.

        Raises QuorumError for too few.
        """
        exchange.wait_for(self.min_available_nodes)
        hello = {records.HELLO: ConfigRecord()}
        introductions = dict[int, Introduction]()
        for node, content in exchange.exchange(dict.fromkeys(exchange.nodes(), hello)).items():
            try:
                introductions[node] = self._introduction(content)
            except ProtocolError as fault:
                logger.warning("node %d takes no part: %s", node, fault)
        if len(introductions) < self.min_available_nodes:
            raise QuorumError(
                f"{len(introductions)} clients can take part, {self.min_available_nodes} are "
                "needed; the log has the others' errors: call personalize(...) in @app.train() of "
                "the ClientApp, before anything is read from the message's arrays"
            )
        return introductions

    def _introduction(self, content: RecordDict) -> Introduction:
        """Read who a client is. Raises ProtocolError, also for a model of another form, and for no
        training samples.
        """
        introduction, layout = records.read(content, Introduction), records.layout_of(self.model)
        if not introduction.samples.get("train"):
            raise ProtocolError("it has no training samples")
        if difference := records.difference(introduction.model, layout):
            raise ProtocolError(f"its model: {difference}; give both the same")
        return introduction

    def _federation(
        self, answers: Mapping[int, Introduction], rounds: int
    ) -> tuple[UserFederation, tuple[int, ...]]:
        """Return the clients and the nodes that they are on, in the order of their parts of the
        data if Flower numbers these, else of their nodes' numbers.
        """
        parts = {a.partition: node for node, a in answers.items() if a.partition is not None}
        numbered = len(parts) == len(answers)
        if len(parts) < sum(a.partition is not None for a in answers.values()):
            logger.warning(
                "several nodes have the same partition-id, and may train on the same data; give "
                "each SuperNode a number of its own by --node-config"
            )
        order = (
            dict(sorted(parts.items())) if numbered else {node: node for node in sorted(answers)}
        )
        nodes = tuple(order.values())
        names = tuple(f"{'client' if numbered else 'node'} {number}" for number in order)
        sizes = {s: tuple(answers[node].samples.get(s, 0) for node in nodes) for s in SPLITS}
        config = user_config(len(nodes), rounds=rounds, **self.settings)
        return UserFederation(config, self.model, names, sizes), nodes


class _Log(NullCallback):
    """Writes notes and rounds to Flower's log."""

    def on_round_end(self, row: RoundRow, evaluations: Sequence[Evaluation]) -> None:
        """Write a round's mean loss and scores."""
        loss = mean_of_known(row.loss)
        figures = [] if loss is None else [f"train_loss {loss:.4g}"]
        figures += [
            f"{e.metric} {e.mean:.4g} ({e.split}, {e.model} model of round {e.round})"
            for e in evaluations
            if e.mean is not None
        ]
        logger.info("round %d, clients %d: %s", row.round, len(row.cohort), ", ".join(figures))

    def on_note(self, text: str) -> None:
        """Write a note."""
        logger.info("%s", text)


def _result(federation: UserFederation, state: Any, run: Result) -> FlowerResult:
    """Return a run as Flower's result."""
    result, headline = FlowerResult(personal=run), federation.config.method.method().card.headline
    for row in run.rounds:
        loss = mean_of_known(row.loss)
        if loss is not None:
            result.train_metrics_clientapp[row.round] = MetricRecord({"train_loss": loss})
    last = "none without test and a test loader in personalize"
    for evaluation in run.curve(*headline):
        figures = {run.metric.name: evaluation.value, "loss": evaluation.loss}
        means = {name: mean_of_known(values) for name, values in figures.items()}
        metrics = MetricRecord()
        metrics.update({name: mean for name, mean in means.items() if mean is not None})
        result.evaluate_metrics_clientapp[evaluation.round] = metrics
        last = f"round {evaluation.round}: {dict(metrics)}"
    logger.info("result.evaluate_metrics_clientapp has means over clients; %s", last)
    server = federation.method.server
    if server.global_model and isinstance(state, Tensor):
        values = federation.state_dict(state)
        result.arrays = records.arrays(values)
        if buffers := sorted(values.keys() & dict(federation.module.named_buffers()).keys()):
            logger.warning(
                "result.arrays has the initial arrays' %s, as buffers stay with each client: set "
                "statistics of BatchNorm on data before you evaluate this model",
                listed(buffers),
            )
    else:
        logger.info("result.arrays is empty: the models are the clients' own, and stay with them")
    return result
