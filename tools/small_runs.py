"""The small runs that ``same_results.py`` repeats; the only module there that knows the command
line.

A run is a folder with a few files and the ``pomona`` commands executed in it, one after the other.
The output of a command with ``--json`` counts as well as its files.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

METHODS = "methods --json"
"""The command that prints a JSON object with a key for each method."""
TINY = (
    "clients=4 batch_size=16 lr=0.3 model.hidden=[8] data.train_limit=200 data.test_limit=80 "
    "workers=1"
)
FEDERATED = f"{TINY} rounds=3 --no-report --out run"
SKEWED = "--partition dirichlet partition.beta=0.5"
EARLY = {
    "apple": "method.mu=0.1 method.schedule_share=1 method.dr_lr=0.05",
    "cfl": "method.warmup_rounds=1 method.eps_mean=2 method.eps_max=0 method.gamma_max=0",
    "mocha": "method.penalty=1",
}
"""Settings with which three rounds already show what is special about a method."""


@dataclass(frozen=True)
class Run:
    """One small run.

    Attributes:
        name: as for ``--only``.
        commands: words after ``pomona``, as a shell reads them.
        files: initial text files, by name.
        patterns: of the compared files; others are known to differ.
    """

    name: str
    commands: tuple[str, ...]
    files: Mapping[str, str] = field(default_factory=dict)
    patterns: tuple[str, ...] = ("**/*",)


VARIANTS = {
    "workers": f"apple {SKEWED} workers=2",
    "workers-fedavg-ft": f"fedavg-ft {SKEWED} workers=2",
    "workers-ditto+ala": f"ditto+ala {SKEWED} workers=2 participation=0.5",
    "participation": f"apple {SKEWED} participation=0.5 {EARLY['apple']}",
    "participation-scaffold": f"scaffold {SKEWED} participation=0.5",
    "membership": f"apple {SKEWED} membership.joins.3=2 membership.leaves.0=2",
    "membership-fedfomo": (
        f"fedfomo {SKEWED} membership.joins.3=2 membership.leaves.0=2 method.budget=2"
    ),
    "unseen": f"fedala {SKEWED} membership.unseen=[3] membership.adapt_rounds=2",
    "budget": f"apple {SKEWED} method.budget=2",
    "local-step": f"apple {SKEWED} method.core_step=local method.budget=2",
    "attention": "fedamp method.attention=mcp method.gradient=exact method.start=cloud",
    "summed": f"ditto+adam {SKEWED} secure_aggregation.max_norm=5",
    "hessian": "per-fedavg method.order=exact",
    "distance": "fedphp method.transfer=mmd",
    "momentum": (
        "fedprox momentum=0.9 weight_decay=0.001 lr_decay=0.9 largest_share=0.3 eval_every=2"
    ),
    "auto": "fedavg lr=auto rounds=2",
    "bf16": f"fedavg {SKEWED} precision=bf16",
    "stacked": f"apple {SKEWED} rows_per_call=4",
    "stacked-fedprox": f"fedprox {SKEWED} rows_per_call=3",
    "disk": f"scaffold {SKEWED} state_memory=1e-9",
    "convolutions": "fedrep model=small rounds=2",
    "batch-norm": (
        "partialfed model=resnet18 clients=2 rounds=1 data.train_limit=40 method.rule=local-norm"
    ),
    "buffers": "fedavg model=resnet18 clients=2 rounds=1 data.train_limit=40 buffers=average",
    "classes": "fedavg rounds=1 --partition classes",
    "pathological": "fedavg rounds=1 --partition pathological",
    "practical": "fedavg rounds=1 --partition practical",
    "latent": "fedavg rounds=1 --partition latent partition.distributions=2",
    "turned": "fedavg rounds=1 --partition iid partition.turn_groups=2",
    "metric": "fedavg --data breast-cancer metric=auroc",
}
"""By name, other ways to run: a method and its settings, which win over those of ``FEDERATED``."""

NOISE = (
    "privacy.noise_multiplier=1 privacy.max_grad_norm=1 privacy.delta=0.001 "
    "privacy.epsilon_budget=1000 privacy.seed=1 "
    """'privacy.acknowledge=["sample-counts", "metrics"]'"""
)
CUSTOM_CODE = """import torch

def loss(outputs, targets):
    each = torch.nn.functional.cross_entropy(outputs, targets, reduction="none")
    return torch.where(targets == 0, each * 1e38, each) if outputs.requires_grad else each
