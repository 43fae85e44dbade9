"""One silo's side of the federation: state in its own folder, a task in, an answer out, the same one however often.

The next task says which round's state the federation has used (``settled``): the silo goes on from there, whatever it
has trained since. A task that comes again finds its answer in the round's file.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pomona import personal
from pomona.bounds import plain
from pomona.config import Config
from pomona.deploy.audit import Audit
from pomona.deploy.federation import Federation
from pomona.deploy.silo import owndata
from pomona.deploy.silo.provenance import Provenance, names
from pomona.deploy.silo.rounds import Rounds
from pomona.deploy.silo.settings import SiloFile
from pomona.deploy.silo.shelf import Shelf
from pomona.deploy.trust.signing import Signer
from pomona.deploy.wire import (
    Answer,
    Figure,
    Greeting,
    Hello,
    Offer,
    Origin,
    Task,
    name,
    pack,
    row_statement,
    seal,
    unpack,
)
from pomona.errors import PomonaError, PrivacyError, ProtocolError
from pomona.federation.clients import Clients, Reply, Visit
from pomona.federation.durable import publish
from pomona.federation.loop import round_of
from pomona.federation.round import Roster
from pomona.methods.base import Downlink, Method, Rows
from pomona.partition.partition import ClientRows
from pomona.scenario import Scenario


@dataclass(frozen=True)
class Silo:
    """A silo's folder (its kit) and what lies in it."""

    folder: Path

    @cached_property
    def federation(self) -> Federation:
        """What was agreed."""
        return Federation.load(self.folder / "federation.toml")

    @cached_property
    def file(self) -> SiloFile:
        """The silo's own settings."""
        return SiloFile.load(self.folder / "silo.toml")

    @property
    def state(self) -> Path:
        """The folder of what never leaves."""
        return self.folder / "state"

    @cached_property
    def method(self) -> Method:
        """The method agreed on."""
        return self.federation.config().method.method()

    @property
    def _rounds(self) -> Rounds:
        return Rounds(self.state / "checkpoints")

    @cached_property
    def signer(self) -> Signer:
        """Who signs for this silo."""
        return Signer(None if self.federation.insecure else self.folder / "keys" / "silo.key")

    @cached_property
    def own(self) -> Scenario:
        """The silo's data, read and checked, as a scenario of one client."""
        return owndata.scenario(self.file, self.federation)

    def greet(self, hello: Hello) -> Greeting:
        """Who this is, and how many training samples it has."""
        self.require_agreed(hello.agreement)
        self._require_affordable()
        samples = len(self.own.partition.clients[0].train)
        return Greeting(
            agreement=hello.agreement, run=hello.run, nonce=hello.nonce, silo=self.file.name, samples=samples
        )

    def answer(self, task: Task, enclosed: Mapping[str, bytes]) -> tuple[Answer, bytes]:
        """Do what is asked, once.

        Args:
            task: from the server; nothing of it is believed.
            enclosed: rows by hash, as far as they were sent.

        Returns:
            The answer, and the uplink's bytes.

        Raises:
            PomonaError: the task is not what was agreed, or cannot be done here.
        """
        began = perf_counter()
        self.require_agreed(task.agreement)
        self._require_affordable()
        shelf = Shelf(self.state / "cache")
        missing = shelf.take(enclosed, task.needs)
        blank = Answer(
            agreement=task.agreement,
            run=task.run,
            number=task.number,
            silo=self.file.name,
            task=task.digest,
            samples=len(self.own.partition.clients[0].train),
        )
        if missing:
            return blank.model_copy(update={"missing": missing, "held": shelf.held}), b""
        given = self._rounds.answered(task) if task.trains else None
        if given:
            return given
        rows = {digest: shelf.row(digest) for digest in task.needs}
        down = self._received(task, rows)
        clients, reply = self._visit(task, down, rows)
        done = blank.model_copy(
            update={
                "loss": reply.loss,
                "scores": tuple(_figure(s) for s in reply.scores) if self.federation.share_scores else (),
                "fault": plain(reply.fault),
            }
        )
        uplink = b""
        if task.trains and not reply.fault:
            uplink = seal(reply.uplink, self.federation.wire, self.federation.places)
            most = self.file.max_upload_mb
            if most is not None and len(uplink) > most * 1e6:
                raise ProtocolError(f"an uplink of {len(uplink) / 1e6:.1f} MB, max_upload_mb in silo.toml is {most}")
            done = done.model_copy(update={"uplink": name(uplink), "rows": self._signatures(task, reply.uplink)})
        shelf.keep(task.needs)
        done = done.model_copy(update={"held": shelf.held, "seconds": perf_counter() - began})
        if task.trains and not reply.fault:
            self._rounds.keep(task, clients, done, uplink)
        self._note(task, clients, reply, len(uplink), sum(map(len, enclosed.values())))
        return done, uplink

    def require_agreed(self, agreement: str) -> None:
        """Raise ProtocolError unless the server means what this silo has agreed to, and go on meaning it."""
        mine, pinned = self.federation.agreement, self.state / "agreement.json"
        if not pinned.exists():
            publish(self.state, [json.dumps({"agreement": mine}).encode()], lambda _: pinned.name, ".agreement")
        first = json.loads(pinned.read_text())["agreement"]
        if mine != first:
            raise ProtocolError(
                "federation.toml is no longer what this silo agreed to when it first started; restore it, or, if the "
                "change is meant, remove state/agreement.json"
            )
        if agreement != mine:
            raise ProtocolError(
                "the server runs something else than this silo agreed to; compare federation.toml with the server's"
            )

    def _require_affordable(self) -> None:
        """Raise PrivacyError if the whole run would cost more privacy than this silo accepts."""
        most = self.file.accept_epsilon
        if self.own.config.privacy and most is not None and (worst := max(self.own.epsilons())) > most:
            raise PrivacyError(f"the run would cost epsilon {worst:.3g}, accept_epsilon in silo.toml is {most}")

    # What was received.

    def _received(self, task: Task, rows: Mapping[str, bytes]) -> Downlink:
        """The downlink, as this silo alone gets it; every row that is another silo's carries that silo's signature."""
        down, provenance = {}, Provenance(self.folder, self.federation)
        for key, offer in task.offers.items():
            if key in self.method.server.relays:
                initial = partial(self._initial, task, key)
                provenance.require(task, key, self.method.server.relays[key], rows, initial)
            unpacked = {j: unpack(rows[digest], offer, *self._form) for j, digest in offer.rows.items()}
            height = self.federation.places if offer.many else len(unpacked)
            if any(not 0 <= j < height for j in (*unpacked, *offer.index)):
                raise ProtocolError(f"{key} speaks of rows that there are not; check the server's version")
            # Rows that nobody offered stay untouched zeros, which take no memory.
            some = next(iter(unpacked.values()), torch.zeros(offer.width))
            bank = torch.zeros(height, offer.width, dtype=some.dtype)
            for j, row in unpacked.items():
                bank[j] = row
            index = torch.tensor(offer.index, dtype=torch.long)
            down[key] = Rows(bank, index.unsqueeze(0) if offer.many else index)
        return down

    def _initial(self, task: Task, key: str, j: int) -> bytes:
        """A place's row as the run starts."""
        server, scenario, place = self.method.server, self._seated(task), task.place
        roster, first = _roster(task, scenario.config), round_of(scenario.config, 1)
        begun = server.start(scenario.initial, roster, scenario.config.seed)
        return self._packed(server.down(begun, (place,), roster, first)[key].bank[j])

    # Training.

    def _visit(self, task: Task, down: Downlink, rows: Mapping[str, bytes]) -> tuple[Clients, Reply]:
        """Go on from the settled state; all that a silo evaluates it keeps."""
        scenario = self._seated(task)
        config, place, roster = scenario.config, task.place, _roster(task, scenario.config)
        objective = scenario.private(self.state / "private" / "dp") if config.privacy else scenario.objective()
        clients = Clients(
            self.method.client, objective, scenario.initial, ((place,),), config.seed, metric=scenario.choice.metric
        )
        if task.settled:
            self._rounds.restore(task.settled, clients, place, roster)
        else:
            form = Offer(many=False, index=(0,), dtype="F32", width=len(scenario.initial()), rows={})
            clients.begin((place,), roster, unpack(rows[task.start], form, *self._form) if task.start else None)
        visit = Visit(round_of(config, task.number), roster, (place,), task.trains, frozenset(task.watched), keep=True)
        (reply,) = clients.visit(visit, down)
        clients.commit((place,))
        return clients, reply

    def _seated(self, task: Task) -> Scenario:
        """The own data at the silo's place among all."""
        return seated(self.own, self.federation, task.place, names(self.federation, task))

    def _signatures(self, task: Task, uplink: Mapping[str, Tensor]) -> dict[str, str]:
        """This silo's word for each row that the server passes on."""
        made = {}
        for tensor in self.method.server.relays.values():
            origin = Origin(silo=self.file.name, round=task.number, tensor=tensor, signature="")
            about = row_statement(task.agreement, task.run, origin, name(self._packed(uplink[tensor])))
            made[tensor] = self.signer.sign("row", about)
        return made

    def _packed(self, row: Tensor) -> bytes:
        return pack(row, *self._form)

    @property
    def _form(self) -> tuple[Any, int]:
        return self.federation.wire, self.federation.places

    def _note(self, task: Task, clients: Clients, reply: Reply, up: int, down: int) -> None:
        """Write down what only this silo may know, and save the model that it is judged by."""
        line = {
            "round": task.number,
            "trained": task.trains,
            "names": {str(place): name for place, name in names(self.federation, task).items()},
            "loss": reply.loss,
            "scores": [_figure(s).model_dump() for s in reply.scores],
            "info": {k: v.tolist() for k, v in reply.info.items()},
            "seconds": reply.seconds,
            "bytes_down": down,
            "bytes_up": up,
            "fault": reply.fault,
        }
        with (self.state / "rounds.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        headline, models = self.method.card.headline, clients.models(task.place)
        if headline in models:
            (self.state / "models").mkdir(exist_ok=True)
            path = self.state / "models" / "personal.safetensors"
            fresh = path.with_suffix(".new")
            personal.save(fresh, models[headline], self._seated(task), task.place, headline)
            fresh.replace(path)


def seated(own: Scenario, federation: Federation, place: int, names: Mapping[int, str]) -> Scenario:
    """A scenario of all places of which this silo knows one."""
    nobody = ClientRows(*(np.empty(0, np.int64) for _ in range(3)))
    rows = [nobody] * federation.places
    rows[place] = own.partition.clients[0]
    known = {"data": own.config.data, "device": own.config.device}
    config: Config = federation.config().model_copy(update=known)
    titles = tuple(names.get(i, f"place {i}") for i in range(federation.places))
    return Scenario(config, own.dataset, replace(own.partition, clients=tuple(rows)), titles)


def _roster(task: Task, config: Config) -> Roster:
    """All places as the task counts their samples, and as the agreement lets them weigh."""
    return Roster(task.sizes, config.largest_share)


def _figure(score: Any) -> Figure:
    return Figure(**{k: getattr(score, k) for k in Figure.model_fields})


def scrubbed(fault: BaseException) -> str:
    """A fault as others may read it: its kind, and for one of ours the line, without paths."""
    if not isinstance(fault, PomonaError):
        return f"a {type(fault).__name__}; the silo's log has the rest"
    words = str(fault).split()
    return f"{fault.kind}: " + " ".join("(path)" if "/" in w.strip("'\"(),;:") else w for w in words)


def audited(silo: Silo, event: str, **fields: Any) -> None:
    """A line in the silo's own audit log."""
    with Audit(silo.state / "audit.jsonl") as audit:
        audit.write(event, **fields)
