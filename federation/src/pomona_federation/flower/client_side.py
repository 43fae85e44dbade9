"""A client of a plain Flower app: the method's client half around the app's own training.

Between rounds the client's state is in Flower's ``Context``. A round's state is used once the next
task says that the server has used the round.
"""

from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any

import torch
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from torch import Tensor, nn

from pomona import methods
from pomona.core.bounds import SPLITS, without_paths
from pomona.core.errors import ConfigError, PomonaError, ProtocolError
from pomona.federation.client import ClientRuntime
from pomona.federation.exchange import ClientRequest
from pomona.federation.round_plan import round_of
from pomona.methods.base import Downlink, Rows
from pomona.objective.user_code import Loaders, UserCode, samples_in
from pomona.objective.user_step import UserObjective
from pomona.user_training import UserFederation, splits_of, user_config
from pomona_federation.flower import records
from pomona_federation.flower.records import Answer, Introduction, Task

STATE, PENDING, ROUNDS = "pomona.state", "pomona.pending", "pomona.rounds"
BUFFER = "buffer."


def personalize(
    message: Message,
    context: Context,
    model: nn.Module,
    loaders: Any,
    *,
    step: Callable[[nn.Module, Any], Any] | None = None,
    train: Callable[[nn.Module, Any], Any] | None = None,
    test: Callable[[nn.Module, Any], Any] | None = None,
) -> Message:
    """Do what a ``strategy`` asks of this client, by your own training; for ``@app.train()``.

    After it the model has this client's personal values, if they were evaluated in this round.

    Args:
        message: as Flower gives it.
        context: as Flower gives it; keeps the client's state.
        model: of the same form as the server's.
        loaders: a loader of training batches, or loaders by split: train, validation, test.
        step: (model, batch) -> loss, or
        train: (model, loader) -> loss, your own training, as for ``pomona.personalize``.
        test: (model, loader) -> loss; (loss, metric); or both by name.

    Returns:
        The reply, which says why if the method or the task cannot be done here.

    Raises:
        ProtocolError: a message that no ``strategy`` sent.
    """
    code, splits = UserCode(step, train, test), splits_of(loaders, "this client")
    samples = {split: samples_in(splits[split], split) for split in SPLITS if split in splits}
    if records.HELLO in message.content:
        partition = context.node_config.get("partition-id")
        introduction = Introduction(
            partition=partition if isinstance(partition, int) else None,
            samples=samples,
            model=records.layout_of(model),
        )
        return _reply(message, introduction, {"num-examples": samples["train"]})
    start_time, uplink = perf_counter(), dict[str, Tensor]()
    task = records.read(message.content, Task)
    answer = Answer(number=task.number, samples=samples["train"])
    try:
        client = _Client(task, message.content, context, model)
        answer, uplink = client.answered(code, splits, answer)
    except PomonaError as fault:
        refused = isinstance(fault, ConfigError)
        answer = answer.model_copy(update={"fault": without_paths(str(fault)), "refused": refused})
    answer = answer.model_copy(update={"seconds": round(perf_counter() - start_time, 1)})
    loss = {} if answer.loss is None else {"train_loss": answer.loss}
    return _reply(message, answer, {"num-examples": samples["train"], **loss}, uplink)


def _reply(
    message: Message,
    body: Answer | Introduction,
    metrics: Mapping[str, float],
    uplink: Mapping[str, Tensor] | None = None,
) -> Message:
    content = RecordDict(
        {
            records.ARRAYS: records.arrays(uplink or {}),
            "metrics": MetricRecord(dict(metrics)),
            records.KEY: records.written(body),
        }
    )
    return Message(content, reply_to=message)


