"""The federation's agreement, identical at all members: ``federation.toml``."""

import hashlib
import ipaddress
import json
import re
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Self

from pydantic import AfterValidator, Field, model_validator

from pomona.core.bounds import PLACES, ROUNDS
from pomona.core.errors import ConfigError
from pomona.core.optimizer import require_steps
from pomona.core.registry import code_sha256
from pomona.core.settings import Settings
from pomona.core.toml import Tree, named, read_file, validated
from pomona.deploy.task_settings import TaskSettings

if TYPE_CHECKING:
    from pomona.config import Config

PROTOCOL = 3  # of the messages between silos and server; another number is another agreement
RESERVED = {"authority", "server"}  # folders of the kits
SPARE = 4  # places for newcomers, unless set
SHARE = 0.5  # most that a silo weighs unless set: no more than all others together

# Keys of a run that every silo sets for itself, or that a federation sets in another place.
ELSEWHERE = {
    "data": "each silo names its own in silo.toml",
    "partition": "the silos are the partition",
    "clients": "set places",
    "membership": "silos are added and revoked by `pomona server`",
    "workers": "every silo is one process",
    "state_memory": "every silo keeps its state in its own folder",
    "device": "each silo sets its own in silo.toml",
    "rows_per_call": "every silo is one row",
    "checkpoint_every": "every round is committed",
}


class Address(NamedTuple):
    """A host and a port."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Of ``host:port`` or ``[IPv6]:port``. Raises ValueError."""
        host, _, port = text.rpartition(":")
        bare = host.removeprefix("[").removesuffix("]")
        if not (port.isascii() and port.isdecimal() and 0 < int(port) < 1 << 16):
            raise ValueError("give host:port with a port from 1 to 65535")
        if host.startswith("[") != (":" in bare) or host.startswith("[") != host.endswith("]"):
            raise ValueError("give an IPv6 address in brackets: [::1]:8443")
        labels = bare.split(".")
        name = all(p and p.replace("-", "").isalnum() and p.isascii() and p.strip("-") == p for p in labels)
        if not (_ip(bare) or (name and len(bare) < 254 and not labels[-1].isdecimal())):
            raise ValueError(f"{bare!r} is neither a host name nor an IP address")
        return cls(bare, int(port))

    @property
    def loopback(self) -> bool:
        """Whether only processes of the same machine reach it."""
        ip = _ip(self.host)
        return ip.is_loopback if ip else self.host == "localhost"

    @property
    def ip(self) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
        """The host as an IP address; None if it is a name."""
        return _ip(self.host)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _address(text: str) -> str:
    return str(Address.parse(text))


def _certificate(text: str) -> str:
    if not re.fullmatch(r"(ecdsa-sha2-nistp384-cert-v01@openssh\.com [A-Za-z0-9+/=]+)?", text):
        raise ValueError("no OpenSSH certificate; a federation of an older Pomona is to be provisioned again")
    return text


def _silo_name(name: str) -> str:
    if name in RESERVED:
        raise ValueError("is the name of a folder of the kits; choose another")
    return name


Name = Annotated[str, Field(pattern="^[a-z0-9][a-z0-9-]{0,39}$")]
SiloName = Annotated[Name, AfterValidator(_silo_name)]
Certificate = Annotated[str, Field(max_length=2000), AfterValidator(_certificate)]  # OpenSSH, one line; "" for none
HostPort = Annotated[str, AfterValidator(_address)]


class FoundingMember(Settings):
    """A member from the beginning."""

    name: SiloName = Field(description="its name, for good")
    key: Path | None = Field(None, description="public key that it brought, relative to the file; made for it if unset")


