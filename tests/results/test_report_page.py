"""The page and its files: complete, well formed, self-contained, and equal to the result's
numbers.
"""

import base64
import csv
import hashlib
import json
import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from io import BytesIO
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image
from report_results import comparison, degenerate, result

from pomona.config import resolve
from pomona.core.errors import ConfigError, StorageError
from pomona.core.table import PLACEHOLDER
from pomona.metrics.metric import ACCURACY
from pomona.record.paired_gain import gains
from pomona.record.result import Result
from pomona.results.figures.classification import pooled_confusion
from pomona.results.figures.curves import curves
from pomona.results.figures.plot import FORMATS, drawing
from pomona.results.run_numbers import runs
from pomona.results.web.page_writer import MOST_CELLS, numbers
from pomona.results.web.report_page import settings, write
from pomona.simulation import run as trained

pytestmark = pytest.mark.long

VOID = {
    "meta", "br", "hr", "img", "input", "link", "source", "wbr", "col", "area", "base", "embed", "track",
}  # fmt: skip
FIGURES = {
    "gain", "curves", "traffic", "clients", "confusion", "dr-heatmap", "dr-trajectories", "dr-self", "schedule-values",
    "labels",
}  # fmt: skip


class Page(HTMLParser):
    """Reads a page and keeps what the tests need; fails on an unclosed tag."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.text: list[str] = []
        self.scripts: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open, f"left open: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(set(names)) == len(names), f"{tag} repeats an attribute: {names}"
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open[-1] == tag, f"</{tag}> closes <{self.open[-1]}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        (self.scripts if self.open and self.open[-1] == "script" else self.text).append(data)

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.tags if name == tag]


def check(path: Path) -> Page:
    """Check everything that holds for any page."""
    text = path.read_text(encoding="utf-8")
    page = Page(text)
    ids = Counter(a["id"] for _, a in page.tags if "id" in a)
    assert [name for name, count in ids.items() if count > 1] == []
    assert page.all("html")[0]["lang"] == "en"
    assert len(page.all("h1")) == 1
    assert not page.all("link") + page.all("iframe") + page.all("object")
    assert page.all("script") == [{}]
    (code,) = page.scripts
    policy = next(
        a["content"] for a in page.all("meta") if a.get("http-equiv") == "Content-Security-Policy"
    )
    assert (
        f"script-src 'sha256-{base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()}'"
        in policy
    )
    inside = re.compile(r"data:image/png;base64,[\w+/=]+")  # pictures in the page itself
    assert re.findall(r"(?:https?:)?//[\w.]+", inside.sub("", text)) == []
    assert not re.search(
        r"fetch\(|XMLHttpRequest|WebSocket|import\(|eval\(|innerHTML|sendBeacon", code
    )
    assert page.all("img") == []
    drawings = [svg for svg in page.all("svg") if len(svg["aria-label"]) > 10]
    assert len(drawings) == len(page.all("figure")) == len(page.all("figcaption"))
    assert all(inside.fullmatch(image["href"]) for image in page.all("image"))
    for _, attributes in page.tags:
        for name in ("href", "aria-labelledby", "aria-describedby", "clip-path", "fill"):
            target = re.fullmatch(r"(?:#|url\(#)([^)]*)\)?", attributes.get(name, ""))
            if name.startswith("aria") and name in attributes:
                assert attributes[name] in ids
            if target:
                assert target[1] in ids
    for link in page.all("a"):
        if not link["href"].startswith("#"):
            assert (path.parent / link["href"]).stat().st_size > 0
    return page


@pytest.fixture(scope="module")
def results() -> list[Result]:
    return comparison()


@pytest.fixture(scope="module")
def report(results: list[Result], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(results, tmp_path_factory.mktemp("report"), FORMATS)


def table_of(page: Path, name: str) -> list[dict[str, str]]:
    with (page.parent / "figures" / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_a_comparison_has_every_figure(report: Path) -> None:
    assert report.name == "report.html"
    page = check(report)
    for suffix in FORMATS:
        assert {p.stem for p in (report.parent / "figures").glob(f"*.{suffix}")} == FIGURES
    assert {figure["id"] for figure in page.all("figure")} == {f"figure-{n}" for n in FIGURES}
    assert report.stat().st_size < 5e5


def test_marks_have_their_numbers_as_tooltips(report: Path, results: list[Result]) -> None:
    text = report.read_text(encoding="utf-8")
    values = results[3].curve("personal", "trained")[-1].accuracy
    for client, value in enumerate(values):
        assert f"<title>clinic {client + 1}, APPLE: {ACCURACY.text(value)}</title>" in text


def test_the_numbers_of_a_figure_are_below_it_bounded(results: list[Result]) -> None:
    with drawing():
        picture = curves(runs(results))
    table = numbers(picture)
    cells = len(table.header) * len(table.rows)
    assert 0 < cells <= MOST_CELLS < len(picture.rows) * len(picture.rows[0])
    rounds = [int(row[table.header.index("round")]) for row in table.rows]
    assert (min(rounds), max(rounds)) == (1, 40)
    assert "--figures csv" in table.notes[-1]
    constant = replace(
        picture, rows=[{"metric": "accuracy", "low": None, "value": v} for v in (1.0, 2 / 3)]
    )
    assert numbers(constant).rows == [["1"], ["0.6667"]]
    assert numbers(constant).notes == ["metric: accuracy"]
    assert numbers(replace(picture, rows=[])).rows == []


def test_pictures_are_drawn(report: Path) -> None:
    for path in (report.parent / "figures").glob("*.png"):
        with Image.open(path) as image:
            grey = np.asarray(image.convert("L"))
        assert min(grey.shape) > 150
        assert np.unique(grey).size > 10
        # Nothing is cut off: the outermost pixels are the white of the paper.
        assert (
            np.concatenate([grey[0], grey[-1], grey[:, 0], grey[:, -1]]) > 250
        ).mean() > 0.995, path.name


def test_drawings_for_papers_are_vectors_with_nothing_from_elsewhere(report: Path) -> None:
    for path in (report.parent / "figures").glob("*.svg"):
        svg = ElementTree.parse(path).getroot()
        assert svg.tag == "{http://www.w3.org/2000/svg}svg"
        links = [
            value for node in svg.iter() for name, value in node.items() if name.endswith("href")
        ]
        assert all(link.startswith(("#", "data:")) for link in links), path.name
        embedded = [
            base64.b64decode(link.split(",")[1]) for link in links if link.startswith("data:")
        ]
        # Word and Inkscape blur the borders of a picture that has a pixel for each field.
        assert all(max(Image.open(BytesIO(image)).size) > 100 for image in embedded), path.name


def test_pdf_drawings_hold_text_as_text_and_no_date(report: Path) -> None:
    for path in (report.parent / "figures").glob("*.pdf"):
        content = path.read_bytes()
        assert content.startswith(b"%PDF-")
        assert b"/FontFile2" in content, path.name  # TrueType outlines, embedded
        assert b"/Type3" not in content, path.name
        assert b"Date" not in content, path.name
    # Curves are paths: nothing in the file is a picture.
    assert b"/Subtype /Image" not in (report.parent / "figures" / "curves.pdf").read_bytes()


def test_a_figure_has_the_same_bytes_each_time_it_is_drawn(
    report: Path, results: list[Result], tmp_path: Path
) -> None:
    with drawing():
        picture = curves(runs(results))
        picture.save(tmp_path)
    for suffix in FORMATS:
        first_file, second_file = (
            folder / f"curves.{suffix}" for folder in (report.parent / "figures", tmp_path)
        )
        assert first_file.read_bytes() == second_file.read_bytes(), suffix


def test_no_two_curves_of_a_run_look_alike() -> None:
    run = trained(resolve({"method": "fedavg-ft", "clients": 2, "rounds": 2, "lr": 0.1}))
    lines = curves(runs([run])).figure.axes[-1].lines
    assert len({(line.get_color(), str(line._dash_pattern)) for line in lines}) == len(lines) == 3


def test_curves_csv_holds_the_records_numbers(report: Path, results: list[Result]) -> None:
    rows = table_of(report, "curves")
    for run in runs(results):
        mine = [r for r in rows if r["run"] == run.label]
        losses = [float(r["value"]) for r in mine if r["quantity"] == "train loss"]
        assert losses == [float(np.mean(r.loss)) for r in run.result.rounds]
        for evaluation in (e for e in run.result.evaluations if e.split == "test"):
            values = [
                float(r["value"])
                for r in mine
                if (r["quantity"], r["model"], r["when"])
                == ("test accuracy", evaluation.model, evaluation.when)
                and int(r["round"]) == evaluation.round
            ]
            assert values == [float(np.mean(evaluation.accuracy))]


def test_clients_csv_holds_accuracy_and_gain(report: Path, results: list[Result]) -> None:
    rows = {(r["run"], int(r["client"])): r for r in table_of(report, "clients")}
    apple, separate = (results[i].curve("personal", "trained")[-1].accuracy for i in (3, 0))
    for client in range(12):
        row = rows["APPLE", client]
        assert (row["metric"], float(row["value"])) == ("accuracy", apple[client])
        assert float(row["gain_over_separate"]) == apple[client] - separate[client]
        client_gains, _ = gains(results[3], results[0])
        assert (float(row["gain_low"]), float(row["gain_high"])) == (
            client_gains[client].low,
            client_gains[client].high,
        )
        assert (
            rows["Separate", client]["gain_over_separate"]
            == rows["Separate", client]["gain_low"]
            == ""
        )


def test_traffic_csv_accumulates_bytes(report: Path, results: list[Result]) -> None:
    rows = [r for r in table_of(report, "traffic") if r["run"] == "APPLE"]
    per_round = sum(results[3].rounds[0].bytes_down) + sum(results[3].rounds[0].bytes_up)
    assert [float(r["megabytes"]) for r in rows] == pytest.approx(
        [per_round * k / 1e6 for k in range(1, 41)]
    )


def test_relationship_csvs_hold_the_matrices(report: Path, results: list[Result]) -> None:
    recorded = dict(results[3].matrices("dr"))
    heat = table_of(report, "dr-heatmap")
    names = results[3].about["clients"]
    assert sorted({int(r["round"]) for r in heat}) == [1, 20, 40]
    assert [r["name"] for r in heat] == 3 * names  # as the columns, whatever the figure's order
    assert list(heat[0])[4:] == [f"p {name}" for name in names]
    for row in heat + table_of(report, "dr-trajectories"):
        values = [float(row[f"p {name}"]) for name in names]
        assert values == recorded[int(row["round"])][int(row["client"])].tolist()
    for row in table_of(report, "dr-self"):
        assert [float(row[f"p {name}"]) for name in names] == np.diag(
            recorded[int(row["round"])]
        ).tolist()


def test_schedule_csv_holds_lambda(report: Path, results: list[Result]) -> None:
    recorded = {r: v[0] for r, v in results[3].matrices("schedule")}
    for row in table_of(report, "schedule-values"):
        assert float(row["schedule"]) == recorded[int(row["round"])]


def test_label_csv_holds_the_counts(report: Path, results: list[Result]) -> None:
    counts = np.array(results[0].about["label_counts"])
    labels = [int(r["count"]) for r in table_of(report, "labels")]
    assert labels == counts.ravel().tolist()


def test_confusion_is_the_sum_over_clients_of_the_leading_run(
    report: Path, results: list[Result]
) -> None:
    expected = sum(np.array(r["confusion"]) for r in results[3].final)
    counts = [int(r["count"]) for r in table_of(report, "confusion")]
    assert counts == expected.ravel().tolist()
    pooled = pooled_confusion(runs(results)[3])
    assert pooled is not None
    np.testing.assert_array_equal(pooled, expected)


def test_page_states_the_headline_numbers(report: Path, results: list[Result]) -> None:
    text = " ".join(" ".join(check(report).text).split())
    mean = float(np.mean(results[3].curve("personal", "trained")[-1].accuracy))
    assert (
        "Federation helps: APPLE, the best of 3 runs, is ahead of Separate, training alone, in "
        "accuracy"
    ) in text
    assert f"{ACCURACY.text(mean)} against" in text.replace("\N{NO-BREAK SPACE}", " ")
    for value in ("f" * 16, "ab" * 32, "431,080", "2.13.0", "method.schedule_share"):
        assert value in text


def test_writing_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    results = [result("separate", n=2, rounds=2, classes=2)]
    first, second = (write(results, tmp_path / name, ("svg", "csv")).parent for name in "ab")
    for path in [p.relative_to(first) for p in first.rglob("*.*") if p.is_file()]:
        assert (first / path).read_bytes() == (second / path).read_bytes()


def test_names_from_data_are_text(tmp_path: Path) -> None:
    names = [
        "<script>alert(1)</script>",
        "a $\\frac{1$ b",
        '"><img src=x onerror=1>',
        "診療所",
        "--><b>",
        "x" * 300,
    ]
    page = check(write([result("apple", n=6, rounds=1, classes=2, names=names)], tmp_path))
    assert "<script>alert(1)</script>" in "".join(page.text)
    assert not page.all("b")


RELATIONSHIPS = {"dr-heatmap", "dr-trajectories", "dr-self"}
FIGURES_OF_FEW_CLASSES = FIGURES | {"calibration"}  # of few classes, whose calibration is drawn
PLAIN = FIGURES_OF_FEW_CLASSES - RELATIONSHIPS - {"schedule-values"}
FIGURES_BY_LACK = {
    "no validation": PLAIN,
    "nothing happened": {"labels"},
    "no labels": PLAIN - {"labels"},
    "one client": FIGURES_OF_FEW_CLASSES - RELATIONSHIPS,
    "one class": (PLAIN | {"calibration-by-client"}) - {"confusion"},
    "cut short": PLAIN - {"confusion"},
    "only separate": PLAIN - {"traffic"},
    "no relationships": PLAIN,
    "regression": {
        *("gain", "curves", "traffic", "clients"),
        *(f"{n}-apple{twin}" for n in RELATIONSHIPS | {"schedule-values"} for twin in ("", "-2")),
    },
}


@pytest.mark.parametrize("lack", degenerate())
def test_what_is_missing_is_left_out(lack: str, tmp_path: Path) -> None:
    check(write(degenerate()[lack](), tmp_path, ("csv",)))
    figure_names = {p.stem for p in (tmp_path / "figures").glob("*.csv")}
    if expected := FIGURES_BY_LACK.get(lack):
        assert figure_names == expected


def test_style_leaves_matplotlib_as_it_was(tmp_path: Path) -> None:
    import matplotlib as mpl

    parameters_before = dict(mpl.rcParams)
    write([result("separate", n=2, rounds=1, classes=2)], tmp_path, ("svg",))
    assert dict(mpl.rcParams) == parameters_before


def test_errors_name_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="give one or more run folders"):
        write([], tmp_path)
    (tmp_path / "figures").write_text(json.dumps("in the way"))
    with pytest.raises(StorageError, match="give another folder"):
        write([result("separate", n=2, rounds=1, classes=2)], tmp_path, ("csv",))


def test_settings_that_were_chosen_come_before_the_defaults() -> None:
    base = {"clients": 2, "rounds": 1, "lr": 0.1, "partition": {"name": "iid"}}
    results = [
        trained(resolve(base, {"method": method}))
        for method in ({"name": "fedprox", "mu": 0.3}, {"name": "separate"})
    ]
    chosen, defaults = settings(runs(results))
    assert [line for line in chosen if line[0].startswith("method.")] == [
        ("method.name", ["fedprox", "separate"], True),
        ("method.mu", ["0.3", PLACEHOLDER], True),
    ]
    assert ("lr", ["0.1", "0.1"], False) in chosen
    assert ("momentum", ["0.0", "0.0"], False) in defaults
    assert {key for key, *_ in chosen} >= {
        "clients",
        "rounds",
        "data.name",
        "partition.name",
        "model.name",
    }
    changed = settings(
        runs([results[0], replace(results[1], config={**results[1].config, "momentum": 0.5})])
    )
    assert ("momentum", ["0.0", "0.5"], True) in changed[0]
    unknown = replace(
        results[0], about={k: v for k, v in results[0].about.items() if k != "chosen"}
    )
    assert [key for key, *_ in settings(runs([unknown]))[1] if not key.startswith("record.")] == []
