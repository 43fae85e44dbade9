"""A silo's side of the federation: a task in, an answer out, its state in its own folder.

The next task says which round's state the federation has used (``settled``): the silo goes on from there, whatever it
has trained since. A task that comes again finds its answer beside the rounds.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from math import inf
from pathlib import Path
from time import perf_counter
from typing import Any

from torch import Tensor

from pomona import personal
from pomona.core.errors import ConfigError, PrivacyError, ProtocolError
from pomona.deploy.agreement import Federation
from pomona.deploy.audit import Audit
from pomona.deploy.message_bodies import Answer, Hello, HelloReply, RowOrigin, Task, row_statement
from pomona.deploy.pki.signatures import Signer
from pomona.deploy.silo import history, own_card
from pomona.deploy.silo.consent_terms import ConsentTerms
from pomona.deploy.silo.judged_model import judged_model
from pomona.deploy.silo.known_studies import KnownStudies, KnownStudy
from pomona.deploy.silo.lost_rounds import charge
from pomona.deploy.silo.outgoing_filter import disclosed
from pomona.deploy.silo.privacy_budget import Claim, Cost, PrivacyBudget
from pomona.deploy.silo.round_store import RoundStore, RowCache
from pomona.deploy.silo.row_provenance import Provenance, names
from pomona.deploy.silo.settings import SiloFile
from pomona.deploy.silo.silo_scenario import (
    InitialDownlink,
    at_place,
    own_scenario,
    private_objective,
    roster_of,
    worst_cost,
)
from pomona.deploy.silo.task_policy import TaskLog, TaskPolicy
from pomona.deploy.tensor_bytes import Encoding, sha256
from pomona.federation.client_runtime import ClientRuntime, Surety, unsure
from pomona.federation.exchange import ClientRequest, Reply
from pomona.federation.model_choice import ModelChoice
from pomona.federation.schedule import round_of
from pomona.methods.base import Downlink, Method
from pomona.scenario import Scenario
from pomona.tasks.scores import confidence


@dataclass(frozen=True)
class Silo:
    """A silo's folder (its kit) and what lies in it, for one study: None for the one that the kit came with."""

    folder: Path
    study: KnownStudy | None = None
    trial: int | None = None  # of a study that is a search

    def working_for(self, agreement: str) -> "Silo":
        """This silo in the study of that hash, if it has accepted it; else in the kit's own.

        Raises ProtocolError for a study that waits for its administrator's word, or that was declined.
        """
        if known := KnownStudies(self.folder).find(agreement):
            known.require_accepted()
            return Silo(self.folder, known, known.trial(agreement))
        return self

    @classmethod
    def in_study(cls, folder: Path, which: str) -> "Silo":
        """The silo of a kit in the study of a name or the first digits of its hash; "" for the kit's own.

        Raises ConfigError where there is none.
        """
        if which:
            return cls(folder, KnownStudies(folder).named(which))
        silo = cls(folder)
        if not silo.federation.comes_with_study:
            raise ConfigError("this kit came with no study of its own; name one of `pomona silo studies` with --study")
        return silo

    @cached_property
    def federation(self) -> Federation:
        """What was agreed; section run is checked where it is needed, so that a refusal can be signed."""
        standing = Federation.read(self.folder / "federation.toml")
        return KnownStudies(self.folder).agreed(standing, self.study, self.trial) if self.study else standing

    @cached_property
    def file(self) -> SiloFile:
        """The silo's own settings, with the data that the study asks for."""
        return SiloFile.load(self.folder / "silo.toml").viewed(self.federation.view)

    @property
    def state(self) -> Path:
        """The study's folder of what never leaves."""
        return KnownStudies(self.folder).home(self.study, self.trial) if self.study else self.folder / "state"

    @cached_property
    def method(self) -> Method:
        """The method agreed on."""
        return self.federation.config().method.method()

    @property
    def policy(self) -> TaskPolicy:
        """Policy for the tasks this silo accepts."""
        return TaskPolicy(self.state, self.federation, self.file.name, self._terms)

    @property
    def _terms(self) -> ConsentTerms:
        """The terms under which the study was accepted; a person accepts without any, as does who starts a kit."""
        return (self.study.terms if self.study else None) or ConsentTerms()

    @property
    def _most_epsilon(self) -> float | None:
        """The most that all studies on the study's data may cost together."""
        said = (self.file.accept_epsilon_total, self._terms.accept_epsilon_total)
        return min((most for most in said if most is not None), default=None)

    @property
    def _rounds(self) -> RoundStore:
        return RoundStore(self.state / "checkpoints")

    @cached_property
    def signer(self) -> Signer:
        """Signs with this silo's key."""
        return Signer(None if self.federation.insecure else self.folder / "keys" / "silo.key")

    @cached_property
    def own(self) -> Scenario:
        """The silo's data, read and checked, as a scenario of one client."""
        return own_scenario(self.file, self.federation)

    def greet(self, hello: Hello) -> HelloReply:
        """Identify this silo, with its number of training samples."""
        self.policy.require_agreed(hello.agreement, hello.run)
        self.require_affordable(hello.run)
        return HelloReply(
            agreement=hello.agreement, run=hello.run, nonce=hello.nonce, silo=self.file.name, samples=self._samples
        )

    def answer(self, task: Task, enclosed: Mapping[str, bytes]) -> tuple[Answer, bytes]:
        """Do what is asked, once. Nothing is written before the task has been judged, with all that it brings.

        Args:
            task: from the server; nothing of it is believed.
            enclosed: rows by hash, as far as they were sent.

        Returns:
            The answer, and the uplink's bytes.

        Raises:
            PomonaError: the task is not what was agreed, or cannot be done here.
        """
        began = perf_counter()
        provenance = Provenance(self.folder, self.state, self.federation)
        self.policy.require_agreed(task.agreement, task.run)
        provenance.require_newcomers(task)
        self.policy.require(task, self._samples)
        initial = InitialDownlink(task, self.method.server, lambda: self._scenario(task))
        self.policy.require_forms(task, forms := self.policy.forms(initial))
        self.require_affordable(task.run)
        self._require_room(enclosed)
        cache, log = RowCache(self.state / "cache"), TaskLog(self.state / "asked.json")
        if given := self._rounds.answered(task):
            return given[0].model_copy(update={"held": cache.held}), given[1]
        log.require_new(task)
        about: dict[str, Any] = {"agreement": task.agreement, "run": task.run, "number": task.number}
        about |= {"silo": self.file.name, "task": task.digest, "samples": self._samples}
        if missing := cache.missing(task.needs, enclosed):
            return Answer(**about, missing=missing, held=cache.held), b""
        rows = cache.rows(task.needs, enclosed)
        down = {key: self._encoding.entry(entry, rows) for key, entry in task.downlink.items()}
        start = self._encoding.start(task.start, rows, self._width)
        provenance.require(task, self.method.server.relays, rows, lambda key, j: initial.row(key, j, self._encoding))
        self.reserve(task.run)
        self.policy.pin(task, forms, self.own.partition.sha256)
        log.note(task)
        clients, reply = self._visit(task, down, start)
        if self.own.config.privacy:
            PrivacyBudget(self.folder).note_spent(task.agreement, task.run, clients.spent(task.place))
        about |= disclosed(reply, self.federation.shares)
        uplink = b""
        if task.trains and not reply.fault:
            uplink = self._encoding.pack_uplink(reply.uplink)
            most = self.file.max_upload_mb
            if most is not None and len(uplink) > most * 1e6:
                raise ProtocolError(f"an uplink of {len(uplink) / 1e6:.1f} MB, max_upload_mb in silo.toml is {most}")
            about |= {"uplink": sha256(uplink), "rows": self._signatures(task, reply.uplink)}
        cache.keep(rows)
        # How long private steps took tells how many samples were drawn.
        seconds = 0.0 if self.own.config.privacy else round(perf_counter() - began, 1)
        answer = Answer(**about, held=cache.held, seconds=seconds)
        if task.trains and not reply.fault:
            self._rounds.keep(task, clients, answer, uplink)
        self._note(task, clients, reply, len(uplink), sum(map(len, enclosed.values())))
        if not task.trains and not reply.fault:  # only now: after a kill before the model was saved it is done again
            self._rounds.keep_evaluation(task, answer)
        return answer, uplink

    @property
    def _samples(self) -> int:
        return len(self.own.partition.clients[0].train)

    @cached_property
    def _width(self) -> int:
        """Numbers of a model."""
        return len(self.own.initial())

    def _require_room(self, enclosed: Mapping[str, bytes]) -> None:
        """Raise ProtocolError for more bytes than this silo takes, or than any task of what was agreed can bring."""
        size, places = sum(map(len, enclosed.values())), self.federation.places
        most = self.file.max_download_mb
        if most is not None and size > most * 1e6:
            raise ProtocolError(f"a task with {size / 1e6:.1f} MB, max_download_mb in silo.toml is {most}")
        if size > (largest := 8 * (self._width + places) * (places + 8)):  # a row of each place, and some of all
            raise ProtocolError(f"a task with {size / 1e6:.1f} MB; what was agreed fits into {largest / 1e6:.1f} MB")

    def require_affordable(self, run: str) -> None:
        """Raise PrivacyError if a whole run would cost more privacy than this silo accepts, for it or in all.

        ``run``: its id; "" for any, before there is one.
        """
        most = None if self.federation.survey else self.file.accept_epsilon
        if most is not None and self.own.config.privacy and (worst := max(self.own.epsilons())) > most:
            raise PrivacyError(f"the run would cost epsilon {worst:.3g}, accept_epsilon in silo.toml is {most}")
        PrivacyBudget(self.folder).require(self.claim(run), self.file.data, self._most_epsilon)

    def claim(self, run: str) -> Claim:
        """What a run of the study asks of this silo's privacy budget; "" for any run. A survey has no noise."""
        worst = partial(Cost, inf) if self.federation.survey else lambda: worst_cost(self.own)
        return Claim(self.federation.study, self.federation.agreement, run, worst)

    def reserve(self, run: str) -> None:
        """Reserve what a run costs at worst, once. Raises PrivacyError as ``require_affordable``."""
        PrivacyBudget(self.folder).reserve(self.claim(run), self.file.data, self._most_epsilon)

    # Training.

    def _visit(self, task: Task, down: Downlink, start: Tensor | None) -> tuple[ClientRuntime, Reply]:
        """Go on from the settled state; all that a silo evaluates it keeps."""
        scenario = self._scenario(task)
        config, place, roster = scenario.config, task.place, roster_of(task, scenario.config)
        stores = self.state / "private" / "dp"
        objective = private_objective(scenario, stores, place, self.file) if config.privacy else scenario.objective()
        metric = scenario.choice.metric
        choice = ModelChoice(config.keep, self.method.card.headline, metric)
        parts = (self.method.client, objective, scenario.initial, ((place,),), config.seed)
        clients = ClientRuntime(*parts, metric=metric, choice=choice, surety=self._surety)
        if config.privacy:
            self._rounds.agree(clients, place)
            charge(stores, objective, scenario, place)
        if task.settled:
            self._rounds.restore(task.settled, clients, place, roster)
        else:
            clients.begin((place,), roster, judged_model(self.folder, self.federation, self.own, place, start))
        visit = ClientRequest(
            round_of(config, task.number), roster, (place,), task.trains, frozenset(task.watched), keep=True
        )
        (reply,) = clients.visit(visit, down)
        clients.commit((place,))
        return clients, reply

    @property
    def _surety(self) -> Surety:
        """How sure a score is: told in an evaluation, of which there is one, and not of each round."""
        if not self.federation.evaluate:
            return unsure
        metric, kind, seed = self.own.choice.metric.name, self.own.task, self.own.config.seed
        return lambda answers, client: confidence(metric, answers, kind, seed=seed, client=client)

    def _scenario(self, task: Task) -> Scenario:
        """The own data at the silo's place among all."""
        return at_place(self.own, self.federation, task.place, names(self.federation, task))

    def _signatures(self, task: Task, uplink: Mapping[str, Tensor]) -> dict[str, str]:
        """This silo's word for each row that the server passes on."""
        made = {}
        for tensor in self.method.server.relays.values():
            origin = RowOrigin(silo=self.file.name, round=task.number, tensor=tensor, signature="")
            about = row_statement(task.agreement, task.run, origin, sha256(self._encoding.pack(uplink[tensor])))
            made[tensor] = self.signer.sign("row", about)
        return made

    @property
    def _encoding(self) -> Encoding:
        """Encoding of tensors in messages."""
        return Encoding(self.federation.wire, self.federation.places)

    def _note(self, task: Task, clients: ClientRuntime, reply: Reply, up: int, down: int) -> None:
        """Write down what only this silo may know, and save the model that it is judged by."""
        line = {
            "round": task.number,
            "trained": task.trains,
            "names": {str(place): name for place, name in names(self.federation, task).items()},
            "loss": reply.loss,
            "scores": [asdict(s) for s in reply.scores],
            "info": {k: v.tolist() for k, v in reply.info.items()},
            "seconds": reply.seconds,
            "bytes_down": down,
            "bytes_up": up,
            "fault": reply.fault,
        }
        history.append(self.state, line)
        headline, models = self.method.card.headline, clients.models(task.place)
        if headline in models:
            (self.state / "models").mkdir(exist_ok=True)
            personal.save_frozen(self.state / "models", self._scenario(task).frozen)
            path = self.state / "models" / "personal.safetensors"
            fresh = path.with_suffix(".new")
            personal.save(fresh, models[headline], self._scenario(task), task.place, headline)
            fresh.replace(path)
            own_card.write(path, self._scenario(task), self.federation, task, clients, reply)


def audited(silo: Silo, event: str, **fields: Any) -> None:
    """A line in the silo's own audit log."""
    about = {"study": silo.study.study.name} if silo.study else {}
    with Audit(silo.folder / "state" / "audit.jsonl") as audit:
        audit.write(event, **about, **fields)
