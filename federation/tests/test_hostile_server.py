"""A hostile server against a real silo of a real kit: what it may ask, and what it gets."""

import json
import shutil
from errno import ENOSPC
from pathlib import Path

import numpy as np
import pytest
import torch

from federation_in_process import deployed, equal, lost
from pomona import personal
from pomona.core.errors import ConfigError, PrivacyError, ProtocolError, StorageError
from pomona.privacy.ledger import Ledger
from pomona.privacy.noise import KeyStore
from pomona.scenario.description import epsilons
from pomona.storage.run_status import committed
from pomona_federation.flower_apps import handled
from pomona_federation.keys import Signer
from pomona_federation.messages.message_bodies import (
    DownlinkEntry,
    EntryForm,
    Hello,
    Newcomer,
    RowOrigin,
    Task,
    row_statement,
)
from pomona_federation.messages.message_bus import Message
from pomona_federation.messages.tensor_bytes import Encoding, sha256
from pomona_federation.provision.provision import add
from pomona_federation.server.server_app import ServerStatusFile
from pomona_federation.silo import client_app, state_origin
from pomona_federation.silo.client_app import ClientApp
from pomona_federation.silo.round_store import RoundStore, RowCache
from pomona_federation.silo.silo_in_study import Silo
from pomona_federation.silo.task_policy import TaskPolicy
from representatives import drawn
from test_faults import counted, on_answer
from test_in_process import PRIVATE, edited

pytestmark = pytest.mark.long

WIDTH = 64 * 8 + 8 + 8 * 10 + 10  # parameters of the test's network
ROUNDS = 3
SILO = "silo-1"
ROW = EntryForm(many=False, dtype="F32", width=WIDTH)  # of one model


class Server:
    """An attacker in the server's place, who knows the agreement and how many samples each silo
    has.
    """

    def __init__(self, federation):
        self.federation, self.run = federation, "ab"
        self.agreement = Silo(self.kit()).federation.agreement
        self.sizes = [self.greeted(n).samples for n in federation.names]
        self.places = Silo(self.kit()).federation.places

    def kit(self, silo=SILO):
        return self.federation.kits / silo

    def greeted(self, silo):
        return ClientApp(Silo(self.kit(silo))).greet(
            Hello(agreement=self.agreement, run=self.run, nonce="cd")
        )

    def task(self, number=1, row=None, silo=SILO, **fields):
        """A round's task with one model (d,) for a silo, and its enclosed bytes."""
        data = packed(torch.zeros(WIDTH) if row is None else row, self.places)
        offer = DownlinkEntry(form=ROW, index=(0,), rows={0: sha256(data)})
        return self.asked(number, silo, {"model": offer}, **fields), {sha256(data): data}

    def cores(self, rows, origins=None, index=None, number=1, **fields):
        """A round's task with single silos' models by place (APPLE), and its enclosed bytes."""
        data = {j: packed(row, self.places) for j, row in rows.items()}
        hashes = {j: sha256(d) for j, d in data.items()}
        many_rows = ROW.model_copy(update={"many": True})
        offer = DownlinkEntry(
            form=many_rows, index=tuple(index or rows), rows=hashes, origins=origins or {}
        )
        return self.asked(number, SILO, {"cores": offer}, **fields), {
            sha256(d): d for d in data.values()
        }

    def asked(self, number, silo, downlink, trains=True, **fields):
        member = (
            self.federation.names.index(silo) if silo in self.federation.names else len(self.sizes)
        )
        sizes = (*self.sizes, *[0] * (self.places - len(self.sizes)))
        message = {
            "agreement": self.agreement,
            "run": self.run,
            "number": number,
            "place": member,
            "trains": trains,
        }
        message |= {
            "watched": ("received",),
            "sizes": sizes,
            "settled": number - 1,
            "downlink": downlink,
        }
        return Task(**{**message, **fields})

    def ask(self, task, enclosed, silo=SILO):
        return ClientApp(Silo(self.kit(silo))).answer(task, enclosed)

    def signed(self, silo, row, number):
        """The origin of a silo's row, with its signature."""
        origin = RowOrigin(silo=silo, round=number, tensor="core", signature="")
        text = row_statement(self.agreement, self.run, origin, sha256(packed(row, self.places)))
        signature = Signer(self.kit(silo) / "keys" / "silo.key").sign("row", text)
        return origin.model_copy(update={"signature": signature})

    def newcomer(self, silo="late", place=3):
        """A kit of a silo that joins later, with the data of silo-0, and its introduction."""
        add(self.federation.kits, silo)
        silo_file = self.kit(silo) / "silo.toml"
        text = (
            (self.kit("silo-0") / "silo.toml")
            .read_text()
            .replace('name = "silo-0"', f'name = "{silo}"', 1)
        )
        silo_file.write_text(text)
        keys = self.federation.kits / "server" / "keys"
        key, certificate = ((keys / f"{silo}{suffix}").read_bytes() for suffix in (".pub", ".cert"))
        return Newcomer(
            place=place,
            silo=silo,
            key=key.decode().strip(),
            certificate=certificate.decode().strip(),
        )


