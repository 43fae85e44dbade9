"""Silos that split their own rows: each with a file of all its rows and no split, and the lead with
one table of all, whose rows are in another order of silos.
"""

import csv
import tomllib
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tomli_w
from PIL import Image

from federation_in_process import APPLE, LocalGrid, loaded, run_study
from pomona.config import resolve
from pomona.scenario import Scenario
from pomona.simulation import simulate
from pomona_federation.provision.provision import provision
from pomona_federation.rehearsal.inputs import of_study
from pomona_federation.task_settings import of_files

SIZES = {"south": 61, "east": 40, "north": 53}  # in the order of places, not of names
TESTED = {"test_share": 0.3, "validation_share": 0.25}
RUN = {
    "method": APPLE,
    "model": {"name": "mlp", "hidden": [4]},
    "rounds": 2,
    "lr": 0.1,
    "batch_size": 8,
    "engine": "torch",
    "largest_share": 0.5,
}


@dataclass(frozen=True)
class Case:
    """How silos' rows are written and read: ``write`` makes a file or folder of rows, of one silo
    or of all with a column of silos; ``section`` is what both read them by.
    """

    write: object
    section: dict = field(default_factory=dict)
    run: dict = field(default_factory=dict)
    pooled: dict = field(default_factory=lambda: {"client_column": "silo"})


