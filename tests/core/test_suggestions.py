"""Unknown names: what a user most likely meant, by case, by synonym, by spelling."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import pomona
from pomona.config import resolve
from pomona.core.errors import ConfigError, suggestion
from pomona.core.synonyms import SYNONYMS, canonical, normalized
from pomona.core.training_settings import OPTIMIZERS
from pomona.data.section import NAMES as DATA_NAMES
from pomona.methods import METHODS
from pomona.metrics.metric import METRICS
from pomona.models import MODELS, build
from pomona.partition import RECIPES

NAMES = {
    "method": METHODS,
    "data": DATA_NAMES,
    "model": MODELS,
    "partition": RECIPES,
    "metric": METRICS,
    "optimizer": OPTIMIZERS,
}


def refusal(**settings):
    with pytest.raises(ConfigError) as fault:
        build(pomona.Config(**settings).model, (3, 32, 32), 2)
    return str(fault.value)


@pytest.mark.parametrize(
    ("key", "name", "suggestion"),
    [
        ("optimizer", "adan", "adam or adamw"),
        ("model", "U-Net", "unet"),
        ("metric", "AUC", "auroc"),
        ("method", "local", "separate"),
        ("partition", "non-IID", "dirichlet or pathological"),
    ],
)
def test_synonyms_and_spelling_do_not_hide_a_name(key, name, suggestion):
    text = refusal(**{key: name})
    assert f"did you mean {suggestion}?" in text
    assert len(text) < 150


@pytest.mark.parametrize(
    ("key", "written", "name"),
    [
        ("optimizer", "Adam", "adam"),
        ("model", "MLP", "mlp"),
        ("metric", "AUROC", "auroc"),
        ("metric", "Macro-F1", "macro_f1"),
        ("data", "fashion_mnist", "fashion-mnist"),
        ("method", "FedAvg", "fedavg"),
        ("method", "FedAvg FT", "fedavg-ft"),
        ("partition", "Dirichlet", "dirichlet"),
    ],
)
def test_case_and_separators_do_not_count(key, written, name):
    section = {"name": written} if key != "metric" else written
    for value in (written, section):
        assert pomona.Config(**{key: value}) == pomona.Config(**{key: name})


def test_a_name_in_another_case_keeps_the_settings_of_the_layer_below():
    config = resolve({"method": {"name": "apple", "mu": 0.5}}, {"method": {"name": "APPLE"}})
    assert config.method.mu == 0.5


@given(st.lists(st.text(alphabet="aAbB-_ ", max_size=3), unique=True, max_size=4), st.data())
def test_a_name_is_itself_or_the_only_one_that_differs_in_case(names, data):
    written = data.draw(st.text(alphabet="aAbB-_ ", max_size=3))
    alike = [name for name in names if normalized(name) == normalized(written)]
    unclear = written in names or len(alike) != 1
    assert canonical(written, names) == (written if unclear else alike[0])


@pytest.mark.parametrize("name", ["image", "PNG", "tables", "Excel", "texts", "numpy"])
def test_words_for_forms_of_data_are_understood(name):
    hint = refusal(data=name).partition("did you mean ")[2].partition("?")[0]
    assert hint == normalized(name) or normalized(name) in SYNONYMS[hint].split()


@pytest.mark.parametrize("key", NAMES)
def test_every_other_name_lists_a_few_that_exist(key):
    text = refusal(**{key: "qqqqqqqq"})
    assert len(text) < 300
    assert any(name in text for name in NAMES[key])
    assert "pomona methods" in text or key != "method"


@given(st.sampled_from([(k, n) for k, names in NAMES.items() for n in names]), st.data())
def test_any_case_suggests_exactly_the_name(entry, data):
    key, name = entry
    written = "".join(
        data.draw(st.sampled_from([c.lower(), c.upper()])) for c in name.replace("-", "_")
    )
    assert written in NAMES[key] or suggestion(written, NAMES[key]) == f"did you mean {name}?"


def test_every_synonym_is_of_a_name_that_exists():
    targets = {name for names in NAMES.values() for name in names}
    assert targets >= SYNONYMS.keys()
    synonyms = [synonym for text in SYNONYMS.values() for synonym in text.split()]
    assert synonyms == list(map(normalized, synonyms))


def test_a_network_in_place_of_its_name_is_told_the_form():
    assert "module:Class" in refusal(model=nn.Linear(3, 2))
