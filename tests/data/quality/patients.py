"""Tables of made-up patients of three hospitals, and their notes."""

import numpy as np
import pandas as pd

from pomona.config import Config
from pomona.data import from_frame
from pomona.scenario import Scenario

SITES = ("North", "South", "East")


def patients(n=240, seed=0):
    """Return n patients without oddities, of three hospitals in turn."""
    draw = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "site": np.array(SITES)[np.arange(n) % 3],
            "age": draw.integers(20, 90, n),
            "crp": np.round(np.exp(draw.normal(1, 1, n)), 2),
            "sodium": draw.normal(140, 3, n).round(1),
            "y": np.where(draw.random(n) < 0.4, "ill", "well"),
        }
    )


def notes(frame, **settings):
    """Return the notes on a frame, with its label y and its clients site, but for its features."""
    return data_notes(
        from_frame(frame, **{"label_column": "y", "client_column": "site"} | settings)
    )


def data_notes(data, **settings):
    """Return the notes on data of a run, but for those on how features are made."""
    lines = Scenario.prepare(Config(data=data, **settings)).dataset.notes
    return [line for line in lines if "become" not in line and "too rare" not in line]


def one(lines, *facts):
    """Return the only line; it has all the facts."""
    assert len(lines) == 1, lines
    assert [fact for fact in facts if fact not in lines[0]] == [], lines[0]
    return lines[0]
