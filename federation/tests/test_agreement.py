"""The agreement: keys, defaults, refusals, and the hash that silos pin."""

import copy
import string
from contextlib import nullcontext

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from pomona.config import Config
from pomona.core.bounds import MAX_CLIENTS, ROUNDS
from pomona.core.errors import ConfigError
from pomona_federation.address import Address
from pomona_federation.agreed_config import ELSEWHERE
from pomona_federation.agreement import OF_STUDY, RESERVED, Federation
from pomona_federation.messages.message_bodies import Task as Message
from pomona_federation.messages.message_bodies import read
from pomona_federation.silo.settings import SiloFile
from pomona_federation.study import read_study, study_of
from pomona_federation.task_settings import TaskSettings

TREE = {
    "name": "hospitals",
    "server": "fl.example.org:8443",
    "run": {"method": {"name": "apple", "budget": 2}, "rounds": 20, "lr": 0.1},
    "task": {
        "kind": "image",
        "input_shape": [28, 28, 1],
        "classes": ["benign", "malignant"],
        "scale": [255.0],
    },
    "silo": [{"name": "north"}, {"name": "south"}, {"name": "west"}],
}


def tree(**changes):
    """The settings of the federation above with changes; dots separate levels."""
    settings = copy.deepcopy(TREE)
    for path, value in changes.items():
        *above, key = path.split("__")
        level = settings
        for step in above:
            level = level[int(step) if step.isdigit() else step]
        level[key] = value
    return settings


def load(tmp_path, settings):
    path = tmp_path / "federation.toml"
    path.write_text(tomli_w.dumps(settings))
    return Federation.load(path)


def test_defaults_follow_from_what_is_said(tmp_path):
    f = load(tmp_path, TREE)
    assert (f.bind, f.quorum, f.places, f.study.task.outputs) == ("0.0.0.0:8443", 2, 7, 2)
    assert load(tmp_path, tree(server="127.0.0.1:9000")).bind == "127.0.0.1:9000"
    assert load(tmp_path, tree(server="[::1]:9000")).bind == "[::1]:9000"
    assert load(tmp_path, tree(server="[2001:db8::1]:9000")).bind == "[::]:9000"


@pytest.mark.long
def test_what_is_read_fits_into_messages(tmp_path):
    """Also where nobody looks at section run; the closing visit is a round more, and its task can
    be made.
    """
    path = tmp_path / "federation.toml"
    for invalid in (tree(places=MAX_CLIENTS + 1), tree(run__rounds=ROUNDS)):
        path.write_text(tomli_w.dumps(invalid))
        with pytest.raises(ConfigError):
            Federation.read(path)
    f = load(tmp_path, tree(places=MAX_CLIENTS, run__rounds=ROUNDS - 1))
    fields = {"agreement": f.agreement, "run": "ab", "settled": 0, "trains": False, "watched": ()}
    message = Message(
        **fields, number=f.kit_terms.config.rounds + 1, place=f.places - 1, sizes=(1,) * f.places
    )
    assert read(Message, message.model_dump_json()) == message
    silos = [{"name": f"s{i}"} for i in range(MAX_CLIENTS - 1)]
    assert Federation.from_tree(tree(silo=silos)).places == MAX_CLIENTS


@given(st.integers(1, 60))
def test_the_quorum_is_the_least_majority(n):
    federation = Federation.from_tree(tree(silo=[{"name": f"s{i}"} for i in range(n)]))
    assert 2 * federation.quorum > n >= 2 * (federation.quorum - 1)


def test_the_run_has_a_client_for_each_place(tmp_path):
    c = load(tmp_path, tree(places=9)).kit_terms.config
    assert (c.clients, c.workers, c.checkpoint_every, c.rounds) == (9, 1, 1, 20)
    assert (c.method.name, c.method.budget) == ("apple", 2)
    assert (
        load(tmp_path, tree(run={"method": "fedavg", "lr": 0.1})).kit_terms.config.method.name
        == "fedavg"
    )