class Federation(Settings):
    """One federation: members, addresses, timeouts, and the run that all members agreed on."""

    name: Name = Field(description="name of the federation")
    server: HostPort = Field(description="host:port at which silos reach the server; its certificate names the host")
    bind: HostPort = Field(
        default_factory=lambda known: _everywhere(Address.parse(known["server"])),
        description="where the server listens; all interfaces, or loopback if the server is",
    )
    silo: tuple[FoundingMember, ...] = Field(
        min_length=1, max_length=PLACES, description="the members from the beginning"
    )
    quorum: int = Field(
        default_factory=lambda known: len(known["silo"]) // 2 + 1,
        ge=1,
        description="least silos whose uplinks make a round; more than half if unset",
    )
    deadline: float = Field(7200.0, gt=0, description="seconds a round may take")
    patience: float = Field(300.0, ge=0, description="seconds a round waits for a silo whose node is offline")
    wait: float = Field(600.0, ge=0, description="seconds to wait for the silos at the start")
    wire: Literal["fp32", "bf16"] = Field("fp32", description="numbers as they travel")
    places: int = Field(
        default_factory=lambda known: min(len(known["silo"]) + SPARE, PLACES),
        ge=1,
        le=PLACES,
        description="most silos ever; a newcomer takes a free place",
    )
    most_samples: int = Field(10_000_000, ge=1, lt=2**53, description="most samples that a silo may claim")
    share_scores: bool = Field(
        True, description="silos send their accuracy and loss on their own validation and test data"
    )
    insecure: bool = Field(False, description="no TLS and no keys; on loopback only")
    run: Tree = Field({}, description="keys of a run, without those that every silo sets for itself")
    task: TaskSettings

    @model_validator(mode="after")
    def _stands(self) -> Self:
        names = [silo.name for silo in self.silo]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"silo {twice[0]!r} is named twice; give every silo a name of its own")
        if self.places < len(names):
            raise ValueError(f"places = {self.places}, but there are {len(names)} silos; raise places")
        if self.quorum > self.places:
            raise ValueError(f"quorum = {self.quorum}, but there are {self.places} places; lower quorum")
        rounds = self.run.get("rounds")
        if isinstance(rounds, int) and rounds >= ROUNDS:
            raise ValueError(
                f"run.rounds = {rounds}, at most {ROUNDS - 1} have a number, with the closing visit; lower it"
            )
        if self.insecure and not self.loopback:
            raise ValueError(
                f"insecure = true, but server = {self.server} or bind = {self.bind} is reachable from other machines; "
                "take insecure out, or use 127.0.0.1 for both"
            )
        return self

    @classmethod
    def read(cls, path: Path) -> "Federation":
        """A ``federation.toml`` without a look at section run, which takes PyTorch to understand.

        The path in ``run.model.init`` is relative to the file.

        Raises ConfigError naming the file and every bad key or value.
        """
        try:
            federation = validated(cls, read_file(path))
        except ConfigError as fault:
            raise ConfigError(f"{path}: {fault}") from None
        model = federation.run.get("model")
        if isinstance(model, dict) and isinstance(model.get("init"), str):
            placed = {**model, "init": str(path.parent / model["init"])}
            return federation.model_copy(update={"run": {**federation.run, "model": placed}})
        return federation

    @classmethod
    def load(cls, path: Path) -> "Federation":
        """Read and check all of a ``federation.toml``. Raises ConfigError as ``read``, and for section run."""
        federation = cls.read(path)
        try:
            federation.config()
        except ConfigError as fault:
            raise ConfigError(f"{path}: {fault}") from None
        return federation

    @property
    def loopback(self) -> bool:
        """Whether only processes of the server's machine can reach the server."""
        return Address.parse(self.server).loopback and Address.parse(self.bind).loopback

    @property
    def largest_share(self) -> float:
        """The most that one silo weighs in a mean, as section run has it, or the federation's own default."""
        value = self.run.get("largest_share", SHARE)
        return float(value) if isinstance(value, int | float) and 0 < value <= 1 else SHARE

    def config(self) -> "Config":
        """The run, with a client for each place. Raises ConfigError for keys that do not belong into section run."""
        return self._config

    @cached_property
    def _config(self) -> "Config":
        from pomona.config import resolve
        from pomona.models.weights import initial
        from pomona.tasks import TASKS
        from pomona.tasks.default_metric import require

        misplaced = sorted(set(self.run) & set(ELSEWHERE))
        if misplaced:
            key = misplaced[0]
            raise ConfigError(f"run.{key} is no key of a federation: {ELSEWHERE[key]}")
        try:
            fixed = {"clients": self.places, "workers": 1, "checkpoint_every": 1}
            config = resolve({"largest_share": SHARE}, named(self.run), fixed)
            task = TASKS[self.task.targets]
            # No party sees all labels, so the default metric follows from the targets alone.
            metric = require(config.metric or task.usual, task)
            config = config.model_copy(update={"metric": metric.name})
            steps = config.method.method().card.steps
            require_steps(config.method.name, steps, config.momentum, config.optimizer)
            if given := initial(config.model):
                pinned = config.model.model_copy(update={"init_sha256": given.sha256})
                config = config.model_copy(update={"model": pinned})
        except ConfigError as fault:
            raise ConfigError(f"section run: {fault}") from None
        if config.method.method().share:
            raise ConfigError(
                f"run.method = {config.method.name!r} hands samples to every client; silos keep theirs: take another"
            )
        if config.stop.patience is not None and not self.share_scores:
            raise ConfigError(
                "run.stop.patience looks at the silos' scores on validation samples; set share_scores = true"
            )
        if config.keep == "best":
            raise ConfigError(
                "run.keep = 'best' is for a simulation; in a federation silos keep the last, or their own_best"
            )
        if config.lr == "auto":
            raise ConfigError(
                "run.lr must be a number, since no one party holds the data to find one; `pomona run` chooses one on "
                "data like yours"
            )
        return config

    @property
    def agreement(self) -> str:
        """SHA-256 in hex of what a silo agrees to, defaults written out.

        That is name, run with the file of each module that it names, places, most_samples, task, wire and protocol.
        Of first weights it is their hash, not where they lie.
        """
        config = self.config()
        run = {k: v for k, v in config.tree().items() if k not in ELSEWHERE}
        run["model"] = {k: v for k, v in run["model"].items() if k != "init"}
        task = self.task.model_dump(mode="json")
        agreed: dict[str, Any] = {"name": self.name, "run": run, "places": self.places, "task": task}
        agreed |= {"most_samples": self.most_samples, "wire": self.wire, "protocol": PROTOCOL}
        from pomona.models.packages import package

        metric = (config.metric or "").removeprefix("-")
        named = (config.method.name, config.model.name, config.model.loss, metric)
        own = [name for name in named if ":" in name and not package(name)]
        agreed |= {"code": {name: code_sha256(name) for name in own}} if own else {}
        return hashlib.sha256(json.dumps(agreed, sort_keys=True, separators=(",", ":")).encode()).hexdigest()

    @property
    def digits(self) -> str:
        """The first 16 digits of the agreement, in fours: what people compare by telephone."""
        start = self.agreement[:16]
        return " ".join(start[i : i + 4] for i in range(0, len(start), 4))


def _everywhere(server: Address) -> str:
    return str(Address(server.host if server.loopback else "0.0.0.0", server.port))  # noqa: S104 - silos come from outside