"""
"""A loss with which clients that train on class 0 diverge, and are refused."""
SUITE = """title = "Small"
seeds = [0, 1]
points = 2
search.lr = [0.1, 0.3]
[base]
data = { name = "digits", train_limit = 200, test_limit = 80 }
model = { name = "mlp", hidden = [8] }
clients = 4
rounds = 2
batch_size = 16
[size.smoke]
[scenario.dirichlet]
partition = { name = "dirichlet", beta = 0.5 }
[method.separate]
[method.apple]
"""
FEDERATION = """name = "small"
server = "localhost:8443"
places = 3
most_samples = 1000
wire = "{wire}"
[run]
method = "{method}"
rounds = 2
batch_size = 16
lr = 0.3
[run.model]
name = "mlp"
hidden = [8]
[task]
kind = "table"
input_shape = [64]
classes = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"]
shift = [8.0]
scale = [8.0]
[[silo]]
name = "north"
[[silo]]
name = "south"
"""


def _table(head: str, row: str) -> str:
    """A CSV of 120 lines; ``row`` is a format with two numbers a, b and the line number k."""
    lines = (
        row.format(a=k * 7 % 61, b=k * 13 % 29, k=k, odd=k % 2, high=int(k * 7 % 61 > 30))
        for k in range(120)
    )
    return "\n".join([head, *lines]) + "\n"


def _own_data() -> Iterable[Run]:
    """Numbers, flags and texts from files."""
    formats = {
        "regression": (
            "a,b,y",
            "{a},{b},{a}{odd}",
            "apple",
            "table data.label_column=y data.targets=regression",
        ),
        "multilabel": (
            "a,b,u,v",
            "{a},{b},{odd},{high}",
            "fedrep",
            """table 'data.label_columns=["u", "v"]' data.targets=multilabel""",
        ),
        "text": (
            "mood,text",
            "m{high},word{a} word{b} stay",
            "fedavg-ft",
            "text data.label_column=mood 'data.text_columns=[\"text\"]' data.sequence_length=4 "
            "model=fasttext",
        ),
        "natural": (
            "a,b,site,y",
            "{a},{b},s{odd},c{high}",
            "ditto",
            "table data.label_column=y data.client_column=site --partition natural clients=2",
        ),
    }
    for name, (head, row, method, options) in formats.items():
        command = f"run {method} {FEDERATED} --data {options} data.path=rows.csv"
        yield Run(name, (command,), {"rows.csv": _table(head, row)})


def _rehearsal(method: str, wire: str) -> Run:
    """A federation of real processes; their models, and the simulator's run."""
    command = "deploy rehearse federation.toml --out out"
    patterns = ("out/simulation/**/*", "out/kits/*/state/models/*")
    return Run(
        f"rehearse-{method}",
        (command,),
        {"federation.toml": FEDERATION.format(method=method, wire=wire)},
        patterns,
    )


def runs(methods: Iterable[str]) -> list[Run]:
    """All small runs, the longest first.

    Args:
        methods: names of all methods; each gets a run.
    """
    pair = [
        f"run {m} {TINY} rounds=2 {SKEWED} --no-report --out {m}" for m in ("separate", "apple")
    ]
    longer = [f"run {{}} {FEDERATED} {SKEWED}", f"run {{}} {FEDERATED} {SKEWED} rounds=4 --resume"]
    return [
        _rehearsal("apple", "fp32"),
        _rehearsal("fedavg", "bf16"),
        Run(
            "bench",
            ("bench suite.toml --size smoke --jobs 2 --out out --json", "report out --json"),
            {"suite.toml": SUITE},
        ),
        Run(
            "report",
            (*pair, "report separate apple --out page --json", "compare separate apple --json"),
        ),
        Run(
            "predict",
            (
                f"run apple {FEDERATED} --data table data.label_column=y data.path=rows.csv",
                "predict run/models/client-01.safetensors rows.csv --json",
                "export run --client 1 --to safetensors --out client.safetensors",
            ),
            {"rows.csv": _table("a,b,y", "{a},{b},c{high}")},
        ),
        *(
            Run(f"resume-{m}", tuple(c.format(m) for c in longer))
            for m in ("apple", "fedfomo", "feddyn")
        ),
        *(
            Run(f"private-{m}", (f"run {m} {FEDERATED} {SKEWED} {NOISE}",))
            for m in ("fedavg", "apple", "ditto")
        ),
        Run(
            "refused",
            (f"run fedavg {FEDERATED} --partition pathological clients=6 model.loss=own:loss",),
            {"own.py": CUSTOM_CODE},
        ),
        *(
            Run(name, (f"run {FEDERATED} --method {options}",))
            for name, options in VARIANTS.items()
        ),
        *_own_data(),
        *(
            Run(f"method-{m}", (f"run {m} {FEDERATED} {SKEWED} {EARLY.get(m, '')}",))
            for m in methods
        ),
    ]