@pytest.mark.parametrize(
    ("changes", "phrases"),
    [
        ({"nam": "x"}, ["'nam'", "name"]),
        ({"task__knd": 1}, ["task.knd", "task.kind"]),
        ({"silo__1__nme": "x"}, ["silo.1.nme", "silo.name"]),
        ({"run__rouns": 1}, ["section run", "rouns", "rounds"]),
        ({"run__method": {"name": "aple"}}, ["section run", "aple", "apple"]),
        (
            {"run__method": {"name": "scaffold"}, "run__momentum": 0.9},
            ["section run", "momentum = 0.9", "scaffold", "momentum=0"],
        ),
        ({"run__method__drlr": 1}, ["method.drlr", "method.dr_lr"]),
        ({"run__method": {"name": "fedavg-data"}}, ["fedavg-data", "silos keep theirs"]),
        ({"silo__0__name": "south"}, ["south", "twice"]),
        ({"silo": []}, ["silo", "at least 1"]),
        ({"quorum": 8}, ["quorum = 8", "7 places"]),
        ({"places": 2}, ["places = 2", "3 silos"]),
        ({"places": 10**4 + 1}, ["places = 10001", "10000"]),
        ({"silo": [{"name": f"s{i}"} for i in range(10**4 + 1)]}, ["silo", "at most 10000"]),
        ({"run__rounds": 10**6}, ["run.rounds = 1000000", "999999"]),
        ({"quorum": 0}, ["quorum = 0"]),
        ({"deadline": 0}, ["deadline"]),
        ({"wire": "fp16"}, ["wire", "bf16"]),
        ({"insecure": True}, ["insecure", "fl.example.org:8443", "127.0.0.1"]),
        (
            {"insecure": True, "server": "127.0.0.1:1", "bind": "0.0.0.0:1"},
            ["insecure", "0.0.0.0:1"],
        ),
        ({"task__input_shape": [28, 28]}, ["task", "3 or 4 numbers"]),
        (
            {"task__dtype": "int32"},
            ["task", "kind image has dtype uint8 or uint16 or int16 or float32"],
        ),
        ({"task__outputs": 3}, ["outputs must be 2"]),
        ({"task__classes": []}, ["classes"]),
        ({"task__targets": "regression"}, ["classes"]),
        ({"task__targets": "regression", "task__classes": []}, ["outputs"]),
        ({"task__classes": ["a", "a"]}, ["differ"]),
        ({"task__scale": [0.0]}, ["scale", "0"]),
        ({"task__shift": [0.0, 1.0, 2.0]}, ["shift"]),
        ({"task__words": ["a"]}, ["words", "kind = 'text'"]),
        ({"task__time_edges": [1.0]}, ["time_edges", "targets = 'survival'"]),
        ({"task__target_scale": [2.0]}, ["target_scale", "targets = 'regression'"]),
        ({"kind": "survey"}, ["kind = 'survey'"]),
        ({"search": {}}, ["search"]),
    ],
)
def test_a_mistake_names_the_file_the_key_and_near_names(tmp_path, changes, phrases):
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, tree(**changes))
    error = str(caught.value)
    assert all(phrase in error for phrase in ("federation.toml", *phrases)), error


# What a study may say of a run. Before a new setting is added here: it must name no file, program
# or address, also when a silo trains alone for its report; else it belongs to ELSEWHERE.
OF_RUN = """absence augment batch_size buffers engine eval_every keep largest_share local_epochs
local_steps lr lr_decay lr_factor lr_milestones lr_schedule lr_warmup_rounds method metric model
momentum optimizer participation precision privacy rounds secure_aggregation seed sensitivity specificity
stop verdict weight_decay"""


def test_each_setting_of_a_run_is_a_studys_or_a_silos():
    assert {*OF_RUN.split()} == Config.model_fields.keys() - ELSEWHERE


