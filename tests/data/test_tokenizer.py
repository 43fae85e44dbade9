"""Texts by a network's own tokenizer: the tokens of the package, in a run, a file and a prediction."""

import json
import os
import socket

import numpy as np
import pytest

import pomona
from pomona import Config
from pomona.core.errors import ConfigError, DataError
from pomona.data import data_settings, read
from pomona.data.tokenizer import Tokenizer, from_setting
from pomona.personal import PersonalModel
from pomona.personal.inputs import read as samples
from pomona.privacy.settings import RELEASES
from pomona.scenario import Scenario

transformers = pytest.importorskip("transformers", reason="needs the extra transformers")
tokenizers = pytest.importorskip("tokenizers", reason="needs the extra transformers")

TOKENS = ["<s>", "<pad>", "</s>", "<unk>", "fine", "quick", "slow", "rude", "##ly", "stay"]
TEXTS = ["Fine stay", "slowly, quickly", "rude", "", "unknown fine fine fine fine fine fine"]
SMALL = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
COMMIT = "0123456789abcdef0123456789abcdef01234567"
LENGTH = 6


@pytest.fixture(autouse=True)
def _no_network(monkeypatch):
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: pytest.fail("it asked the network"))


def write_tokenizer(folder, padding="<pad>"):
    """A word-piece tokenizer of ten tokens, written by the package; the padding token is its second."""
    numbers = {token: k for k, token in enumerate(TOKENS)}
    core = tokenizers.Tokenizer(tokenizers.models.WordPiece(numbers, unk_token="<unk>"))
    core.normalizer = tokenizers.normalizers.Lowercase()
    core.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    special = [("<s>", 0), ("</s>", 2)]
    core.post_processor = tokenizers.processors.TemplateProcessing(
        "<s> $A </s>", special_tokens=special
    )
    options = {"pad_token": padding} if padding else {}
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>", **options)
    fast.save_pretrained(folder)
    return fast


def reviews(folder, **changes):
    lines = [f"{('good', 'bad')[k % 2]},{('fine', 'slow')[k % 2]} stay quickly" for k in range(40)]
    (folder / "reviews.csv").write_text("\n".join(["mood,text", *lines]) + "\n")
    return {
        "name": "text",
        "path": folder / "reviews.csv",
        "label_column": "mood",
        "text_columns": ["text"],
        "sequence_length": LENGTH,
        "tokenizer": str(folder / "tokens"),
        **changes,
    }


def test_tokens_are_those_of_the_package_with_padding_and_0_exchanged(tmp_path):
    theirs = write_tokenizer(tmp_path)
    encoded = theirs(TEXTS, padding="max_length", truncation=True, max_length=LENGTH)
    ids, mask = np.array(encoded["input_ids"]), np.array(encoded["attention_mask"], bool)
    ours = from_setting(str(tmp_path))
    tokens = ours.encode(TEXTS, LENGTH, 0.5)
    assert (ours.padding, ours.vocabulary) == (1, len(TOKENS))
    assert tokens.dtype == np.int32
    assert np.array_equal(tokens != 0, mask)
    assert np.array_equal(np.array([1, 0, *range(2, 10)])[tokens], ids)


def test_a_text_cut_shorter_than_the_special_tokens_keeps_its_length(tmp_path):
    write_tokenizer(tmp_path)
    assert from_setting(str(tmp_path)).encode(TEXTS, 1, 0.5).shape == (len(TEXTS), 1)


@pytest.mark.parametrize("name", ["roberta", "fasttext"])
def test_a_model_takes_texts_without_the_folder_and_with_the_tokens_of_its_training(name, tmp_path):
    theirs = write_tokenizer(tmp_path / "tokens")
    model = (
        {"name": name, "width": 8}
        if name == "fasttext"
        else {"name": f"transformers:{name}", "args": SMALL}
    )
    config = Config(
        method="fedavg-ft", data=reviews(tmp_path), model=model, clients=2, rounds=1, lr=0.1, workers=1,
    )  # fmt: skip
    run = pomona.run(config, tmp_path / "run")
    assert pomona.load(tmp_path / "run").config["data"]["tokenizer"] == str(tmp_path / "tokens")
    for path in (tmp_path / "tokens").iterdir():
        path.unlink()
    loaded = PersonalModel.load(tmp_path / "run/models/client-00.safetensors")
    (tmp_path / "new.txt").write_text("\n".join(TEXTS))
    x = samples(tmp_path / "new.txt", loaded.about).x
    assert np.array_equal(x, loaded.about.tokenizer.encode(TEXTS, LENGTH, 0.5))
    ids = theirs(TEXTS[0])["input_ids"]
    assert [*x[0, : len(ids)]] == [{0: 1, 1: 0}.get(number, number) for number in ids]
    assert np.array_equal(loaded.outputs(x), PersonalModel.of(run, 0).outputs(x))


