"""Write the site's gallery below FOLDER: every figure of the catalogue, drawn from small runs.

python tools/figure_gallery.py FOLDER
"""

import shutil
import sys
import warnings
from contextlib import chdir
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import pomona
from method_pages import write
from pomona.cli import main as pomona_command
from pomona.core.errors import ConfigError
from pomona.data import from_clients
from pomona.results.wording import capital

PAGE = "gallery.md"
PICTURES = "gallery"
REPORT = "pomona report RUN... --figures svg"
BENCH = "pomona report BENCH --figures svg"
PREVIEW = "pomona data show ... --out FOLDER"
HEADINGS = {REPORT: "Of runs", BENCH: "Of a bench", PREVIEW: "Of data, before any training"}
DIGITS: dict[str, Any] = {
    "partition": "practical",
    "clients": 12,
    "rounds": 12,
    "batch_size": 16,
    "lr": 0.1,
}
SURVIVAL: dict[str, Any] = {
    "name": "pomona.testing.task_checks:patients",
    "targets": "survival",
    "intervals": 6,
}


@dataclass(frozen=True)
class Entry:
    """A figure.

    Attributes:
        draw: the function that draws it, as module:function of ``results/figures``.
        name: of its files without suffix, as a pattern: several runs and scenarios have one each.
        shows: what is to be seen.
        command: what makes it.
    """

    draw: str
    name: str
    shows: str
    command: str = REPORT


CATALOGUE = (
    Entry("gain:gain", "gain", "each client's gain over training alone, with intervals"),
    Entry("clients:values", "clients", "the metric of each client"),
    Entry(
        "elsewhere:matrix",
        "elsewhere",
        "each client's model on each client's test rows (after pomona elsewhere)",
    ),
    Entry("classification:confusion", "confusion", "which class is taken for which"),
    Entry("stills:masks", "masks*", "images with truth and prediction"),
    Entry("classification:calibration", "calibration", "whether probabilities come true"),
    Entry(
        "classification:calibration_by_client",
        "calibration-by-client",
        "whether each client's probabilities come true",
    ),
    Entry("stills:survival", "survival", "survival by predicted risk"),
    Entry("curves:curves", "curves", "loss and metric over the rounds"),
    Entry("curves:traffic", "traffic", "the metric against what was sent"),
    Entry("partition:bubbles", "labels", "the labels of each client"),
    Entry("relationships:heatmap", "*-heatmap", "how much each client uses each other's model"),
    Entry("relationships:trajectories", "*-trajectories", "relationships over the rounds"),
    Entry("relationships:diagonal", "*-self", "how much each client relies on itself"),
    Entry("clusters:clusters", "cluster-map", "who is in which cluster, over the rounds"),
    Entry("client_values:scalars", "alpha-values", "a number that each client has learned"),
    Entry(
        "client_values:vectors", "ala-weight-values", "several numbers that each client has learned"
    ),
    Entry(
        "client_values:learning_curves", "ala-losses", "the loss while FedALA learns its weights"
    ),
    Entry("comparison_figures:diagram", "critical-difference", "mean ranks of methods", BENCH),
    Entry("comparison_figures:curves", "curves-*", "methods over the rounds, over seeds", BENCH),
    Entry(
        "comparison_figures:gains_by_client", "gains-*", "gains of each client, by method", BENCH
    ),
    Entry("comparison_figures:ablations", "ablation-*", "the metric by a varied setting", BENCH),
    Entry("contact_sheet:contact_sheet", "images", "an image of each client", PREVIEW),
)


def page() -> str:
    """Return the gallery as Markdown."""
    blocks = [
        "# Gallery",
        "Every figure that Pomona draws, made from small runs while this site was built. A "
        "report's page has them with their numbers; the commands write them as files (svg, pdf, "
        "png, csv). What they mean: [read a report](guides/read-a-report.md).",
    ]
    for command, heading in HEADINGS.items():
        blocks += [f"## {heading}", f"```text\n{command}\n```"]
        entries = [entry for entry in CATALOGUE if entry.command == command]
        for title, path in ((capital(e.shows), picture(e)) for e in entries):
            blocks += [f"### {title}", f"![{title}]({path})"]
    return "\n\n".join(blocks) + "\n"


def picture(entry: Entry) -> str:
    """Return the path of a figure's picture from the page."""
    suffix = "png" if entry.command == PREVIEW else "svg"
    return f"{PICTURES}/{entry.draw.replace(':', '-')}.{suffix}"


