"""A silo's side of the federation: a task in, an answer out, its state in its own folder.

The next task names the round whose state the federation has used (``settled``): the silo continues
from there, whatever it has trained since. A repeated task gets the answer stored with the rounds.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from time import perf_counter
from typing import Any

from torch import Tensor

from pomona import personal
from pomona.core.errors import CheckpointError, ConfigError, ProtocolError
from pomona.federation import client_queries
from pomona.federation.client import ClientRuntime
from pomona.federation.exchange import ClientRequest, Reply
from pomona.federation.recorded_models import ModelChoice
from pomona.federation.round_plan import round_of
from pomona.federation.scoring import IntervalOf, Scoring, no_interval
from pomona.methods.base import Downlink
from pomona.objective.dataset import clustered, groups_of
from pomona.objective.private import PrivateObjective
from pomona.scenario import Scenario
from pomona.tasks.scores import confidence
from pomona_federation.audit_log import restored_from
from pomona_federation.messages.message_bodies import (
    Answer,
    EntryForm,
    Hello,
    HelloReply,
    RowOrigin,
    SumRequest,
    Task,
    row_statement,
)
from pomona_federation.messages.tensor_bytes import Encoding, new_secret, sha256
from pomona_federation.silo import history, own_models
from pomona_federation.silo.masked_part import MaskedPart
from pomona_federation.silo.noise_stores import charge, open_own
from pomona_federation.silo.outgoing_filter import disclosed
from pomona_federation.silo.own_models import starting_model
from pomona_federation.silo.privacy_budget import PrivacyBudget
from pomona_federation.silo.round_store import RoundStore, RowCache
from pomona_federation.silo.row_provenance import Provenance, names
from pomona_federation.silo.silo_in_study import Silo, audited
from pomona_federation.silo.silo_scenario import (
    InitialDownlink,
    at_member,
    private_objective,
    roster_of,
)
from pomona_federation.silo.task_policy import TaskLog, TaskPolicy


@dataclass(frozen=True)
class CheckedTask:
    """A task that this silo agrees to do, with what it includes; nothing after it is checked again.

    Attributes:
        base: the round of this silo that it continues from.
        rows: the bytes of its rows, by hash.
        downlink: the rows as tensors.
        start: the model (d,) that a newcomer starts from; None for the run's initial one.
    """

    task: Task
    base: int
    rows: dict[str, bytes]
    downlink: Downlink
    start: Tensor | None


@dataclass(frozen=True)
class VisitResult:
    """What a visit leaves.

    Attributes:
        reply: as the server gets it.
        fields: of the answer.
        uplink: the bytes to keep with the round: the uplink or, for a sum, the model's change.
        secret: the private key for the sum; "" without one.
        norm: of the change before it was clipped, with secure aggregation.
    """

    reply: Reply
    fields: dict[str, Any]
    uplink: bytes
    secret: str
    norm: float | None


@dataclass(frozen=True)
class ClientApp:
    """Answers the tasks of a silo's study."""

    silo: Silo

    @property
    def _policy(self) -> TaskPolicy:
        return TaskPolicy(self.silo)

    @property
    def _rounds(self) -> RoundStore:
        return RoundStore(self.silo.state / "checkpoints")

    def greet(self, hello: Hello) -> HelloReply:
        """Identify this silo, with its number of training samples."""
        self._policy.require_agreed(hello.agreement, hello.run)
        self._policy.note_place(hello)
        self.silo.require_affordable(hello.run)
        return HelloReply(
            agreement=hello.agreement,
            run=hello.run,
            nonce=hello.nonce,
            silo=self.silo.file.name,
            samples=self._samples,
        )

    def answer(self, task: Task, enclosed: Mapping[str, bytes]) -> tuple[Answer, bytes]:
        """Do a task, once.

        Nothing is written before the task has been checked, with everything it includes.

        Args:
            task: from the server; nothing in it is trusted.
            enclosed: rows by hash, those that were sent.

        Returns:
            The answer, and the uplink's bytes.

        Raises:
            PomonaError: the task is not what was agreed, or cannot be done here.
        """
        start_time = perf_counter()
        initial, entry_forms = self._check(task, enclosed)
        cache = RowCache(self.silo.state / "cache")
        if previous := self._rounds.answered(task):
            answer = previous[0].model_copy(update={"held": cache.digests})
            return self._outgoing(task, answer, previous[1])
        TaskLog(self._task_log).require_new(task)
        base = self._base(task)
        if missing := cache.missing(task.required_rows, enclosed):
            return Answer(**self._about(task), missing=missing, held=cache.digests), b""
        checked = self._include(task, base, cache.rows(task.required_rows, enclosed), initial)
        self._accept(checked, entry_forms)
        clients, reply = self._visit(checked)
        result = self._result(checked, clients, reply)
        cache.replace(checked.rows)
        # The duration of private steps reveals how many samples were drawn.
        seconds = 0.0 if self.silo.local.config.privacy else round(perf_counter() - start_time, 1)
        answer = Answer(**result.fields, held=cache.digests, seconds=seconds)
        self._settle(checked, clients, result, answer, sum(map(len, enclosed.values())))
        return self._outgoing(task, answer, result.uplink)

    def _check(
        self, task: Task, enclosed: Mapping[str, bytes]
    ) -> tuple[InitialDownlink, dict[str, EntryForm]]:
        """Require that the silo has agreed to such a task and can afford it, by its text alone.

        Returns the first round's downlink and the form of each entry.
        """
        self._policy.require(task, self._provenance, lambda: self._samples)
        initial = InitialDownlink(task, self.silo.method.server, lambda: self._scenario(task))
        self._policy.require_forms(task, entry_forms := self._policy.entry_forms(initial))
        if self.silo.terms.config.secure_aggregation:
            MaskedPart.require_common(task)
        self.silo.require_affordable(task.run)
        self._require_room(enclosed)
        return initial, entry_forms

    def _include(
        self, task: Task, base: int, rows: dict[str, bytes], initial: InitialDownlink
    ) -> CheckedTask:
        """The task with its rows, each from the silo that it is said to be of."""
        downlink = {key: self._encoding.entry(entry, rows) for key, entry in task.downlink.items()}
        start = self._encoding.start(task.start, rows, self._width)
        self._provenance.require(
            task,
            self.silo.method.server.relays,
            rows,
            lambda key, j: initial.row(key, j, self._encoding),
        )
        return CheckedTask(task, base, rows, downlink, start)

    def _accept(self, checked: CheckedTask, entry_forms: dict[str, EntryForm]) -> None:
        """Reserve the run's cost, pin the agreement and record the task, durably, before any of it
        is done.
        """
        task, base = checked.task, checked.base
        self.silo.reserve(task.run)
        self._policy.pin(task, entry_forms, self.silo.local.partition.sha256)
        TaskLog(self._task_log).note(task)
        if base != task.settled:
            rounds = {"round": task.number, "settled": task.settled, "continued": base}
            audited(self.silo, "readmitted", **rounds)

    def _result(self, checked: CheckedTask, clients: ClientRuntime, reply: Reply) -> VisitResult:
        """What a visit leaves: the answer's fields, and the bytes to keep with the round."""
        task, fields = checked.task, self._about(checked.task)
        if self.silo.local.config.privacy:
            epsilon = client_queries.epsilon(clients, task.place)
            PrivacyBudget(self.silo.folder).note_spent(task.agreement, task.run, epsilon)
        reply, uplink, secret, norm = self._storable(task, reply, checked.downlink)
        fields |= {} if checked.base == task.settled else {"continued": checked.base}
        fields |= disclosed(reply, self.silo.terms.run_study.shares)
        if uplink and not secret:
            fields |= {"uplink": sha256(uplink), "rows": self._signatures(task, reply.uplink)}
        return VisitResult(reply, fields, uplink, secret, norm)

    def _settle(
        self,
        checked: CheckedTask,
        clients: ClientRuntime,
        result: VisitResult,
        answer: Answer,
        bytes_down: int,
    ) -> None:
        """Keep the visit's record, its model, and last its round with the answer."""
        self._note(checked, clients, result, bytes_down)
        if result.reply.fault:
            return
        # only now: if the model could not be saved, the task is done again
        if checked.task.trains:
            stored = answer, result.uplink, result.secret
            self._rounds.save(checked.task, checked.base, clients, *stored)
        else:
            self._rounds.keep_evaluation(checked.task, checked.base, clients, answer)

    def _about(self, task: Task) -> dict[str, Any]:
        """The fields that every answer to a task has."""
        return {
            "agreement": task.agreement,
            "run": task.run,
            "number": task.number,
            "silo": self.silo.file.name,
            "task": task.digest,
            "samples": self._samples,
        }

    @property
    def _task_log(self) -> Path:
        return self.silo.state / "asked.json"

    def _storable(
        self, task: Task, reply: Reply, downlink: Downlink
    ) -> tuple[Reply, bytes, str, float | None]:
        """A visit's reply, and the bytes to keep with it: its uplink or, with secure aggregation,
        its change of the model; then a new secret for the sum, and the change's norm.
        """
        if not task.trains or reply.fault:
            return reply, b"", "", None
        if not (masked_part := MaskedPart.for_silo(self.silo)):
            return reply, self._uplink(reply), "", None
        reply, change, norm = masked_part.change(reply, task, downlink)
        self._require_sendable(masked_part.size(change))
        return reply, change, new_secret() if change else "", norm

    def _outgoing(self, task: Task, answer: Answer, uplink: bytes) -> tuple[Answer, bytes]:
        """An answer as it is sent: with secure aggregation a key for the sum in place of the
        uplink, which is the silo's change of the model and stays here.
        """
        if not task.trains or not (masked_part := MaskedPart.for_silo(self.silo)):
            return answer, uplink
        secret = self._rounds.secret(task)
        return answer.model_copy(
            update={"mask": masked_part.key(task, secret) if secret else None}
        ), b""

    def masked_part(self, request: SumRequest) -> tuple[Answer, bytes]:
        """This silo's masked part in the sum of a round.

        Raises:
            PomonaError: the request is not what was agreed, or cannot be done here.
        """
        masked_part, provenance = MaskedPart.for_silo(self.silo), self._provenance
        if not masked_part:
            raise ProtocolError(
                "a sum was requested, but the study does not use secure aggregation"
            )
        self._policy.require(request.task, provenance, lambda: self._samples)
        log = TaskLog(self._task_log)
        answer, uplink = masked_part.answer(request, self._rounds, log, provenance)
        self._require_sendable(len(uplink))
        return answer, uplink

    @property
    def _provenance(self) -> Provenance:
        return Provenance(self.silo)

    def _uplink(self, reply: Reply) -> bytes:
        """The bytes of an uplink. Raises ConfigError for more than this silo sends."""
        uplink = self._encoding.pack_uplink(reply.uplink)
        self._require_sendable(len(uplink))
        return uplink

    def _require_sendable(self, size: int) -> None:
        limit = self.silo.file.max_upload_mb
        if limit is not None and size > limit * 1e6:
            raise ConfigError(
                f"an uplink of {size / 1e6:.1f} MB; max_upload_mb in silo.toml is {limit}"
            )

    @property
    def _samples(self) -> int:
        return len(self.silo.local.partition.clients[0].train)

    @cached_property
    def _width(self) -> int:
        """Number of a model's parameters."""
        return len(self.silo.local.initial())

    def _require_room(self, enclosed: Mapping[str, bytes]) -> None:
        """Raise ConfigError for more bytes than this silo accepts, and ProtocolError for more than
        any agreed task can include.
        """
        size, n_places = sum(map(len, enclosed.values())), self.silo.terms.federation.places
        limit = self.silo.file.max_download_mb
        if limit is not None and size > limit * 1e6:
            raise ConfigError(
                f"a task with {size / 1e6:.1f} MB; max_download_mb in silo.toml is {limit}"
            )
        # one row per place, and some for all
        if size > (largest := 8 * (self._width + n_places) * (n_places + 8)):
            raise ProtocolError(
                f"a task with {size / 1e6:.1f} MB; the agreement needs at most "
                f"{largest / 1e6:.1f} MB"
            )

    def _base(self, task: Task) -> int:
        """The round that a task continues from, as ``RoundStore.base``.

        Raises CheckpointError, also if a private study is to start again without its ledger.
        """
        base = self._rounds.base(task, lambda: restored_from(self.silo.folder / "state"))
        if task.settled and not base and self.silo.terms.config.privacy:
            raise CheckpointError(
                "its state of this private study is missing, and with it the record of the "
                "privacy spent; it takes no further part in the study"
            )
        return base

    def _visit(self, checked: CheckedTask) -> tuple[ClientRuntime, Reply]:
        """Continue from the state after round ``base``; the silo keeps everything that it
        evaluates.
        """
        task, base = checked.task, checked.base
        silo, scenario = self.silo, self._scenario(task)
        config, member, roster = scenario.config, task.place, roster_of(task, scenario.config)
        stores = silo.state / "private" / "dp"
        objective = (
            private_objective(scenario, stores, member, silo.file, task.run)
            if config.privacy
            else scenario.objective()
        )
        metric = scenario.choice.metric
        choice = ModelChoice(config.keep, silo.method.card.headline, metric)
        arguments = (silo.method.client, objective, scenario.initial, ((member,),), config.seed)
        scoring = Scoring(metric, config.threshold_target, self._interval)
        clients = ClientRuntime(*arguments, scoring=scoring, choice=choice)
        if isinstance(objective, PrivateObjective):
            self._rounds.agree(clients, member)
            open_own(stores, objective, member)
            charge(stores, objective, scenario, member, silo.reserve_in_all)
            store = objective.key_store(member)
            PrivacyBudget(silo.folder).require_ledger(task.agreement, store.epsilon())
            store.within(silo.reserved)
        if base:
            self._rounds.restore(base, clients, member, roster)
        else:
            joining_roster = replace(roster, sizes=task.joined or task.sizes)
            clients.add_clients(
                (member,),
                joining_roster,
                starting_model(silo.folder, silo.terms, silo.local, member, checked.start),
            )
        self._rounds.restore_own_best(task, base, clients)
        visit = ClientRequest(
            round_of(config, task.number),
            roster,
            (member,),
            task.trains,
            frozenset(task.watched),
            keep_models=True,
        )
        (reply,) = clients.visit(visit, checked.downlink)
        clients.commit((member,))
        return clients, reply

    @property
    def _interval(self) -> IntervalOf:
        """Confidence intervals of scores: in an evaluation, which runs once, not in each
        round.
        """
        local = self.silo.local
        groups = groups_of(local.dataset)
        if not self.silo.terms.evaluate or ("test", 0) in clustered(groups, local.partition):
            return no_interval
        metric, task, seed = local.choice.metric.name, local.task, local.config.seed
        return lambda answers, client: confidence(metric, answers, task, seed=seed, client=client)

    def _scenario(self, task: Task) -> Scenario:
        """The silo's own data at its place among all."""
        return at_member(self.silo.local, self.silo.terms, task.place, names(self.silo.terms, task))

    def _signatures(self, task: Task, uplink: Mapping[str, Tensor]) -> dict[str, str]:
        """This silo's signature for each row that the server relays."""
        signatures = {}
        for tensor in self.silo.method.server.relays.values():
            origin = RowOrigin(
                silo=self.silo.file.name, round=task.number, tensor=tensor, signature=""
            )
            statement = row_statement(
                task.agreement, task.run, origin, sha256(self._encoding.pack(uplink[tensor]))
            )
            signatures[tensor] = self.silo.signer.sign("row", statement)
        return signatures

    @property
    def _encoding(self) -> Encoding:
        return Encoding(self.silo.terms.run_study.wire, self.silo.terms.federation.places)

    def _note(
        self, checked: CheckedTask, clients: ClientRuntime, result: VisitResult, bytes_down: int
    ) -> None:
        """Record what only this silo may know, and save its headline model."""
        task, base, reply = checked.task, checked.base, result.reply
        line = {
            "round": task.number,
            "trained": task.trains,
            "settled": base,
            "task": task.question,
            "names": {str(member): name for member, name in names(self.silo.terms, task).items()},
            "loss": reply.loss,
            "scores": [asdict(s) for s in reply.scores],
            "diverged": sorted({f"{s.model} on {s.split}" for s in reply.scores if s.broken}),
            "info": {k: v.tolist() for k, v in reply.info.items()},
            "seconds": reply.seconds,
            "bytes_down": bytes_down,
            "bytes_up": len(result.uplink),
            "fault": reply.fault,
            **({} if result.norm is None else {"norm": result.norm}),
        }
        history.append(self.silo.state, line)
        headline = self.silo.method.card.headline
        models = client_queries.models(clients, task.place)
        if headline in models:
            path = self.silo.state / "models" / "personal.safetensors"
            personal.save_frozen(path.parent, self._scenario(task).network.frozen)
            personal.save(path, models[headline], self._scenario(task), task.place, headline)
            visit = task.model_copy(update={"settled": base})
            own_models.write(path, self._scenario(task), self.silo.terms, visit, clients, reply)
