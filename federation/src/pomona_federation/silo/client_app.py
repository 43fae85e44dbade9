"""A silo's side of the federation: a task in, an answer out, its state in its own folder.

The next task names the round whose state the federation has used (``settled``): the silo continues
from there, whatever it has trained since. A repeated task gets the answer stored with the rounds.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from time import perf_counter
from typing import Any

from torch import Tensor

from pomona.core.errors import CheckpointError, ConfigError, ProtocolError
from pomona.federation import client_queries
from pomona.federation.client import ClientRuntime
from pomona.federation.exchange import Reply
from pomona.methods.base import Downlink
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
from pomona_federation.silo.masked_part import MaskedPart
from pomona_federation.silo.outgoing_filter import disclosed
from pomona_federation.silo.privacy_budget import PrivacyBudget
from pomona_federation.silo.round_store import RoundStore, RowCache
from pomona_federation.silo.row_provenance import Provenance
from pomona_federation.silo.silo_in_study import Silo, audited
from pomona_federation.silo.silo_scenario import InitialDownlink
from pomona_federation.silo.task_policy import TaskLog, TaskPolicy
from pomona_federation.silo.task_visit import CheckedTask, VisitResult, note, scenario_of, visit


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
            samples=self.silo.samples,
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
        self._tasks.require_new(task)
        base = self._base(task)
        if missing := cache.missing(task.required_rows, enclosed):
            return Answer(**self._about(task), missing=missing, held=cache.digests), b""
        checked = self._include(task, base, cache.rows(task.required_rows, enclosed), initial)
        self._accept(checked, entry_forms)
        clients, reply = visit(self.silo, self._rounds, checked)
        result = self._result(checked, clients, reply, sum(map(len, enclosed.values())))
        cache.replace(checked.rows)
        # The duration of private steps reveals how many samples were drawn.
        seconds = 0.0 if self.silo.local.config.privacy else round(perf_counter() - start_time, 1)
        answer = Answer(**result.fields, held=cache.digests, seconds=seconds)
        self._settle(checked, clients, result, answer)
        return self._outgoing(task, answer, result.uplink)

    def _check(
        self, task: Task, enclosed: Mapping[str, bytes]
    ) -> tuple[InitialDownlink, dict[str, EntryForm]]:
        """Require that the silo has agreed to such a task and can afford it, by its text alone.

        Returns the first round's downlink and the form of each entry.
        """
        self._policy.require(task, self._provenance)
        scenario = partial(scenario_of, self.silo, task)
        initial = InitialDownlink(task, self.silo.method.server, scenario)
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
        initial_row = partial(initial.row, encoding=self._encoding)
        self._provenance.require(task, self.silo.method.server.relays, rows, initial_row)
        return CheckedTask(task, base, rows, downlink, start)

    def _accept(self, checked: CheckedTask, entry_forms: dict[str, EntryForm]) -> None:
        """Reserve the run's cost, pin the agreement and record the task, durably, before any of it
        is done.
        """
        task, base = checked.task, checked.base
        self.silo.reserve(task.run)
        self._policy.pin(task, entry_forms, self.silo.local.partition.sha256)
        self._tasks.note(task)
        if base != task.settled:
            rounds = {"round": task.number, "settled": task.settled, "continued": base}
            audited(self.silo, "readmitted", **rounds)

    def _result(
        self, checked: CheckedTask, clients: ClientRuntime, reply: Reply, bytes_down: int
    ) -> VisitResult:
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
        return VisitResult(reply, fields, uplink, secret, norm, bytes_down)

    def _settle(
        self, checked: CheckedTask, clients: ClientRuntime, result: VisitResult, answer: Answer
    ) -> None:
        """Keep the visit's record, its model, and last its round with the answer."""
        note(self.silo, checked, clients, result)
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
            "samples": self.silo.samples,
        }

    @property
    def _tasks(self) -> TaskLog:
        return TaskLog(self.silo.state / "asked.json")

    def _storable(
        self, task: Task, reply: Reply, downlink: Downlink
    ) -> tuple[Reply, bytes, str, float | None]:
        """A visit's reply, and the bytes to keep with it: its uplink or, with secure aggregation,
        its change of the model; then a new secret for the sum, and the change's norm.
        """
        if not task.trains or reply.fault:
            return reply, b"", "", None
        if not (masked_part := MaskedPart.for_silo(self.silo)):
            uplink = self._encoding.pack_uplink(reply.uplink)
            self._require_sendable(len(uplink))
            return reply, uplink, "", None
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
        mask = masked_part.key(task, secret) if secret else None
        return answer.model_copy(update={"mask": mask}), b""

    def masked_part(self, request: SumRequest) -> tuple[Answer, bytes]:
        """This silo's masked part in the sum of a round.

        Raises:
            PomonaError: the request is not what was agreed, or cannot be done here.
        """
        if not (masked_part := MaskedPart.for_silo(self.silo)):
            raise ProtocolError("a sum was requested, but the study has no secure aggregation")
        self._policy.require(request.task, self._provenance)
        answer, uplink = masked_part.answer(request, self._rounds, self._tasks, self._provenance)
        self._require_sendable(len(uplink))
        return answer, uplink

    @property
    def _provenance(self) -> Provenance:
        return Provenance(self.silo)

    def _require_sendable(self, size: int) -> None:
        """Raise ConfigError for more bytes of an uplink than this silo sends."""
        limit = self.silo.file.max_upload_mb
        if limit is not None and size > limit * 1e6:
            raise ConfigError(
                f"an uplink of {size / 1e6:.1f} MB; max_upload_mb in silo.toml is {limit}"
            )

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

    def _signatures(self, task: Task, uplink: Mapping[str, Tensor]) -> dict[str, str]:
        """This silo's signature for each row that the server relays."""
        signatures, me = {}, self.silo.file.name
        for tensor in self.silo.method.server.relays.values():
            origin = RowOrigin(silo=me, round=task.number, tensor=tensor, signature="")
            digest = sha256(self._encoding.pack(uplink[tensor]))
            statement = row_statement(task.agreement, task.run, origin, digest)
            signatures[tensor] = self.silo.signer.sign("row", statement)
        return signatures

    @property
    def _encoding(self) -> Encoding:
        return Encoding(self.silo.terms.run_study.wire, self.silo.terms.federation.places)