def draw() -> None:
    """Draw all figures below the current folder, by the commands that make them."""
    settings: dict[str, Any] = {"fedala": {"layers": 2}, "apfl": {"adaptive": True}}
    for name in ("separate", "fedavg", "apple", "fedala", "apfl", "ifca"):
        method = {"name": name, **settings.get(name, {})}
        pomona.run(method=method, out=f"runs/{name}", **DIGITS)
    turned = {"name": "dirichlet", "beta": 1.0, "turn_groups": 2}
    clustered = {"name": "cfl", "eps_mean": 1.0, "eps_max": 0.0, "warmup_rounds": 2}
    pomona.run(method=clustered, out="runs/cfl", **{**DIGITS, "partition": turned})
    two_classes: dict[str, Any] = {"data": "breast-cancer", "partition": "iid", "clients": 3}
    pomona.run(method="fedavg", rounds=8, lr=0.1, out="runs/two-classes", **two_classes)
    pomona.run(method="fedavg", data=SURVIVAL, clients=3, rounds=5, lr=0.3, out="runs/survival")
    masks: dict[str, Any] = {"data": spots(), "model": {"name": "unet", "width": 4, "depth": 2}}
    masks |= {"optimizer": "adamw", "lr": 0.02}
    pomona.run(method="fedavg", rounds=24, batch_size=8, out="runs/masks", **masks)
    command("elsewhere", "runs/apple")
    report("runs/separate", "runs/fedavg", "runs/apple")
    for name in ("fedala", "apfl", "ifca", "cfl", "two-classes", "survival", "masks"):
        report(f"runs/{name}")
    rates = {
        f"apple-{rate}": {"method": {"name": "apple", "dr_lr": rate}} for rate in (0.001, 0.01, 0.1)
    }
    scenarios = {
        f"beta-{b}": {"partition": {"name": "dirichlet", "beta": b}} for b in (0.1, 0.3, 1.0)
    }
    pomona.bench(
        {"separate": {}, "fedavg": {}, **rates},
        "runs/bench",
        scenarios=scenarios,
        jobs=1,
        rounds=8,
        clients=6,
        lr=0.1,
    )
    report("runs/bench")
    command("data", "show", "--data", "digits", "clients=6", "--out", "shown")


def command(*arguments: str) -> None:
    """Run a command of ``pomona``. Raises SystemExit if it fails."""
    try:
        pomona_command(arguments)
    except SystemExit as end:
        if end.code:
            raise


def report(*runs: str) -> None:
    """Write a report with its figures."""
    folder = f"reports/{Path(runs[-1]).name}"
    command("report", *runs, "--out", folder, "--figures", "svg")


def spots() -> object:
    """Return images (16, 16) of two sites, and masks of the bright spots in them."""
    generator, pixels = np.random.Generator(np.random.Philox(0)), np.arange(16)

    def site(n: int, contrast: float) -> tuple[object, object]:
        centres = generator.uniform(3, 13, (2, n, 1, 1))
        y = (pixels[:, None] - centres[0]) ** 2 + (pixels - centres[1]) ** 2 < 9
        x = 128 + contrast * (y - 0.5) + 25 * generator.normal(size=y.shape)
        return x.clip(0, 255).astype(np.uint8), y.astype(np.uint8)

    sites = {"north": site(30, 80), "south": site(30, 40)}
    return from_clients(sites, test_share=0.3, targets="segmentation", classes=["ground", "spot"])


def collect(folder: Path) -> None:
    """Copy a picture of each entry. Raises ConfigError for those that no command has drawn."""
    pictures = [*Path().rglob("*.svg"), *Path("shown").glob("*.png")]
    pictures.sort(key=lambda path: path.stat().st_mtime_ns)  # of the report of three runs first
    missing = []
    for entry in CATALOGUE:
        target = folder / picture(entry)
        paths = (p for p in pictures if p.suffix == target.suffix and fnmatch(p.stem, entry.name))
        if path := next(paths, None):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
        else:
            missing.append(f"{entry.draw} ({entry.name})")
    if missing:
        raise ConfigError(
            f"no picture of {', '.join(missing)}; drawn: {[p.stem for p in pictures]}"
        )


def main() -> None:
    """Write the page and its pictures."""
    folder = Path(sys.argv[1]).resolve()
    warnings.simplefilter("ignore", pomona.PomonaWarning)
    write({PAGE: page()}, folder)
    with TemporaryDirectory() as temporary, chdir(temporary):
        draw()
        collect(folder)


if __name__ == "__main__":
    main()
