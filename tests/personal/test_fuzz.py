"""Damaged model files and inputs give a one-line error or a correct answer, never a silently
different one.
"""

import io
import json
import math

import numpy as np
import pytest
from crafted import craft, good, tree
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from PIL import Image

from damage import damages
from pomona.core.errors import DataError, StorageError
from pomona.models import ModelSettings, build
from pomona.personal import PersonalModel
from pomona.personal.inputs import read

pytestmark = pytest.mark.long

ROWS = np.array([[3.0, 5.0], [-1.0, 40.0]], np.float32)
QUICK = settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])


def answered(path, rows=ROWS):
    """A model's answers, or None if one of the two errors refuses the file, in one line."""
    try:
        return PersonalModel.load(path).predict(rows)
    except (StorageError, DataError) as fault:
        message = str(fault)
    assert message.isprintable()
    return None


def test_every_byte_of_a_model_is_guarded(tmp_path):
    """One bit of each byte flips: the file is refused, or answers as before (a blank of the
    header).
    """
    path = good(tmp_path / "m")
    data, answers = path.read_bytes(), answered(path)
    for byte in range(len(data)):
        path.write_bytes(data[:byte] + bytes([data[byte] ^ (1 << byte % 8)]) + data[byte + 1 :])
        assert answered(path) in (None, answers), f"byte {byte}"


@QUICK
@given(damages())
def test_a_damaged_model_is_refused_or_answers_as_before(tmp_path, damage):
    path = good(tmp_path / "m")
    answers = answered(path)
    path.write_bytes(damage(path.read_bytes()))
    assert answered(path) in (None, answers)


NUMBERS = st.one_of(
    st.integers(),
    st.floats(),
    st.sampled_from([2**31, 2**53, 2**63, 10**30, -1, 0, 1, 2, 3, 1e308]),
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | NUMBERS
    | st.text(max_size=8)
    | st.sampled_from(["mlp", "resnet18", "image", "text"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["name", "hidden", "a"]), inner)
    ),
    max_leaves=6,
)
EDITS = st.dictionaries(st.sampled_from([*tree(), "more"]), VALUES, min_size=1, max_size=3)


@QUICK
@given(EDITS)
@example({"network": {"name": "mlp", "hidden": [1] * 100_000}})
@example({"targets": "regression", "classes": [], "labels": ["a", "b"]})
def test_metadata_that_somebody_wrote_and_sealed_are_refused_or_make_sense(tmp_path, edits):
    metadata = tree(**edits)
    try:
        craft(tmp_path / "m", metadata)
    except (ValueError, UnicodeError):
        return  # NaN and half characters are no JSON: nobody can seal them
    answers = answered(tmp_path / "m")
    if answers is not None:
        assert len(answers) == len(ROWS)
        json.dumps(answers, allow_nan=False)


def archive(x):
    file = io.BytesIO()
    np.savez_compressed(file, x=x)
    return file.getvalue()


def png(pixels):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png")
    return file.getvalue()


PIXELS = np.arange(64, dtype=np.uint8).reshape(8, 8)
INPUTS = {
    "table.csv": b"age,site,dose\n3,Ulm,5\n30,Aue,0.5\n",
    "table.npz": archive(ROWS),
    "image.npz": archive(PIXELS[None]),
    "image.png": png(PIXELS),
    "text.txt": "up and down\nÄrger\n".encode(),
    "text.csv": b'body,title\nup,"a ""quoted"" one"\n',
}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A model for each kind of samples."""
    folder = tmp_path_factory.mktemp("models")
    picture = {
        "network": {"name": "small"}, "kind": "image", "input_shape": [1, 8, 8], "columns": [], "shift": [127.5],
        "scale": [127.5],
    }  # fmt: skip
    text = {
        "network": {"name": "fasttext"}, "kind": "text", "input_shape": [3], "vocabulary": 4, "words": ["up", "down"],
        "columns": ["body", "title"], "shift": [0.0], "scale": [1.0],
    }  # fmt: skip
    small = build(ModelSettings(name="small"), (1, 8, 8), 2).state_dict()
    fasttext = build(ModelSettings(name="fasttext"), (3,), 2, 4).state_dict()
    return {
        "table": PersonalModel.load(good(folder / "t")),
        "image": PersonalModel.load(craft(folder / "i", tree(**picture), small)),
        "text": PersonalModel.load(craft(folder / "x", tree(**text), fasttext)),
    }


@pytest.mark.parametrize("name", INPUTS)
@settings(QUICK, max_examples=100)
@given(damages())
def test_damaged_inputs_are_refused_or_answered(tmp_path, models, name, damage):
    path, model = tmp_path / name, models[name.partition(".")[0]]
    path.write_bytes(damage(INPUTS[name]))
    try:
        answers = model.predict(read(path, model.about).x)
    except DataError as fault:
        message = str(fault)
    else:
        message = ""
        assert all(math.isfinite(p) for answer in answers for p in answer["probabilities"].values())
    assert not message or message.isprintable()