@pytest.mark.parametrize("key", sorted(ELSEWHERE))
def test_a_key_that_silos_set_themselves_is_refused_in_the_run(tmp_path, key):
    with pytest.raises(ConfigError, match=rf"run\.{key} .*{ELSEWHERE[key][:12]}"):
        load(tmp_path, tree(run={key: 1}))


@pytest.mark.parametrize(
    "server", ["127.0.0.1:8443", "127.9.9.9:1", "localhost:65535", "[::1]:8443"]
)
def test_insecure_is_for_loopback(server):
    assert Federation.from_tree(tree(server=server, insecure=True)).loopback


def test_a_missing_key_is_told_alone(tmp_path):
    settings = tree()
    del settings["silo"]
    with pytest.raises(ConfigError, match=r"federation\.toml: silo must be set$"):
        load(tmp_path, settings)


# Names and addresses

LETTERS = string.ascii_lowercase + string.digits


@given(
    st.text(LETTERS + "-", min_size=1, max_size=40).filter(
        lambda t: t[0] != "-" and t not in RESERVED
    )
)
def test_every_name_of_small_letters_digits_and_hyphens_is_one(name):
    assert Federation.from_tree(tree(name=name, silo__0__name=name)).silo[0].name == name


@given(
    st.text(max_size=45).filter(
        lambda t: len(t) > 40 or not t or t[0] == "-" or set(t) - set(LETTERS + "-")
    )
)
def test_no_other_name_is(name):
    with pytest.raises(ConfigError, match=r"silo\.0\.name"):
        Federation.from_tree(tree(silo__0__name=name))


@given(st.ip_addresses(), st.integers(1, 65535))
def test_an_ip_address_reads_back_and_knows_its_loopback(ip, port):
    text = f"[{ip}]:{port}" if ip.version == 6 else f"{ip}:{port}"
    address = Address.parse(text)
    assert (address.ip, address.port, str(address)) == (ip, port, text)
    assert address.loopback == ip.is_loopback


NO_ADDRESS = [
    "host",
    ":1",
    "host:",
    "host:0",
    "host:65536",
    "host:x",
    "host:²",
    "::1:8443",
    "[host]:1",
    "[::1:1",
]
NO_ADDRESS += [
    "::1]:1",
    "-a:1",
    "a-:1",
    "a..b:1",
    "256.0.0.1:1",
    "1.2.3:1",
    "http://host:1",
    "host:1/x",
    "é:1",
]


@pytest.mark.parametrize("text", ["", "a b:1", *NO_ADDRESS])
def test_what_is_no_address_is_refused(tmp_path, text):
    with pytest.raises(ConfigError, match="server"):
        load(tmp_path, tree(server=text))


# The agreement

NUMBERS = {"task__classes": [], "task__targets": "regression", "task__outputs": 2}
TEXTS = {"task__kind": "text", "task__input_shape": [9], "task__vocabulary": 5}
CHANGES = [
    {"name": "clinics"},
    {"places": 8},
    {"wire": "bf16"},
    {"most_samples": 1000},
    {"run__largest_share": 1.0},
    {"run__rounds": 21},
    {"run__seed": 1},
    {"run__lr": 0.02},
    {"run__method": {"name": "apple", "budget": 3}},
    {"run__method": {"name": "fedavg"}},
    {"run__model": {"name": "lenet"}},
    {"run__privacy": {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "delta": 1e-5}},
    {"task__kind": "table", "task__input_shape": [784]},
    {"task__input_shape": [28, 28, 3]},
    {"task__input_shape": [28, 28, 28, 1]},
    {"task__dtype": "int16"},
    {"task__classes": ["malignant", "benign"]},
    {"run__metric": "auroc"},
    {"share_scores": False},
    {"view": "intensive-care"},
    {**NUMBERS},
    {**NUMBERS, "task__target_shift": [3.0]},
    {**NUMBERS, "task__target_scale": [2.0, 4.0]},
    {"task__shift": [1.0]},
    {"task__scale": [1.0]},
    {
        "task__kind": "table",
        "task__input_shape": [2],
        "task__preprocessing": {"columns": [{"name": "a"}, {"name": "b"}]},
    },
    {**NUMBERS, "task__targets": "survival", "task__time_edges": [30.0, 365.0]},
    TEXTS,
    {**TEXTS, "task__words": ["a"]},
    {**TEXTS, "task__tokenizer": "0" * 64},
]
OPEN = [
    {"server": "127.0.0.1:1"},
    {"bind": "0.0.0.0:1"},
    {"quorum": 3},
    {"deadline": 1.0},
    {"patience": 1.0},
    {"wait": 1.0},
    {"mutual_tls": True},
    {"insecure": True, "server": "127.0.0.1:1"},
    {"silo__0__key": "north.pub"},
    {"silo__0__name": "east"},
]


