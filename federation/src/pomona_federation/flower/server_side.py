"""The server of a plain Flower app: Pomona's round loop over Flower's grid."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from inspect import signature
from time import monotonic, sleep
from typing import Any, NoReturn

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from flwr.serverapp.strategy import Result as PlainResult
from torch import Tensor, nn

from pomona.core.bounds import SPLITS, plain
from pomona.core.errors import ConfigError, ProtocolError, QuorumError, listed
from pomona.core.round import Roster
from pomona.federation.callbacks import NullCallback, RunNotes
from pomona.federation.exchange import Arrival, ClientRequest, Reply
from pomona.federation.round_plan import cohort_size
from pomona.lifecycle import close_record
from pomona.methods.base import Downlink, MethodSettings
from pomona.metrics.metric import Metric, Score
from pomona.metrics.nan_safe import mean_of_known
from pomona.record.result import Result
from pomona.record.rows import Evaluation, RoundRow
from pomona.user_training import SETTINGS, UserFederation, user_config
from pomona_federation.flower import records
from pomona_federation.flower.client_side import row_keys
from pomona_federation.flower.records import Answer, Introduction, Task

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
        post = _Post(grid, timeout, train_config or ConfigRecord())
        federation, nodes = self._federation(self._introductions(post), num_rounds)
        transport = GridTransport(post, federation, nodes, initial_arrays)
        record, began = federation.record(), monotonic()
        cohort = cohort_size(federation.config, len(nodes))
        quorum = self.min_train_nodes or cohort // 2 + 1
        notes = RunNotes(_Log())
        roster = federation.roster
        if not roster.shares.equal(replace(roster, largest=1.0).shares):
            notes.add(f"largest_share: no client weighs more than {roster.largest:g}")
        loop = federation.loop(transport, record, notes, quorum)
        state = loop.run()
        return _result(federation, state, close_record(record, monotonic() - began))

    def _introductions(self, post: "_Post") -> dict[int, Introduction]:
        """Return who is connected, by node.

        Raises QuorumError for too few, and ConfigError for a model of another form.
        """
        post.wait_for(self.min_available_nodes)
        hello = {records.HELLO: ConfigRecord()}
        contents = post.exchange(dict.fromkeys(post.nodes(), hello))
        answers = {node: records.read(c, Introduction) for node, c in contents.items()}
        if len(answers) < self.min_available_nodes:
            raise QuorumError(
                f"{len(answers)} clients answered, {self.min_available_nodes} are needed; the log "
                "has the others' errors: call personalize(...) in @app.train() of the ClientApp, "
                "before anything is read from the message's arrays"
            )
        layout = records.layout_of(self.model)
        if unequal := [node for node, answer in answers.items() if answer.model != layout]:
            raise ConfigError(
                f"node {unequal[0]} has a model with other tensors than the server's; give both "
                "the same"
            )
        return answers

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


@dataclass
class _Post:
    """Flower's grid, with the user's configuration of training."""

    grid: Grid
    timeout: float
    config: ConfigRecord

    def nodes(self) -> list[int]:
        """Return the nodes that are connected."""
        return sorted(self.grid.get_node_ids())

    def wait_for(self, number: int) -> None:
        """Wait until so many nodes are connected. Raises QuorumError after ``timeout``."""
        began = monotonic()
        while len(self.nodes()) < number:
            if monotonic() - began > self.timeout:
                raise QuorumError(
                    f"{len(self.nodes())} nodes are connected after {self.timeout:g} s, {number} "
                    "are needed; start their SuperNodes, or lower min_available_nodes"
                )
            sleep(1)

    def exchange(
        self, contents: Mapping[int, Mapping[str, Any]], number: int = 0
    ) -> dict[int, RecordDict]:
        """Send records to nodes, and return the contents of their answers."""
        config = ConfigRecord(dict(self.config) | {"server-round": number})
        messages = [
            Message(
                RecordDict({"config": config, **content}),
                dst_node_id=node,
                message_type=MessageType.TRAIN,
                ttl=self.timeout,
            )
            for node, content in contents.items()
        ]
        answers: dict[int, RecordDict] = {}
        for reply in self.grid.send_and_receive(messages, timeout=self.timeout):
            if reply.has_error():
                logger.warning(
                    "node %d has no answer, and the log of its SuperNode says where: %s",
                    reply.metadata.src_node_id,
                    plain(str(reply.error.reason)),
                )
            elif reply.metadata.src_node_id in contents:
                answers.setdefault(reply.metadata.src_node_id, reply.content)
        return answers


@dataclass
class GridTransport:
    """Carries the round loop's messages over Flower's grid.

    Attributes:
        nodes: of the clients, in the order of their numbers.
        initial: the run's initial values, which go with a client's first task.
        committed: the last used round of each client.
    """

    post: _Post
    federation: UserFederation
    nodes: tuple[int, ...]
    initial: ArrayRecord
    run: str = "flower"
    committed: dict[int, int] = field(default_factory=dict)
    _number: int = 0
    _started: set[int] = field(default_factory=set)
    _ignored: set[int] = field(default_factory=set)

    def add_clients(self, ids: tuple[int, ...], roster: Roster, row: Tensor | None) -> None:
        """Do nothing: clients start with their first task."""

    def visit(self, visit: ClientRequest, downlink: Downlink) -> list[Arrival]:
        """Exchange with the clients of a request that are connected."""
        self._number = visit.round.number
        connected = set(self.post.nodes())
        if newcomers := connected - {*self.nodes} - self._ignored:
            self._ignored |= newcomers
            logger.warning(
                "%d nodes connected after the start of the run and take no part", len(newcomers)
            )
        ids = {self.nodes[i]: i for i in visit.ids if self.nodes[i] in connected}
        if absent := [self.federation.names[i] for i in visit.ids if i not in ids.values()]:
            logger.warning(
                "round %d: not connected: %s; see the SuperNode, or let fewer be enough by "
                "min_train_nodes of strategy(...)",
                self._number,
                listed(absent),
            )
        positions = {client: k for k, client in enumerate(visit.ids)}
        outgoing = {
            node: self._content(visit, downlink, positions[i], client=i) for node, i in ids.items()
        }
        contents = self.post.exchange(outgoing, self._number)
        self._started |= {ids[node] for node in contents}
        arrivals = [
            self._arrival(i, contents[node], visit, _bytes_of(outgoing[node]))
            for node, i in ids.items()
            if node in contents
        ]
        return sorted(arrivals, key=lambda a: positions[a.reply.client])

    def commit(self, ids: Sequence[int]) -> None:
        """Note which clients' rounds are used; their next task says so."""
        self.committed |= dict.fromkeys(ids, self._number)

    def save(self, *_: Any) -> NoReturn:
        """Refuse: a plain Flower app cannot be resumed."""
        raise ConfigError("a plain Flower app cannot be resumed; start a new run")

    def restore(self, *_: Any) -> NoReturn:
        """Refuse: a plain Flower app cannot be resumed."""
        raise ConfigError("a plain Flower app cannot be resumed; start a new run")

    def _content(
        self, visit: ClientRequest, downlink: Downlink, k: int, client: int
    ) -> dict[str, Any]:
        """Return the message to the k-th client that is asked."""
        config = self.federation.config
        tree = config.tree()
        task = Task(
            settings={key: tree[key] for key in SETTINGS & config.model_fields_set},
            number=visit.round.number,
            client=client,
            sizes=visit.roster.sizes,
            trains=visit.trains,
            watched=tuple(sorted(visit.watched)),
            keep=visit.keep_models,
            best=visit.best,
            committed=self.committed.get(client, 0),
            downlink={
                name: tuple(rows.index[k].tolist()) if rows.index.dim() == 2 else (0,)
                for name, rows in downlink.items()
            },
        )
        first = {} if client in self._started else {records.INITIAL: self.initial}
        rows = records.arrays(_sent_rows(task, downlink, k))
        return {records.KEY: records.written(task), records.ARRAYS: rows, **first}

    def _arrival(
        self, client: int, content: RecordDict, visit: ClientRequest, bytes_down: int
    ) -> Arrival:
        """Return a client's answer for the round loop, which admits it or not.

        Raises ConfigError for a fault that no other round would mend.
        """
        name, unread, scores = self.federation.names[client], None, list[Score]()
        uplink = dict[str, Tensor]()
        answer = Answer(number=visit.round.number, samples=visit.roster.sizes[client])
        try:
            answer = records.read(content, Answer)
            if answer.refused:
                raise ConfigError(
                    f"{name}: {answer.fault} (settings: of strategy(...), code: of personalize)"
                )
            scores = checked(answer, visit, self.federation.metric)
            if visit.trains and not answer.fault:
                record = content.array_records.get(records.ARRAYS)
                uplink = records.tensors(record, visit.expects)
        except ProtocolError as problem:
            unread = problem
        fault = f"{name}: {answer.fault}" if answer.fault else ""
        reply = Reply(client, uplink, {}, answer.loss, scores, answer.seconds, fault)
        return Arrival(
            reply, self.run, answer.number, answer.samples, bytes_down, _bytes_of(content), unread
        )


