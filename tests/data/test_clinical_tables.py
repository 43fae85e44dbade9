"""Tables of SPSS, Stata, SAS and spreadsheets as data of a run: the same as CSV's."""

from datetime import date

import numpy as np
import pandas as pd
import pyreadstat
import pytest

from pomona.core.errors import ConfigError
from pomona.data import data_settings, read

ROWS = 12
LABELS = {"sex": {1: "female", 2: "male"}, "y": {0: "no", 1: "yes"}}


def patients():
    k = np.arange(ROWS)
    days = [date(2024, 3, 1 + i) for i in range(ROWS)]
    frame = pd.DataFrame({"site": 100000.0 + k % 2, "age": 30.0 + k, "sex": 1.0 + k % 3 % 2,
                          "visit": days, "y": k // 2 % 2 * 1.0})  # fmt: skip
    return frame.assign(crp=k / 8)


def labelled(frame):
    return frame.assign(**{name: frame[name].map(texts) for name, texts in LABELS.items()})


WRITERS = {
    "a.sav": lambda f, p: pyreadstat.write_sav(f, str(p), variable_value_labels=LABELS),
    "a.zsav": lambda f, p: pyreadstat.write_sav(
        f, str(p), compress=True, variable_value_labels=LABELS
    ),
    "a.dta": lambda f, p: labelled(f.assign(visit=pd.to_datetime(f.visit))).to_stata(
        p, write_index=False, convert_dates={"visit": "td"}
    ),
    "a.xlsx": lambda f, p: labelled(f).to_excel(p),
    "a.ods": lambda f, p: labelled(f).to_excel(p, index=False, engine="odf"),
}


def data(path, **settings):
    settings = {"categories": ["sex"], "dates": ["visit"], **settings}
    return read(
        data_settings(name="table", path=path, label_column="y", client_column="site", **settings)
    )


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    labelled(patients()).to_csv(path, index=False)
    return data(path)


@pytest.mark.parametrize("name", WRITERS)
def test_labels_clients_dates_and_categories_are_those_of_csv(name, tmp_path, expected):
    WRITERS[name](patients(), tmp_path / name)
    dataset = data(tmp_path / name)
    assert dataset.classes == expected.classes == ("no", "yes")
    assert dataset.owners.names == expected.owners.names == ("100000", "100001")
    assert dataset.raw.x.tolist() == expected.raw.x.tolist()
    assert dataset.raw.values == expected.raw.values
    assert dataset.y.tolist() == expected.y.tolist()


def test_codes_in_place_of_labels_and_gaps_that_spss_declares(tmp_path):
    frame = patients()
    path = tmp_path / "a.sav"
    pyreadstat.write_sav(
        frame, str(path), variable_value_labels=LABELS, missing_ranges={"age": [30]}
    )
    dataset = data(path, value_labels="codes", missing="median")
    assert dataset.classes == ("0", "1")
    assert np.isnan(dataset.raw.x).sum() == 1
    assert any("age (30: 1)" in note for note in map(str, dataset.notes))


def test_a_setting_of_another_format_is_refused_by_name(tmp_path):
    for name, setting in (("a.csv", {"sheet": "x"}), ("a.xlsx", {"value_labels": "codes"}),
                          ("a.sav", {"header_row": 2}), ("a.dta", {"separator": ","})):  # fmt: skip
        with pytest.raises(ConfigError, match=rf"data.{next(iter(setting))}: .*remove it"):
            data_settings(path=tmp_path / name, **setting)