def packed(row, places):
    return Encoding("fp32", places).pack(row)


def noise(seed):
    return torch.randn(WIDTH, generator=torch.Generator().manual_seed(seed)) / 10


@pytest.fixture
def server(world):
    return Server(world.federation("fedavg", run={"rounds": ROUNDS}, places=7))


@pytest.fixture
def relay(world):
    """A server that relays single silos' models."""
    return Server(world.federation({"name": "apple"}, run={"rounds": ROUNDS}, places=7))


def files(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


# C1: what can be named.


def test_what_was_agreed_is_asked_once_for_a_task_and_before_the_data_are_read(server, monkeypatch):
    """Its hash is of each trial's settings too, and of the files of own code."""
    checks, check = [], TaskPolicy.require_agreed
    monkeypatch.setattr(
        TaskPolicy, "require_agreed", lambda *args: checks.append(args) or check(*args)
    )
    task, enclosed = server.task()
    server.ask(task, enclosed)
    assert len(checks) == 1
    monkeypatch.setattr(Silo, "local", property(lambda _: pytest.fail("the data were read")))
    with pytest.raises(ProtocolError, match="something other than what this silo agreed to"):
        server.ask(task.model_copy(update={"agreement": "0" * 64}), enclosed)


@pytest.mark.parametrize("field", ["start", "offer"])
def test_a_server_can_name_no_file(field, server):
    """Absolute and relative paths of files that are there, and of some that are not: one answer to
    all.
    """
    kit = server.kit()
    (kit / "state" / "private").mkdir(parents=True)
    (kit / "state" / "private" / "ledger").write_text("spent")
    state_origin.mark(kit)  # as if it had been made here
    (kit.parent / "outside").write_text("mine")
    existing = [
        kit / "keys" / "silo.key",
        kit / "silo.toml",
        kit / "state" / "private" / "ledger",
        kit.parent / "outside",
    ]
    paths = [str(p) for p in existing] + [
        "../../keys/silo.key",
        "../private/ledger",
        "../../../outside",
        "../agreement.json",
    ]
    absent = [f"{p}x" for p in paths]
    files_before, faults = files(kit.parent), set()
    task, enclosed = server.task()
    for path in [*paths, *absent, "", ".", "..", "A" * 64, "a" * 63]:
        if field == "start":
            change = {"start": path or " "}
        else:
            change = {
                "downlink": {"model": task.downlink["model"].model_copy(update={"rows": {0: path}})}
            }
        forged = task.model_copy(update=change)  # whose types nobody looked at
        reply = handled(
            kit, Message("task", forged.model_dump_json(warnings=False), enclosed=enclosed)
        )
        faults.add(json.loads(reply.body)["fault"])
        with pytest.raises(ProtocolError, match="not named by its SHA-256") as fault:
            server.ask(forged, {})
        faults.add(str(fault.value))
    # what cannot be read, and what is no hash: the same for files that are there
    assert len(faults) == 2
    log_names = {"audit.jsonl", "audited.json", ".audited.lock", "app.log"}
    log_names |= {"versions.json", ".versions.lock"}
    files_after = {p: c for p, c in files(kit.parent).items() if p.name not in log_names}
    assert files_after == files_before


def test_the_row_cache_makes_no_path_of_what_is_no_hash(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    cache = RowCache(tmp_path / "cache")
    for digest in (str(victim), "../victim", "", "a" * 65, "A" * 64, "a" * 63 + "\n"):
        for read in (lambda d: cache.missing([d], {}), lambda d: cache.rows([d], {})):
            with pytest.raises(ProtocolError, match="not named by its SHA-256"):
                read(digest)
    assert victim.read_text() == "mine"


# M6: what comes to the disk.


def test_a_task_that_is_refused_leaves_no_rows(server):
    row = packed(noise(1), server.places)
    wide = DownlinkEntry(
        form=ROW.model_copy(update={"width": 10**9}), index=(0,), rows={0: sha256(row)}
    )
    task, enclosed = server.task()
    refused = [
        task.model_copy(update={"place": 0}),
        task.model_copy(update={"agreement": "0" * 64}),
        task.model_copy(update={"number": 100, "settled": 99}),
        task.model_copy(update={"downlink": {"model": wide}}),
        task.model_copy(update={"start": sha256(b"12345")}),  # comes as bytes that are no model
    ]
    for bad in refused:
        with pytest.raises(ProtocolError):
            server.ask(
                bad, {**enclosed, **({bad.start: b"12345"} if bad.start else {sha256(row): row})}
            )
    assert not (server.kit() / "state" / "cache").exists()
    server.ask(task, enclosed)
    assert RowCache(server.kit() / "state" / "cache").digests == tuple(enclosed)


def test_a_silo_takes_no_more_than_it_allows(server):
    task, enclosed = server.task()
    edited(server.kit() / "silo.toml", max_download_mb=0.002)  # a model has 610 * 4 bytes
    with pytest.raises(
        ConfigError, match=r"a task with 0\.0 MB; max_download_mb in silo.toml is 0\.002"
    ):
        server.ask(task, enclosed)
    edited(server.kit() / "silo.toml", max_download_mb=0.003)
    server.ask(task, enclosed)


def test_a_silo_takes_no_more_than_was_agreed_can_bring(server):
    """A row of each of 7 places and 8 of all, of 610 + 7 numbers of 8 bytes: 74 kB."""
    limit = 8 * (WIDTH + server.places) * (server.places + 8)
    data = b"\0" * (limit + 1)
    task, enclosed = server.task(start=sha256(data))
    with pytest.raises(ProtocolError, match="the agreement needs at most"):
        server.ask(task, {**enclosed, sha256(data): data})


# C2: whose place, whose run.


def test_a_silo_does_nothing_for_another_place(server):
    task, enclosed = server.task()
    for place, owner in ((0, "silo-0"), (2, "silo-2"), (3, "nobody"), (9999, "nobody")):
        with pytest.raises(
            ProtocolError, match=f"place {place}, which is {owner}'s; this silo is silo-1"
        ):
            server.ask(task.model_copy(update={"place": place}), enclosed)


def test_a_newcomer_keeps_the_place_that_it_had_first(server):
    introduced = server.newcomer()
    size, places = server.sizes[0], server.places
    task, enclosed = server.task(
        silo="late", newcomers=(introduced,), sizes=(*server.sizes, size, *[0] * (places - 4))
    )
    server.ask(task, enclosed, "late")
    changes = {
        "newcomers": (introduced.model_copy(update={"place": 4}),),
        "place": 4,
        "number": 2,
        "settled": 1,
    }
    changes["sizes"] = (*server.sizes, 0, size, *[0] * (places - 5))
    with pytest.raises(ProtocolError, match="unlike before"):
        server.ask(task.model_copy(update=changes), enclosed, "late")
    (server.kit("late") / "state" / "seen.json").unlink()  # whatever else is remembered
    with pytest.raises(ProtocolError, match="a task for place 4, but this silo has place 3"):
        server.ask(task.model_copy(update=changes), enclosed, "late")


def test_a_newcomer_keeps_no_place_that_no_newcomer_has(server):
    server.newcomer()
    kit, hello = server.kit("late"), Hello(agreement=server.agreement, run="ab", nonce="cd")
    for place in (0, 2, server.places, 9999):
        with pytest.raises(ProtocolError, match=f"place {place} .* joined later"):
            ClientApp(Silo(kit)).greet(hello.model_copy(update={"newcomers": {"late": place}}))
    assert not (kit / "state" / "member.json").exists()
    ClientApp(Silo(kit)).greet(hello.model_copy(update={"newcomers": {"late": 3}}))


def test_a_silo_works_for_one_run(server):
    task, enclosed = server.task()
    _, uplink = server.ask(task, enclosed)
    other_run = task.model_copy(update={"run": "ef"})
    for request in (
        lambda: server.ask(other_run, enclosed),
        lambda: ClientApp(Silo(server.kit())).greet(
            Hello(agreement=task.agreement, run="ef", nonce="cd")
        ),
    ):
        with pytest.raises(ProtocolError, match="but this silo works for run"):
            request()
    (server.kit() / "state" / "agreement.json").unlink()  # its administrator means it
    repeated, same_uplink = server.ask(other_run, enclosed)
    assert (repeated.run, same_uplink) == ("ef", uplink)


def test_a_run_that_was_left_is_not_continued(server):
    """Noise in sums is another in each run: a server that gave two runs one name would have two
    sums of one round, with the same noise, and of their difference a silo's own change.
    """
    task, enclosed = server.task()
    for run in ("ab", "ef"):
        server.ask(task.model_copy(update={"run": run}), enclosed)
        (server.kit() / "state" / "agreement.json").unlink()
    for number in (1, 2):
        with pytest.raises(ProtocolError, match=r"goes back to run ab, .* left for run ef"):
            server.ask(task.model_copy(update={"number": number}), enclosed)
    (server.kit() / "state" / "asked.json").unlink()
    server.ask(task, enclosed)


@pytest.mark.parametrize("field", ["sizes", "joined"])
def test_a_silo_is_counted_as_it_is(field, server):
    task, enclosed = server.task()
    sizes = list(task.sizes)
    sizes[1] += 1
    for false_sizes, message in (
        (sizes, f"counts {sizes[1]} training samples"),
        (sizes[:3], "a task with 3 places"),
    ):
        with pytest.raises(ProtocolError, match=message):
            server.ask(task.model_copy(update={field: tuple(false_sizes)}), enclosed)


# C2, H1: one account, one budget.


@pytest.fixture
def private(world):
    pytest.importorskip("opacus")
    return Server(
        world.federation(
            "fedavg", run={"rounds": ROUNDS, "privacy": {**PRIVATE, "seed": None}}, places=7
        )
    )


def epsilon_spent(kit):
    (ledger,) = (kit / "state" / "private" / "dp").glob("*/ledger.jsonl")
    silo = Silo(kit)
    from pomona.privacy.accounting import epsilon

    return epsilon(silo.terms.config.privacy, Ledger.open(ledger).history())


def test_what_a_silo_accepts_bounds_what_a_server_gets(private):
    """Every round of one run is paid for; a second run, which its administrator lets in, ends at
    the budget.
    """
    (projected,) = epsilons(Silo(private.kit()).local)
    accepted = projected * 1.2
    edited(private.kit() / "silo.toml", accept_epsilon=accepted)
    for number in range(1, ROUNDS + 1):
        answer, uplink = private.ask(*private.task(number, noise(number)))
        assert uplink
        assert answer.seconds == 0  # which would tell how many samples were drawn
    assert epsilon_spent(private.kit()) == pytest.approx(projected)
    for number in (ROUNDS + 1, 100):
        with pytest.raises(ProtocolError, match="the last of the rounds agreed on"):
            private.ask(*private.task(number, noise(number)))
    (private.kit() / "state" / "agreement.json").unlink()
    private.run = "ef"
    with pytest.raises(PrivacyError, match="accept_epsilon"):
        private.ask(*private.task(1, noise(11)))
    assert projected < epsilon_spent(private.kit()) <= accepted


def test_a_private_answer_is_a_function_of_the_noised_gradients(private, monkeypatch):
    """Other training rows, the same noised gradients: no byte of the answer changes."""

    def released(store, draw, question, total):
        return torch.full_like(total, 0.01 * (draw.step + 1))

    monkeypatch.setattr(KeyStore, "release", released)
    task, enclosed = private.task(1, noise(1), watched=())
    first = private.ask(task, enclosed)
    (rows,) = (private.kit() / "data").glob("*train.npz")
    arrays = dict(np.load(rows))
    np.savez(rows, x=arrays["x"][:, ::-1], y=arrays["y"][::-1])
    shutil.rmtree(private.kit() / "state")
    assert private.ask(task, enclosed) == first
    assert (first[0].loss, first[0].fault, len(first[1]) > 0) == (None, "", True)


@pytest.mark.parametrize("settled", [0, 1])  # also where the server says that nothing has been used
def test_an_account_that_is_gone_is_not_begun_anew(settled, private):
    private.ask(*private.task(1))
    folder = private.kit() / "state" / "private" / "dp" / "client-01"
    for file in folder.iterdir():
        file.unlink()
    with pytest.raises(PrivacyError, match="restore both"):
        private.ask(*private.task(2, settled=settled))
    assert list(folder.iterdir()) == []


def test_an_account_of_another_place_is_not_passed_over(private):
    """As a kit has it whose server said six places before that was refused."""
    folder = private.kit() / "state" / "private" / "dp"
    (folder / "client-04").mkdir(parents=True)
    with pytest.raises(PrivacyError, match="holds client-04 next to client-01"):
        private.ask(*private.task(1))
    assert [p.name for p in folder.iterdir()] == ["client-04"]


# M2: one question a round.


def test_a_round_is_trained_and_evaluated_once(server, world):
    trained = counted(world.patch)
    for trains in (True, False):
        task, enclosed = server.task(2, noise(1), trains=trains, settled=0)
        first, uplink = server.ask(task, enclosed)
        repeated, same_uplink = server.ask(task, enclosed)
        assert same_uplink == uplink
        assert repeated.model_copy(update={"seconds": 0.0}) == first.model_copy(
            update={"seconds": 0.0}
        )
        for changes in ({"row": noise(2)}, {"row": noise(1), "watched": ()}):
            with pytest.raises(ProtocolError, match="is asked again with a different task"):
                server.ask(*server.task(2, trains=trains, **{"settled": 0, **changes}))
        with pytest.raises(ProtocolError, match="is asked again with a different task"):
            server.ask(*server.task(1, noise(1), trains=trains))
    assert trained == [(2, 1)]


def test_a_late_task_of_an_earlier_round_does_not_replace_the_last_visits_model(server, world):
    """The scheduler's seed 116: a repeated message of round 3 came after the last visit."""
    model = server.kit() / "state" / "models" / "personal.safetensors"
    server.ask(*server.task(2, noise(1), settled=0))
    server.ask(*server.task(4, noise(2), trains=False, settled=0))
    last = model.read_bytes()
    with pytest.raises(ProtocolError, match=r"round 3 .* after round 4 was evaluated once"):
        server.ask(*server.task(3, noise(3), settled=0))
    assert model.read_bytes() == last
    assert server.ask(*server.task(2, noise(1), settled=0))[0].number == 2  # from the file


def test_an_evaluation_that_is_asked_again_is_not_made_again(server):
    """After any number of questions between, and after training: the same bytes, one line of
    history, one model.
    """
    task, enclosed = server.task(2, noise(1), trains=False, settled=0)
    first = server.ask(task, enclosed)
    files_before = files(server.kit() / "state")
    assert server.ask(task, enclosed) == first
    assert server.ask(task, {}) == first  # rows that the silo holds need not come again
    assert files(server.kit() / "state") == files_before
    trained, uplink = server.ask(*server.task(2, noise(1), settled=0))
    assert server.ask(task, enclosed) == first
    assert (trained.uplink, len(uplink) > 0) == (sha256(uplink), True)
    assert len((server.kit() / "state" / "rounds.jsonl").read_text().splitlines()) == 2
    later = task.model_copy(update={"newcomers": (server.newcomer(),)})
    assert server.ask(later, enclosed)[0] == first[0].model_copy(update={"task": later.digest})


def test_an_evaluation_that_a_kill_cut_short_is_made_again(server, world):
    task, enclosed = server.task(2, noise(1), trains=False, settled=0)

    def killed(*_):
        raise KeyboardInterrupt

    with world.patch.context() as patch:
        patch.setattr(client_app, "note", killed)
        with pytest.raises(KeyboardInterrupt):
            server.ask(task, enclosed)
    assert server.ask(task, enclosed)[0].scores
    assert (server.kit() / "state" / "models" / "personal.safetensors").exists()


def test_rounds_are_those_agreed_on_and_go_forward(server):
    for number, settled, trains in (
        (ROUNDS + 1, 0, True),
        (ROUNDS + 2, 0, False),
        (2, 2, True),
        (1, 5, False),
    ):
        with pytest.raises(ProtocolError, match="the last of the rounds agreed on"):
            server.ask(*server.task(number, settled=settled, trains=trains))
    server.ask(*server.task(ROUNDS + 1, settled=0, trains=False))  # the closing visit


def test_what_has_begun_does_not_begin_anew(server):
    """A method's beginning may take more gradients than its rounds: it is once a run."""
    for number, settled in ((1, 0), (2, 0), (3, 2)):
        server.ask(*server.task(number, settled=settled))
    with pytest.raises(
        ProtocolError, match="is to start over, after this silo's round 2 has counted"
    ):
        server.ask(*server.task(ROUNDS + 1, trains=False, settled=0))
    # a server may have lost its newest checkpoint
    server.ask(*server.task(ROUNDS + 1, trains=False, settled=1))


def test_a_question_stays_the_same_when_somebody_comes(server, world):
    trained = counted(world.patch)
    task, enclosed = server.task()
    first, uplink = server.ask(task, enclosed)
    later = task.model_copy(update={"newcomers": (server.newcomer(),)})
    repeated, same_uplink = server.ask(later, enclosed)
    assert (repeated.task, same_uplink, repeated.rows) == (later.digest, uplink, first.rows)
    assert trained == [(1, 1)]


FAILING = [(personal, "save", True), (RoundStore, "save", True)]
FAILING += [(personal, "save", False), (RoundStore, "keep_evaluation", False)]


@pytest.mark.parametrize(("owner", "step", "trains"), FAILING, ids=str)
def test_after_a_failed_write_a_task_is_done_again_with_its_model_and_history(
    owner, step, trains, server, tmp_path
):
    task, enclosed = server.task(row=noise(1), trains=trains, settled=0)
    kit = Path(shutil.copytree(server.kit(), tmp_path / "undisturbed"))
    answer, uplink = ClientApp(Silo(kit)).answer(task, enclosed)

    def no_space(*_, **__):
        raise OSError(ENOSPC, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, step, no_space)
        with pytest.raises(OSError, match="No space"):
            server.ask(task, enclosed)
    for _ in range(2):
        repeated, same_uplink = server.ask(task, enclosed)
        assert repeated.model_copy(update={"seconds": answer.seconds}) == answer
        assert same_uplink == uplink
    model = "state/models/personal.safetensors"
    assert (server.kit() / model).read_bytes() == (kit / model).read_bytes()
    (line,) = (server.kit() / "state/rounds.jsonl").read_text().splitlines()
    assert json.loads(line)["task"] == task.question


def test_figures_that_leave_are_rounded(server):
    answer, _ = server.ask(*server.task(row=noise(1)))
    (line,) = (server.kit() / "state" / "rounds.jsonl").read_text().splitlines()
    exact = json.loads(line)
    assert answer.loss == float(f"{exact['loss']:.3g}") != exact["loss"]
    assert [s.loss for s in answer.scores] == [float(f"{s['loss']:.3g}") for s in exact["scores"]]
    assert [s.accuracy for s in answer.scores] == [round(s["accuracy"], 4) for s in exact["scores"]]


# M1: whose rows.


def test_a_row_for_a_place_that_is_nobodys_is_refused(relay):
    introduced = relay.newcomer()
    ghosts = {
        "no introduction": ((), "which has no member"),
        "no certificate": (
            (introduced.model_copy(update={"certificate": ""}),),
            "without the authority's certificate",
        ),
        "another's": (
            (introduced.model_copy(update={"silo": "ghost"}),),
            "without the authority's certificate",
        ),
        "a founder": ((introduced.model_copy(update={"silo": "silo-2"}),), "which is not free"),
        "a founder's place": ((introduced.model_copy(update={"place": 2}),), "which is not free"),
        "no place": ((introduced.model_copy(update={"place": relay.places}),), "which is not free"),
        "two places": (
            (introduced, introduced.model_copy(update={"place": 4})),
            "which is not free",
        ),
    }
    sizes = (*relay.sizes, 50, *[0] * (relay.places - 4))
    for newcomers, message in ghosts.values():
        with pytest.raises(ProtocolError, match=message):
            relay.ask(*relay.cores({3: noise(1)}, newcomers=newcomers, sizes=sizes, number=2))
    with pytest.raises(ProtocolError, match="which has no member"):  # introduced, but no member
        relay.ask(*relay.cores({3: noise(1)}, newcomers=(introduced,), number=2))


def test_one_unsigned_row_of_a_newcomer_is_taken(relay):
    """The row that it starts with, in whatever round it is first offered; no other, and none after
    a signed one.
    """
    fields = {
        "newcomers": (relay.newcomer(),),
        "sizes": (*relay.sizes, relay.sizes[0], *[0] * (relay.places - 4)),
    }
    relay.ask(*relay.cores({3: noise(1)}, number=2, settled=0, **fields))
    with pytest.raises(ProtocolError, match="the row of late is not signed by late"):
        relay.ask(*relay.cores({3: noise(2)}, number=3, **fields))
    relay.ask(*relay.cores({3: noise(1)}, number=3, **fields))
    row = noise(3)
    relay.ask(
        *relay.cores({3: row}, {3: relay.signed("late", row, 2)}, number=3, trains=False, **fields)
    )
    with pytest.raises(ProtocolError, match="the row of late is not signed by late"):
        relay.ask(*relay.cores({3: noise(1)}, number=4, trains=False, **fields))


def test_an_offer_names_the_rows_that_it_brings(relay):
    """A row that is named and not brought would be zeros under somebody's name."""
    zeros = torch.zeros(WIDTH)
    task, enclosed = relay.cores({0: zeros})
    entry = task.downlink["cores"]
    forged = {
        index: entry.model_copy(update={"index": index}) for index in ((0, 2), (), (0, 0), (2,))
    }
    for offer in forged.values():
        with pytest.raises(ProtocolError, match="names rows that do not exist"):
            relay.ask(task.model_copy(update={"downlink": {"cores": offer}}), enclosed)
    plain = task.model_copy(update={"downlink": {"cores": entry.model_copy(update={"form": ROW})}})
    with pytest.raises(
        ProtocolError, match=r"received one row of 610 numbers F32, but .* have rows of single"
    ):
        relay.ask(plain, enclosed)


@pytest.mark.parametrize(
    "change", [{"dtype": "F64"}, {"dtype": "BOOL"}, {"width": WIDTH + 1}, {"many": True}]
)
def test_an_offer_has_the_form_that_the_method_gives_it(change, server):
    """And one that has not uses nothing up: the right task is answered afterwards."""
    task, enclosed = server.task()
    right = task.downlink["model"]
    row = ROW.model_copy(update=change)
    offer = right.model_copy(update={"form": row} | ({"index": (0,)} if row.many else {}))
    with pytest.raises(ProtocolError, match=r"method have one row of 610 numbers F32|speaks of"):
        server.ask(task.model_copy(update={"downlink": {"model": offer}}), enclosed)
    for downlink in ({}, {"model": right, "control": right}, {"models": right}):
        with pytest.raises(ProtocolError, match="only one side knows this entry"):
            server.ask(task.model_copy(update={"downlink": downlink}), enclosed)
    server.ask(task, enclosed)


@pytest.mark.parametrize("name", ["agreement", "asked", "seen"])
def test_a_memory_that_is_damaged_is_named_and_not_begun_anew(name, relay):
    zeros = torch.zeros(WIDTH)
    for damage in (b"", b"{", b"[]", b"[" * 100_000, b"\xff\xfe"):
        path = relay.kit() / "state" / f"{name}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(damage)
        with pytest.raises(StorageError, match=rf"{name}\.json cannot be read .*; restore it"):
            relay.ask(*relay.cores({0: zeros}))
        assert path.read_bytes() == damage


# H4: late answers.


@pytest.mark.parametrize("late", drawn([3, 5]))
def test_a_silo_that_was_late_many_times_goes_on(late, world):
    """It trains each round, and the answer is lost on the way back: the state of round 1 stays with
    it.
    """
    federation = world.federation(run={"rounds": late + 4})
    gaps = range(2, late + 2)
    federation.grid.faults += [on_answer(lambda m, _: lost(m, 2), number=n) for n in gaps]
    federation.run()
    assert equal(deployed(federation), world.simulated(federation, absent={(n, 1) for n in gaps}))
    checkpoint_rounds = [n for n, _ in committed(federation.kits / SILO / "state" / "checkpoints")]
    assert checkpoint_rounds == [late + 2, late + 3, late + 4]  # round 1 is of no use any more


def test_a_server_that_lost_its_newest_checkpoint_finds_a_late_silo_ready(world):
    """Rounds 2 to 4 are late, 5 counts; the server forgets 5, and its repetition is late again: on
    with round 1.
    """
    federation = world.federation(run={"rounds": 6})
    federation.grid.faults += [on_answer(lambda m, _: lost(m, 2), number=n) for n in (2, 3, 4)]

    def killed(_, row, __):
        if row.round == 5:
            raise KeyboardInterrupt

    with world.patch.context() as patch:
        patch.setattr(ServerStatusFile, "on_round_end", killed)
        with pytest.raises(KeyboardInterrupt):
            federation.run()
    dict(committed(federation.server / "run" / "checkpoints"))[5].unlink()
    federation.grid.faults.append(on_answer(lambda m, _: lost(m, 2), number=5))
    federation.run()
    assert equal(
        deployed(federation), world.simulated(federation, absent={(n, 1) for n in (2, 3, 4, 5)})
    )