def test_a_public_tokenizer_releases_no_words(tmp_path):
    write_tokenizer(tmp_path / "tokens")
    base = {"rounds": 1, "clients": 2, "lr": 0.1, "model": "fasttext", "method": "fedavg"}
    private = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "delta": 1e-3, "epsilon_budget": 1e9}
    names = ["sample-counts", "metrics", "class-names"]

    def prepared(data):
        Scenario.prepare(Config(**base, data=data, privacy={**private, "acknowledge": names}))

    prepared(reviews(tmp_path))
    with pytest.raises(ConfigError, match="not covered by privacy: vocabulary") as fault:
        prepared(reviews(tmp_path, tokenizer=""))
    assert RELEASES["vocabulary"].content in str(fault.value)


def test_a_network_with_another_padding_token_is_refused(tmp_path):
    write_tokenizer(tmp_path / "tokens")
    model = {"name": "transformers:bert", "args": SMALL}
    base = {"data": reviews(tmp_path), "clients": 2, "lr": 0.1, "method": "fedavg"}
    with pytest.raises(ConfigError, match=r"model\.args\.pad_token_id = 0, .* set .*=1"):
        Scenario.prepare(Config(**base, model=model))
    model["args"] = {**SMALL, "pad_token_id": 1}
    Scenario.prepare(Config(**base, model=model))


def test_a_tokenizer_of_the_hub_is_found_in_its_cache_at_a_commit_only(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    folder = tmp_path / "models--mine--tokens/snapshots" / COMMIT
    write_tokenizer(folder)
    assert from_setting(f"mine/tokens@{COMMIT}") == from_setting(str(folder))
    with pytest.raises(ConfigError, match=f"a branch may move, .*here are: {COMMIT}"):
        from_setting("mine/tokens@main")
    with pytest.raises(DataError, match=f"fetch it: hf download other/tokens --revision {COMMIT}"):
        from_setting(f"other/tokens@{COMMIT}")


@pytest.mark.parametrize(
    ("file", "config", "message"),
    [
        (None, None, "No such file"),
        ("{", None, "cannot be used"),
        ("[]", None, "cannot be used"),
        ("", "{}", "names a padding token"),
        ("", "[", "not JSON"),
        ("", '{"pad_token": "<nothing>"}', "names a padding token"),
        ("x" * (2**24 + 1), None, "the limit is 16777216"),
    ],
)
def test_what_is_no_tokenizer_is_refused(file, config, message, tmp_path):
    write_tokenizer(tmp_path / "good", padding=None)
    for path, text in (("tokenizer.json", file), ("tokenizer_config.json", config)):
        if text is not None:
            (tmp_path / path).write_text(text or (tmp_path / "good" / path).read_text())
    with pytest.raises(ConfigError, match=message):
        from_setting(str(tmp_path))


@pytest.mark.parametrize("section", ["post_processor", "model"])
def test_a_damaged_tokenizer_is_one_line_also_where_the_package_panics(section, tmp_path, capfd):
    write_tokenizer(tmp_path)
    tree = json.loads((tmp_path / "tokenizer.json").read_text())
    if section == "model":
        del tree["model"]["vocab"]["<unk>"]
    else:
        tree["post_processor"]["special_tokens"] = {}
    damaged = Tokenizer(file=json.dumps(tree), padding=1)
    with pytest.raises(ConfigError, match="cannot be used"):
        damaged.encode(["what is it"], LENGTH, 0.5)
    os.write(2, b"after it")
    assert capfd.readouterr().err == "after it"  # no trace of the package's


def test_a_models_tokenizer_must_be_that_of_its_network(tmp_path):
    write_tokenizer(tmp_path / "tokens")
    run = pomona.run(
        Config(method="fedavg", data=reviews(tmp_path), model="fasttext", clients=2, rounds=1, lr=0.1, workers=1)
    )  # fmt: skip
    metadata = PersonalModel.of(run, 0).about
    tree = json.loads(metadata.tokenizer.file)
    tree["model"]["vocab"]["more"] = 2**31 + 5
    changed = metadata.model_copy(update={"tokenizer": Tokenizer(file=json.dumps(tree), padding=1)})
    (tmp_path / "new.txt").write_text("more\n")
    with pytest.raises(DataError, match="other tokens"):
        samples(tmp_path / "new.txt", changed)


def test_its_vocabulary_is_its_own(tmp_path):
    write_tokenizer(tmp_path / "tokens")
    assert "SHA-256" in read(data_settings(**reviews(tmp_path))).notes[0]
    with pytest.raises(ConfigError, match=r"data\.tokenizer has its own vocabulary"):
        data_settings(**reviews(tmp_path, vocabulary_size=99))


@pytest.mark.parametrize(("times", "refused"), [(3, False), (12, True)])
def test_replacements_that_lengthen_a_text_without_end_are_refused(times, refused, tmp_path):
    write_tokenizer(tmp_path)
    file = json.loads((tmp_path / "tokenizer.json").read_text())
    double = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}  # counts as 3
    file["normalizer"] = {"type": "Sequence", "normalizers": [double] * times}
    (tmp_path / "tokenizer.json").write_text(json.dumps(file))
    if refused:
        with pytest.raises(ConfigError, match="1000 times as long"):
            from_setting(str(tmp_path))
    else:
        assert from_setting(str(tmp_path)).encode(["a"], LENGTH, 0.25).shape == (1, LENGTH)