def agreement(**changes):
    return Federation.from_tree(tree(**changes)).agreement


def test_every_agreed_key_has_a_say_in_the_agreement():
    hashes = [agreement(), *(agreement(**change) for change in CHANGES)]
    assert len(set(hashes)) == len(hashes)
    keys = {key for change in CHANGES for key in change}
    assert {key.removeprefix("task__") for key in keys if key.startswith("task__")} == set(
        TaskSettings.model_fields
    )


def test_addresses_deadlines_and_the_roster_have_none():
    assert {agreement(**change) for change in OPEN} == {agreement()}
    keys = {key.split("__")[0] for change in CHANGES + OPEN for key in change}
    assert keys | {"kind", "study"} == set(Federation.model_fields) | OF_STUDY


def test_what_a_study_of_another_kind_asks_has_a_say():
    server, terms = Federation.from_tree(tree()), {"run": tree()["run"], "task": tree()["task"]}
    judged = {"of": "kit", "agreement": "0" * 64, "models": {"north": 0}}
    studies = [
        *({"kind": "survey", "survey": {"least": least}} for least in (10, 11)),
        *(
            {**terms, "kind": "search", "search": {"space": {"lr": [0.1, top]}}}
            for top in (0.2, 0.3)
        ),
        *(
            {
                "task": terms["task"],
                "kind": "evaluate",
                "evaluate": {**judged, "agreement": digit * 64},
            }
            for digit in "01"
        ),
    ]
    hashes = [server.terms_of(study_of({"name": "one", **study})).agreement for study in studies]
    assert len(set(hashes)) == len(hashes)


@pytest.mark.parametrize("key", ["largest_share", "participation", "absence"])
@pytest.mark.parametrize("summed", [False, True])
def test_a_search_over_weights_is_refused_with_sums_whose_silos_would_refuse_it(summed, key):
    run = {**tree()["run"], "method": "fedavg"}
    run |= {"secure_aggregation": {"max_norm": 1.0, "minimum": 2}} if summed else {}
    search = {"space": {key: [0.5, 0.9]}}
    study = {"name": "one", "kind": "search", "run": run, "search": search, "task": tree()["task"]}
    terms = Federation.from_tree(tree()).terms_of(study_of(study))
    with pytest.raises(ConfigError, match="another seed") if summed else nullcontext():
        terms.require_computable()


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        ("train", "search"),
        ("train", "survey"),
        ("evaluate", "share_scores"),
        ("search", "evaluate"),
        ("survey", "run"),
        ("survey", "task"),
        ("survey", "wire"),
    ],
)
def test_a_key_of_another_kind_of_study_is_an_error_that_names_it(kind, key):
    of_kind = {
        "train": ("run", "task"),
        "evaluate": ("task", "evaluate"),
        "search": ("run", "task", "search"),
    }
    every = {
        "run": tree()["run"],
        "task": tree()["task"],
        "evaluate": {},
        "search": {"space": {"lr": [0.1]}},
    }
    every |= {"survey": {}, "share_scores": True, "wire": "fp32"}
    fitting = {"name": "one", "kind": kind} | {name: every[name] for name in of_kind.get(kind, ())}
    assert study_of(fitting).kind == kind
    with pytest.raises(ConfigError, match=f"'?{key}'?"):
        study_of(fitting | {key: every[key]})