def checked(answer: Answer, visit: ClientRequest, metric: Metric) -> list[Score]:
    """Return the scores of an answer.

    Raises ProtocolError for one that was not asked for, comes twice, or is out of its range.
    """
    scores: dict[tuple[str, str, str], Score] = {}
    for score in answer.scores:
        if score.when not in visit.watched or score.key in scores:
            raise ProtocolError(f"a score of {score.model}, {score.when} was not asked for")
        if score.value is not None and not metric.low <= score.value <= metric.high:
            raise ProtocolError(f"a score of {score.value:.4g}, which no {metric.title} can be")
        scores[score.key] = score
    return list(scores.values())


def _sent_rows(task: Task, downlink: Downlink, k: int) -> dict[str, Tensor]:
    """Return the rows of the k-th client's downlink, by their names in a message."""
    row_of: dict[str, Tensor] = {}
    for name, rows in downlink.items():
        keys = row_keys(name, rows, task.downlink[name], task.client)
        single = rows.index.dim() == 1
        row_of |= {key: rows.bank[int(rows.index[k]) if single else j] for key, j in keys.items()}
    return row_of


def _bytes_of(content: Mapping[str, Any]) -> int:
    array_records = [record for record in content.values() if isinstance(record, ArrayRecord)]
    return sum(len(array.data) for record in array_records for array in record.values())


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
        trained = federation.space.unpack(state)
        values = federation.module.state_dict()
        result.arrays = records.arrays({**values, **trained})
        if buffers := sorted(values.keys() & dict(federation.module.named_buffers()).keys()):
            logger.warning(
                "result.arrays has the initial arrays' %s, as buffers stay with each client: set "
                "statistics of BatchNorm on data before you evaluate this model",
                listed(buffers),
            )
    else:
        logger.info("result.arrays is empty: the models are the clients' own, and stay with them")
    return result