def generate(silo, size):
    """Rows of a silo, as a table: numbers, labels of every type, patients of several rows whose
    numbers other silos also use, in another order, days, of which several are the same, and wards,
    of which one is this silo's alone, with gaps.
    """
    draw = np.random.Generator(np.random.Philox(sum(silo.encode())))
    patients = draw.permutation(size // 2)
    rows = []
    for _ in range(size):
        age, dose = draw.normal(50, 9), draw.normal()
        stage = int(np.clip(age / 12 - 2.5 + draw.normal(), 0, 3 - (silo == "east")))
        rows.append(
            {
                "age": round(float(age), 3),
                "dose": round(float(dose), 3),
                "ill": "ny"[int(age + draw.normal(0, 9) > 50)],
                "stage": f"stage {stage}",
                "weight": round(float(age + 3 * dose), 3),
                "days": round(float(draw.exponential(90)) + 0.1, 3),
                "event": int(draw.integers(2)),
                "patient": f"p{patients[draw.integers(len(patients))]}",
                "ward": ["A", "B", f"of {silo}", ""][draw.integers(4)],
                "visit": f"2024-{draw.integers(1, 6):02d}-03",
            }
        )
    return rows


def mixed(rows, seed=0):
    """The rows of all silos, mixed; those of one silo keep their order."""
    draw, left = np.random.Generator(np.random.Philox(seed)), {n: list(r) for n, r in rows.items()}
    order = draw.permutation([name for name in sorted(rows) for _ in rows[name]])
    return [{**left[str(name)].pop(0), "silo": str(name)} for name in order]


LABELS = ("ill", "stage", "weight", "days", "event")


def columns_of(rows, labels, columns):
    """The rows without labels and columns that a case does not use."""
    unused = {*LABELS, "patient", "visit", "ward"} - {*labels, *columns}
    return [{k: v for k, v in row.items() if k not in unused} for row in rows]


def as_csv(rows, path):
    """Write rows as a CSV file."""
    path = path.with_suffix(".csv")
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def as_parquet(rows, path):
    """Write rows as a Parquet file."""
    pq.write_table(pa.Table.from_pylist(rows), path.with_suffix(".parquet"))
    return path.with_suffix(".parquet")


def as_images(rows, path):
    """Write rows as a folder of class images, below folders of their silos if they have one."""
    for row in rows:
        folder = path / row.get("silo", "") / row["stage"].replace(" ", "-")
        folder.mkdir(parents=True, exist_ok=True)
        grey = np.full((6, 6), int(row["age"]) % 256, np.uint8)
        grey[:3, int(row["days"]) % 6] = 200
        Image.fromarray(grey).save(folder / f"{row['patient']}-{row['days']:08.3f}.png")
    return path


def as_masks(rows, path):
    """Write rows as arrays of images and masks, with their patients and silos."""
    ages = np.array([row["age"] for row in rows])
    x = np.round(ages[:, None, None, None] + 9 * np.indices((8, 8)).sum(0)[None, ..., None])
    arrays = {"x": x.astype(np.uint8), "y": (x[..., 0] > 90).astype(np.uint8)}
    arrays["group"] = np.array([row["patient"] for row in rows])
    if "silo" in rows[0]:
        arrays["client"] = np.array([row["silo"] for row in rows])
    np.savez(path.with_suffix(".npz"), **arrays)
    return path.with_suffix(".npz")


def table(write, labels, *columns, run=(), **section):
    """A case of a table."""
    label = {"label_column": labels[0]} if len(labels) == 1 else {"label_columns": list(labels)}
    return Case(
        lambda rows, path: write(columns_of(rows, labels, columns), path),
        {"name": "table", **label, **section},
        dict(run),
    )


GROUPS, TIMES = {"group_column": "patient"}, {"time_column": "visit"}
STAGES = {"classes": [f"stage {k}" for k in range(4)]}
BALANCED = {"model": {"name": "mlp", "hidden": [4], "class_weights": "balanced"}}
UNET = {"model": {"name": "unet", "width": 2, "depth": 1}, "method": "fedper", "batch_size": 4}
CASES = {
    "csv, two classes": table(as_csv, ["ill"], run={"method": "ditto"}),
    "csv, four classes, groups": table(as_csv, ["stage"], "patient", **GROUPS, **STAGES),
    "csv, four classes, times": table(as_csv, ["stage"], "visit", run=BALANCED, **TIMES, **STAGES),
    "parquet, regression, times": table(
        as_parquet, ["weight"], "visit", targets="regression", **TIMES
    ),
    "parquet, two classes, groups and times": table(
        as_parquet, ["ill"], "patient", "visit", run={"method": "fedala"}, **GROUPS, **TIMES
    ),
    "csv, wards and gaps": table(
        as_csv, ["ill"], "ward", categories=["ward"], missing="median", run={"method": "fedavg"}
    ),
    "parquet, flags": table(as_parquet, ["event"], targets="multilabel"),
    "csv, survival, groups": table(
        as_csv, ["days", "event"], "patient", targets="survival", intervals=4, **GROUPS
    ),
    "images in folders": Case(
        as_images,
        {"name": "images", "classes": [f"stage-{k}" for k in range(4)]},
        {"method": "fedavg-ft"},
        {},
    ),
    "arrays, masks, groups": Case(
        as_masks, {"name": "arrays", "targets": "segmentation"}, UNET, {}
    ),
}


class OwnRows:
    """A federation whose silos read and split files of their own, and the lead's table of all."""

    def __init__(self, folder, case, sizes=SIZES, late=(), seed=0, **options):
        """Write the files, make the kits; ``late``: silos that are not founders."""
        self.folder, self.case, self.late = folder, case, late
        rows = {name: generate(name, size) for name, size in sizes.items()}
        files = folder / "files"
        files.mkdir(parents=True)
        self.paths = {n: case.write(rows[n], files / n) for n in rows}
        self.pooled = case.write(mixed(rows), files / "all")
        section = self.section(self.pooled, **case.pooled)
        run = {**RUN, **case.run, "seed": seed}
        scenario = Scenario.prepare(
            resolve(run, {"data": section, "partition": {"name": "natural"}, "workers": 1})
        )
        tree = {
            "name": "hospitals",
            "server": "127.0.0.1:28443",
            "places": 5,
            "deadline": 60.0,
            "wait": 5.0,
            "quorum": 1,
            **options,
            "run": run | {"metric": scenario.choice.metric.name},
            "task": of_files(scenario.dataset),
            "silo": [{"name": name} for name in rows if name not in late],
        }
        self.toml, self.kits, self.names = folder / "federation.toml", folder / "kits", [*rows]
        self.toml.write_text(tomli_w.dumps(tree))
        provision(self.toml, self.kits)
        for name in self.founders:
            self.describe(name)
        self.grid = LocalGrid(
            {10 + i: self.kits / n for i, n in enumerate(rows) if n in self.founders}
        )

    def section(self, path, **options):
        """A section data of the case."""
        return {**self.case.section, **TESTED, **options, "path": str(path)}

    @property
    def founders(self):
        """Names of the founding silos."""
        return [name for name in self.names if name not in self.late]

    @property
    def server(self):
        """The server's kit."""
        return self.kits / "server"

    def describe(self, name):
        """Name a silo's file in its kit."""
        path = self.kits / name / "silo.toml"
        settings = tomllib.loads(path.read_text()) | {"data": self.section(self.paths[name])}
        path.write_text(tomli_w.dumps(settings))

    def run(self):
        """Run the federation in this process, and return the silos' models."""
        run_study(self.grid, self.server)
        return self.models()

    def models(self):
        """The silos' models."""
        return loaded(
            {n: self.kits / n / "state" / "models" / "personal.safetensors" for n in self.names}
        )

    def scenario(self, members=None, membership=None, **options):
        """The scenario of ``pomona deploy simulate`` on the table of all; ``options``: of data."""
        below, prepare = of_study(self.toml, members)
        data = {"data": self.section(self.pooled, **self.case.pooled, **options), "workers": 1}
        overrides = {"membership": membership.model_dump(mode="json")} if membership else {}
        return prepare(resolve(below, data, overrides))

    def simulated(self, members=None, membership=None):
        """The models of that scenario."""
        folder = self.folder / "simulation"
        result = simulate(self.scenario(members, membership), folder)
        clients = result.about["clients"]
        return loaded(
            {
                n: folder / "models" / f"client-{clients.index(n):02d}.safetensors"
                for n in self.names
            }
        )
