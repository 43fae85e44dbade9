"""A suite of the repository at size smoke, from the command line to the page beside the paper's
table.
"""

import csv
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import tomli_w
from paper_suites import FOLDER

SUITE = FOLDER / "apple-table1.toml"
# one with data, one whose data has to be fetched
COLUMNS = ["mnist-pathological", "pathmnist-practical"]
ROWS = ["separate", "apple"]
DATA = os.environ.get("POMONA_DATA")


def pomona(*arguments):
    """Run a command in a separate process: exit code, standard output, standard error."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    process = subprocess.run(
        [sys.executable, "-m", "pomona", *map(str, arguments)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=600,
        check=False,
    )
    return process.returncode, process.stdout, process.stderr


@pytest.mark.slow
@pytest.mark.skipif(
    not DATA, reason="needs MNIST: set POMONA_DATA to the folder with the data sets"
)
def test_table_1_of_apple_at_size_smoke_from_suite_to_page(tmp_path):
    suite = tomllib.loads(SUITE.read_text(encoding="utf-8"))
    suite["reference"] = str(FOLDER / suite["reference"])
    suite["size"]["smoke"] |= {"scenarios": COLUMNS, "methods": ROWS}
    (tmp_path / SUITE.name).write_text(tomli_w.dumps(suite))
    code, _, err = pomona(
        "bench",
        tmp_path / SUITE.name,
        "rounds=1",
        "data.train_limit=300",
        "--size",
        "smoke",
        "--out",
        tmp_path / "bench",
    )
    assert (code, err.splitlines()[-1].split(" ")[1]) == (0, "of"), err  # the last line of progress
    results = json.loads((tmp_path / "bench" / "results.json").read_text())
    states = {
        scenario: [r["state"] for r in results["results"] if r["scenario"] == scenario]
        for scenario in COLUMNS
    }
    fetched = (Path(DATA) / "pathmnist.npz").exists()
    expected = ["finished", "finished" if fetched else "data missing"]
    assert states == {c: [state] * len(ROWS) for c, state in zip(COLUMNS, expected, strict=True)}

    code, page, err = pomona("report", tmp_path / "bench")
    assert (code, err) == (0, "")
    text = Path(page.strip()).read_text(encoding="utf-8")
    lines = list(
        csv.DictReader(
            (tmp_path / "bench" / "comparison.csv").read_text(encoding="utf-8").splitlines()
        )
    )
    for line in lines:
        ours = line["best_test_mean"]
        assert bool(ours) == (line["state"] == "finished")
        if ours:
            assert float(line["difference"]) == pytest.approx(
                100 * float(ours) - float(line["reference"]), abs=1e-3
            )
    assert len(lines) == 2 * len(ROWS)
    assert "99.77" in text  # APPLE on MNIST, pathological, in the paper
