"""Messages of a plain Flower app's server to its clients: the round loop's transport over Flower's
grid.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic, sleep
from typing import Any, NoReturn

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from pomona.core.bounds import plain
from pomona.core.errors import ConfigError, ProtocolError, QuorumError, listed
from pomona.core.round import Roster
from pomona.federation.exchange import Arrival, ClientRequest, Reply, with_name
from pomona.methods.base import Downlink
from pomona.metrics.metric import Score
from pomona.user_training import SETTINGS, UserFederation
from pomona_federation.flower import records
from pomona_federation.flower.records import Answer, Task
from pomona_federation.server.round_messages import possible_scores

logger = logging.getLogger("flwr")


@dataclass
class GridExchange:
    """Flower's grid, with the user's configuration of training."""

    grid: Grid
    timeout: float
    config: ConfigRecord

    def nodes(self) -> list[int]:
        """Return the nodes that are connected."""
        return sorted(self.grid.get_node_ids())

    def wait_for(self, number: int) -> None:
        """Wait until so many nodes are connected. Raises QuorumError after ``timeout``."""
        start_time = monotonic()
        while len(self.nodes()) < number:
            if monotonic() - start_time > self.timeout:
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

    grid: GridExchange
    federation: UserFederation
    nodes: tuple[int, ...]
    initial: ArrayRecord
    run: str = "flower"
    committed: dict[int, int] = field(default_factory=dict)
    _number: int = 0
    _initialised: set[int] = field(default_factory=set)
    _ignored: set[int] = field(default_factory=set)
    _refusing: set[int] = field(default_factory=set)

    def add_clients(self, ids: tuple[int, ...], roster: Roster, row: Tensor | None) -> None:
        """Do nothing: clients start with their first task."""

    def visit(self, visit: ClientRequest, downlink: Downlink) -> list[Arrival]:
        """Exchange with the clients of a request that are connected. Raises ConfigError."""
        self._number, self._refusing = visit.round.number, set()
        connected = set(self.grid.nodes())
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
        contents = self.grid.exchange(outgoing, self._number)
        self._initialised |= {ids[node] for node in contents}
        arrivals = [
            self._arrival(i, contents[node], visit, _bytes_of(outgoing[node]))
            for node, i in ids.items()
            if node in contents
        ]
        self._require_willing(arrivals)
        return sorted(arrivals, key=lambda a: positions[a.reply.client])

    def _require_willing(self, arrivals: Sequence[Arrival]) -> None:
        """Raise ConfigError if every answer is a fault that no other round would mend."""
        if arrivals and len(self._refusing) == len(arrivals):
            raise ConfigError(
                f"{arrivals[0].reply.fault} (settings: of strategy(...), code: of personalize)"
            )

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
        first = {} if client in self._initialised else {records.INITIAL: self.initial}
        rows = records.arrays(_sent_rows(task, downlink, k))
        return {records.KEY: records.written(task), records.ARRAYS: rows, **first}

    def _arrival(
        self, client: int, content: RecordDict, visit: ClientRequest, bytes_down: int
    ) -> Arrival:
        """Return a client's answer for the round loop, which admits it or not."""
        name, unread, scores = self.federation.names[client], None, list[Score]()
        uplink = dict[str, Tensor]()
        answer = Answer(number=visit.round.number, samples=visit.roster.sizes[client])
        try:
            answer = records.read(content, Answer)
            scores = self._scores(client, answer, visit)
            if visit.trains and not answer.fault:
                record = content.array_records.get(records.ARRAYS)
                uplink = records.tensors(record, visit.expects)
        except ProtocolError as problem:
            unread = problem
        if answer.refused:
            self._refusing.add(client)
        fault = with_name(answer.fault, client, name) if answer.fault else ""
        reply = Reply(client, uplink, {}, answer.loss, scores, answer.seconds, fault)
        return Arrival(
            reply, self.run, answer.number, answer.samples, bytes_down, _bytes_of(content), unread
        )

    def _scores(self, client: int, answer: Answer, visit: ClientRequest) -> list[Score]:
        """Return the scores of an answer. Raises ProtocolError for one that cannot be."""
        federation = self.federation
        samples = max(sizes[client] for sizes in federation.sizes.values())
        card = federation.config.method.method().card
        return possible_scores(answer.scores, visit.watched, card, federation.metric, samples)


def _sent_rows(task: Task, downlink: Downlink, k: int) -> dict[str, Tensor]:
    """Return the rows of the k-th client's downlink, by their names in a message."""
    row_of: dict[str, Tensor] = {}
    for name, rows in downlink.items():
        keys = records.row_keys(name, rows, task.downlink[name], task.client)
        single = rows.index.dim() == 1
        row_of |= {key: rows.bank[int(rows.index[k]) if single else j] for key, j in keys.items()}
    return row_of


def _bytes_of(content: Mapping[str, Any]) -> int:
    array_records = [record for record in content.values() if isinstance(record, ArrayRecord)]
    return sum(len(array.data) for record in array_records for array in record.values())