def test_a_study_has_the_quorum_of_its_federation_unless_it_names_one():
    terms = {"name": "second", "run": tree()["run"], "task": tree()["task"]}
    server = Federation.from_tree(tree(quorum=3))
    assert server.terms_of(study_of(terms)).quorum == 3
    assert server.terms_of(study_of({**terms, "quorum": 1})).quorum == 1
    # more than half of three
    assert Federation.from_tree(tree()).terms_of(study_of(terms)).quorum == 2


def test_a_default_written_out_is_the_same_agreement():
    assert (
        agreement(run__local_epochs=1, task__targets="classes", places=7, wire="fp32")
        == agreement()
    )
    assert agreement(most_samples=10_000_000, run__largest_share=0.5) == agreement()


# A silo's own file


def test_a_silos_paths_are_relative_to_its_file(tmp_path):
    path = tmp_path / "silo.toml"
    data = {"clients": [{"name": "n", "train": "data/a.npz", "test": "/srv/b.npz"}]}
    path.write_text(tomli_w.dumps({"name": "north", "data": data}))
    [files] = SiloFile.load(path).data.clients
    assert (str(files.train), str(files.test)) == (str(tmp_path / "data/a.npz"), "/srv/b.npz")


@pytest.mark.parametrize(
    ("changes", "phrases"),
    [
        ({"nme": "x"}, ["nme", "name"]),
        ({"data": {"pth": "x"}}, ["data.pth", "data.path"]),
        ({"device": "gpu"}, ["device"]),
        ({"device": "cuda:x"}, ["device"]),
        ({"proxy": "proxy:3128"}, ["proxy"]),
        ({"accept_epsilon": 0}, ["accept_epsilon"]),
        (
            {
                "data": {
                    "clients": [{"name": "a", "train": "a.npz"}, {"name": "b", "train": "b.npz"}]
                }
            },
            ["2 clients"],
        ),
    ],
)
def test_a_mistake_in_a_silos_file_names_it(tmp_path, changes, phrases):
    path = tmp_path / "silo.toml"
    path.write_text(tomli_w.dumps({"name": "north", "data": {"name": "digits"}} | changes))
    with pytest.raises(ConfigError) as caught:
        SiloFile.load(path)
    assert all(phrase in str(caught.value) for phrase in ("silo.toml", *phrases)), str(caught.value)


def test_a_silo_must_say_where_its_data_lie(tmp_path):
    path = tmp_path / "silo.toml"
    path.write_text('name = "north"')
    with pytest.raises(ConfigError, match="data must be set"):
        SiloFile.load(path)


def test_an_agreement_names_the_engine(tmp_path):
    """What a silo has installed does not decide what it computes with."""
    hashes = set()
    for engine in ("torch", "native"):
        f = load(tmp_path, tree(run__engine=engine))
        assert f.kit_terms.config.engine == engine
        hashes.add(f.agreement)
    assert len(hashes) == 2
    unset = load(tmp_path, TREE)
    assert unset.kit_terms.config.engine == "torch"
    assert unset.agreement in hashes
    with pytest.raises(ConfigError, match=r"run\.engine must be torch .* or native"):
        load(tmp_path, tree(run__engine="auto"))


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("method = 'fedavg'\ndata = 'digits'\n", "pomona run {path}"),
        ("title = 'x'\n[scenario.digits]\ndata = 'digits'\n", "pomona bench {path}"),
        ("name = 'A'\n[data]\npath = 'rows.csv'\n", "pomona silo check"),
    ],
)
@pytest.mark.parametrize("read", [Federation.load, read_study])
def test_a_file_of_another_command_is_answered_with_it(read, text, command, tmp_path):
    path = tmp_path / "file.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as fault:
        read(path)
    assert command.format(path=path) in str(fault.value)