class _Client:
    """One client of a run, for one task."""

    def __init__(self, task: Task, content: RecordDict, context: Context, model: nn.Module) -> None:
        self.task, self.content, self.state = task, content, context.state
        name = str(task.settings.get("method", {}).get("name", ""))
        if not methods.is_registered(name):
            raise ConfigError(
                f"method {name[:100]!r} is not installed here; give your own an entry point of the "
                f"group {methods.ENTRY_POINTS}"
            )
        config = user_config(len(task.sizes), **task.settings)
        if not 1 <= task.number <= config.rounds + 1 or task.client >= len(task.sizes):
            raise ProtocolError("the task is of a round or a client that the run does not have")
        self._load_initial(model)
        names = tuple(f"client {i}" for i in range(len(task.sizes)))
        self.federation = UserFederation(config, model, names, {"train": task.sizes})
        _ = self.federation.initial  # before any training changes the model

    def answered(
        self, code: UserCode, splits: Loaders, answer: Answer
    ) -> tuple[Answer, dict[str, Tensor]]:
        """Do the task; returns the completed answer, and the uplink."""
        task, federation, i = self.task, self.federation, self.task.client
        config, model = federation.config, federation.module
        objective = UserObjective(model, code, {i: splits}, config.rule, config.method.name)
        runtime = federation.runtime(objective, ((i,),))
        self._resume(runtime, objective)
        request = ClientRequest(
            round_of(config, task.number),
            federation.roster,
            (i,),
            task.trains,
            frozenset(task.watched),
            task.keep,
            task.best,
        )
        downlink = self._downlink(request)
        (reply,) = runtime.visit(request, downlink)
        if not reply.fault:
            runtime.commit((i,))
            self._store(runtime, objective)
        self._show(runtime, objective)
        fields = {"loss": reply.loss, "scores": tuple(reply.scores), "fault": reply.fault}
        return answer.model_copy(update=fields), reply.uplink

    def _load_initial(self, model: nn.Module) -> None:
        """Give the model the run's initial values, which come with a client's first task; what a
        strategy before it in the same ServerApp has left is not of this run.
        """
        if (record := self.content.array_records.get(records.INITIAL)) is not None:
            for key in (STATE, PENDING, ROUNDS):
                self.state.pop(key, None)
            self.state[records.INITIAL] = record
        initial = self.state.array_records.get(records.INITIAL)
        if initial is None:
            raise ProtocolError(
                "this client has lost the state of the run, as its node was restarted; start the "
                "run again"
            )
        model.load_state_dict(records.tensors(initial, model.state_dict()))

    def _resume(self, runtime: ClientRuntime, objective: UserObjective) -> None:
        """Continue from the last round that the server has used."""
        i, state, committed = self.task.client, self.state, self.task.committed
        rounds = dict(state.config_records.get(ROUNDS, ConfigRecord({STATE: 0, PENDING: 0})))
        pending = state.array_records.get(PENDING)
        if pending is not None and rounds[PENDING] == committed:
            state[STATE], rounds[STATE] = pending, committed
        state.pop(PENDING, None)
        state[ROUNDS] = ConfigRecord({**rounds, PENDING: 0})
        stored = state.array_records.get(STATE)
        if rounds[STATE] != committed:
            raise ProtocolError(
                f"this client does not have its state after round {committed}, as its node was "
                "restarted; start the run again"
            )
        roster = self.federation.roster
        if stored is None:
            runtime.add_clients((i,), roster, None)
            return
        tensors = {name: torch.from_numpy(array.numpy()) for name, array in stored.items()}
        buffers = {name: t for name, t in tensors.items() if name.startswith(BUFFER)}
        objective.buffers[i] = {n.removeprefix(BUFFER): t for n, t in buffers.items()}
        runtime.restore((i,), {n: t for n, t in tensors.items() if n not in buffers}, roster)

    def _store(self, runtime: ClientRuntime, objective: UserObjective) -> None:
        """Keep the state after this task, to be used once the server has used the round."""
        i = self.task.client
        buffers = {f"{BUFFER}{name}": t for name, t in objective.buffers[i].items()}
        tensors = runtime.store.stored(i) | runtime.store.copies.stored((i,)) | buffers
        self.state[PENDING if self.task.trains else STATE] = records.arrays(tensors)
        if self.task.trains:
            rounds = dict(self.state.config_records[ROUNDS])
            self.state[ROUNDS] = ConfigRecord({**rounds, PENDING: self.task.number})

    def _downlink(self, request: ClientRequest) -> Downlink:
        """Return what was received, which must have the form of what this server half sends."""
        federation, record = self.federation, self.content.array_records.get(records.ARRAYS)
        server, initial, seed = federation.method.server, federation.initial, federation.config.seed
        server_state = server.start(initial, federation.roster, seed)
        expected = server.downlink(server_state, request.ids, federation.roster, request.round)
        index, client = self.task.downlink, self.task.client
        if index.keys() != expected.keys():
            raise ProtocolError(f"the task has {sorted(index)}, not {sorted(expected)}")
        examples: dict[str, Tensor] = {}
        for name, rows in expected.items():
            ids = index[name]
            if rows.index.dim() == 1 and ids != (0,):
                raise ProtocolError(f"the task's {name} is not one row")
            if len(ids) > len(self.task.sizes) or max(ids, default=0) >= len(self.task.sizes):
                raise ProtocolError(f"the task's {name} is of clients that the run does not have")
            examples |= dict.fromkeys(records.row_keys(name, rows, ids, client), rows.bank[0])
        received = records.tensors(record, examples)
        return {
            name: _rows(name, rows, index[name], received, self.task)
            for name, rows in expected.items()
        }

    def _show(self, runtime: ClientRuntime, objective: UserObjective) -> None:
        """Give the user's model this client's values, or the initial ones if it has none."""
        i, headline = self.task.client, self.federation.config.method.method().card.headline
        row = runtime.store.recorded.last(i).get(headline, self.federation.initial())
        objective.show(row.clone(), i)


def _rows(
    name: str, example: Rows, index: tuple[int, ...], received: Mapping[str, Tensor], task: Task
) -> Rows:
    """Return an entry of the downlink from the rows that were sent."""
    if example.index.dim() == 1:
        return Rows(received[name].unsqueeze(0), torch.zeros(1, dtype=torch.long))
    # rows that were not sent stay zeros, which take up no memory
    bank = torch.zeros(len(task.sizes), example.bank.shape[1], dtype=example.bank.dtype)
    for key, j in records.row_keys(name, example, index, task.client).items():
        bank[j] = received[key]
    return Rows(bank, torch.tensor([index], dtype=torch.long))
