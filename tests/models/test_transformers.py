"""Networks of transformers by type or folder: their gradients and runs are those of the package with
plain PyTorch, padding changes nothing, and nothing is downloaded.
"""

import json
import socket
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

import pomona
from pomona import Config
from pomona.core.errors import ConfigError
from pomona.models import ModelSettings, build, outline
from pomona.models.huggingface import IMAGES, LOCAL, TEXTS, resolved
from pomona.personal import PersonalModel
from pomona.scenario import Scenario

transformers = pytest.importorskip("transformers", reason="needs the extra transformers")

WORDS, TOKENS, OUTPUTS = 20, 10, 3
IMAGE = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "patch_size": 4}
STAGES = {"hidden_sizes": [4, 8], "depths": [1, 1]}
WINDOWS = {
    "depths": [1, 1],
    "num_heads": [1, 1],
    "embed_dim": 8,
    "patch_size": 2,
    "window_size": 2,
    "drop_path_rate": 0.0,
}
TEXT = {
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 8,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
SMALL = dict.fromkeys(IMAGES, IMAGE) | dict.fromkeys(TEXTS, TEXT)
SMALL |= {name: {**IMAGE, "intermediate_size": 8} for name in ("beit", "deit", "vit")}
SMALL |= {name: {**STAGES, "num_stages": 2} for name in ("convnext", "convnextv2")}
SMALL |= dict.fromkeys(("swin", "swinv2"), WINDOWS)
SMALL |= {
    "resnet": {**STAGES, "embedding_size": 4},
    "regnet": {"hidden_sizes": [8] * 4, "depths": [1] * 4, "embedding_size": 4, "groups_width": 4},
    "albert": {**TEXT, "embedding_size": 4},
    "electra": {**TEXT, "embedding_size": 4},
    "distilbert": {
        "dim": 8,
        "n_layers": 2,
        "n_heads": 2,
        "hidden_dim": 8,
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "seq_classif_dropout": 0.0,
    },
    "modernbert": {
        **{k: v for k, v in TEXT.items() if "dropout" not in k},
        "pad_token_id": 3,
        "eos_token_id": 2,
        "bos_token_id": 1,
        "cls_token_id": 1,
        "sep_token_id": 2,
        "local_attention": 4,
    },
}


@pytest.fixture(autouse=True)
def _no_network(monkeypatch):
    def refused(*_, **__):
        pytest.fail("a network was built from the internet")

    monkeypatch.setattr(socket, "getaddrinfo", refused)


def network(kind, make=build, outputs=OUTPUTS, **args):
    shape, words = ((TOKENS,), WORDS) if kind in TEXTS else ((3, 16, 16), 0)
    settings = ModelSettings(name=f"transformers:{kind}", args=SMALL.get(kind, {}) | args)
    return make(settings, shape, outputs, words)


def of_package(kind, made):
    """The package's own network with the same values, made from a configuration in its notation."""
    config = deepcopy(made.config)
    plain = type(made)(config)
    plain.load_state_dict(made.state_dict())
    return plain.eval()


def texts(padding):
    """Four texts of words 4 to 19 and three lengths: ours with padding 0, and as the network's."""
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(4, WORDS, (4, TOKENS), generator=draw)
    mask = torch.arange(TOKENS) < torch.tensor([10, 6, 3, 10])[:, None]
    return ids * mask, torch.where(mask, ids, padding), mask.long()


@pytest.mark.parametrize("kind", [*IMAGES, *TEXTS])
def test_outputs_and_names_are_those_of_the_package(kind):
    made = network(kind).eval()
    plain = of_package(kind, made)
    assert made.state_dict().keys() == plain.state_dict().keys()
    with torch.no_grad():
        if kind in TEXTS:
            x, ids, mask = texts(made.config.pad_token_id)
            expected = plain(input_ids=ids, attention_mask=mask).logits
        else:
            x = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))
            expected = plain(pixel_values=x).logits
        assert torch.allclose(made(x), expected, atol=1e-6)
        assert not torch.allclose(expected[0], expected[1], atol=1e-7)
    outer = [name for name, _ in made.named_parameters()][-1]
    assert "classifier" in outer


@pytest.mark.parametrize("kind", TEXTS)
def test_padding_changes_no_output(kind):
    made = network(kind).eval()
    x, _, _ = texts(0)
    longer = nn.functional.pad(x, (0, 7))
    with torch.no_grad():
        assert torch.allclose(made(x), made(longer), atol=1e-6)
        assert torch.allclose(made(x[2:3]), made(x[2:3, :3]), atol=1e-6)


@pytest.mark.parametrize("kind", ["vit", *(kind for kind in TEXTS if kind != LOCAL)])
def test_gradients_of_each_sample_are_those_of_one_at_a_time(kind):
    """As private training takes them."""
    made = network(kind).eval()
    x = texts(0)[0] if kind in TEXTS else torch.randn(4, 3, 16, 16)
    y = torch.tensor([0, 1, 2, 0])
    values = {k: p.detach() for k, p in made.named_parameters()}

    def loss(values, x, y):
        return nn.functional.cross_entropy(functional_call(made, values, (x[None],)), y[None])

    each = vmap(grad(loss), in_dims=(None, 0, 0))(values, x, y)
    for k in range(4):
        one = grad(loss)(values, x[k], y[k])
        assert all(torch.allclose(each[name][k], one[name], atol=1e-6) for name in values)


REVIEWS = {"good": "fine quick friendly", "bad": "slow rude dirty"}


def reviews(folder):
    """A file of 60 texts of two to seven words."""
    lines = ["mood,text"]
    for k in range(60):
        mood = ("good", "bad")[k % 2]
        lines.append(f"{mood},{' '.join((REVIEWS[mood].split() * 3)[k % 3 : k % 3 + 2 + k % 6])}")
    path = folder / "reviews.csv"
    path.write_text("\n".join(lines) + "\n")
    return {
        "name": "text",
        "path": path,
        "label_column": "mood",
        "text_columns": ["text"],
        "sequence_length": 6,
    }


def config(kind, folder, method="fedavg", **over):
    data = (
        reviews(folder)
        if kind in TEXTS
        else {"name": "digits", "train_limit": 90, "test_limit": 20}
    )
    keys = {"clients": 3, "rounds": 2, "lr": 0.1, "workers": 1, "batch_size": 1000, **over}
    model = {"name": f"transformers:{kind}", "args": SMALL[kind], **keys.pop("model", {})}
    return Config(method=method, data=data, model=model, partition="iid", **keys)


@pytest.mark.parametrize("kind", ["vit", "bert", "distilbert"])
def test_two_rounds_of_fedavg_are_plain_steps_of_the_package(kind, tmp_path):
    """Whole batches, one epoch: each client takes one step, and the server the weighted mean."""
    given = config(kind, tmp_path)
    scenario = Scenario.prepare(given)
    data = scenario.objective().data
    x, y = data.gather(torch.arange(len(data.y)))
    net = of_package(kind, scenario.network.common)
    rows = data.rows["train"]
    state = {k: p.detach().clone() for k, p in net.named_parameters()}
    for _ in range(2):
        steps = []
        for own in rows:
            net.load_state_dict(state)
            if kind in TEXTS:
                out = net(input_ids=x[own], attention_mask=(x[own] != 0).long()).logits
            else:
                out = net(pixel_values=x[own]).logits
            slopes = torch.autograd.grad(nn.functional.cross_entropy(out, y[own]), net.parameters())
            steps.append([p - 0.1 * g for p, g in zip(state.values(), slopes, strict=True)])
        share = torch.tensor([len(own) for own in rows]) / sum(map(len, rows))
        state = {
            k: sum(w * step[i] for w, step in zip(share, steps, strict=True)).detach()
            for i, k in enumerate(state)
        }
    run = pomona.run(given, tmp_path / "run")
    found = run.models[0]
    assert found.keys() == state.keys()
    assert all(torch.allclose(found[k], state[k], atol=1e-6) for k in state)


@pytest.mark.parametrize("kind", ["vit", "distilbert"])
def test_apple_trains_it_and_the_model_comes_back(kind, tmp_path):
    given = config(kind, tmp_path, "apple")
    run = pomona.run(given, tmp_path / "run")
    model = PersonalModel.load(tmp_path / "run/models/client-00.safetensors")
    plain = of_package(kind, model.module)
    plain.load_state_dict(run.models[0], strict=False)
    if kind in TEXTS:
        x = np.array([[2, 3, 4, 0, 0, 0], [4, 2, 3, 5, 2, 1]], np.int32)
        ids = torch.from_numpy(x).long()
        expected = plain(input_ids=ids, attention_mask=(ids != 0).long()).logits
    else:
        x = np.arange(128, dtype=np.uint8).reshape(2, 8, 8, 1) % 16
        scaled = (torch.from_numpy(x).float() - model.about.shift[0]) / model.about.scale[0]
        expected = plain(pixel_values=scaled.permute(0, 3, 1, 2)).logits
    assert np.allclose(model.outputs(x), expected.detach(), atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "on"), [("vit", "*.q_proj"), ("distilbert", "*.q_lin"), ("bert", "*.query")]
)
def test_low_rank_changes_are_trained_beside_frozen_layers(kind, on, tmp_path):
    made = network(kind)
    if not any(name.endswith(on[1:]) for name, _ in made.named_modules()):
        on = "*.query"  # ViT's name of it in some versions
    train = {"lora": {"rank": 2, "on": [on]}}
    run = pomona.run(config(kind, tmp_path, model={"train": train}), tmp_path / "run")
    trained = run.models[0]
    assert any(name.endswith(".lora_A.weight") for name in trained)
    assert all(".lora_A." in k or ".lora_B." in k or k.startswith("classifier") for k in trained)
    assert any(t.abs().max() > 0 for k, t in trained.items() if ".lora_B." in k)
    model = PersonalModel.load(tmp_path / "run/models/client-00.safetensors")
    assert len(model.about.classes) in {2, 10}


def test_a_folder_called_like_a_type_is_written_as_a_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("bert").mkdir()
    Path("bert/config.json").write_text(json.dumps({"model_type": "vit", "hidden_size": 24}))
    bare, path = (ModelSettings(name=f"transformers:{name}") for name in ("bert", "./bert"))
    assert resolved(bare) is bare
    found = resolved(path)
    assert (found.name, found.args["hidden_size"]) == ("transformers:vit", 24)


def test_a_folder_that_another_party_names_is_not_read(tmp_path):
    network("vit").save_pretrained(tmp_path)
    model = {"name": f"transformers:{tmp_path}"}
    given = Config(method="fedavg", clients=2, lr=0.1, model=model)
    with pytest.raises(ConfigError, match=r"unknown model\.name=transformers:/"):
        Scenario.prepare(given, agreed_reader=True).initial()


@pytest.mark.parametrize("kind", ["vit", "swin", "bert"])
def test_a_folder_is_replaced_by_its_type_and_its_weights_load(kind, tmp_path):
    made = network(kind)
    of_package(kind, made).save_pretrained(tmp_path)
    found = resolved(ModelSettings(name=f"transformers:{tmp_path}"))
    assert found.name == f"transformers:{kind}"
    assert found.args["initializer_range"] == 0.02
    assert "architectures" not in found.args
    assert None not in found.args.values()  # which no settings file can hold
    assert resolved(found) is found
    start = found.model_copy(update={"init": tmp_path / "model.safetensors"})
    shape, words = ((TOKENS,), WORDS) if kind in TEXTS else ((3, 16, 16), 0)
    again = build(start, shape, OUTPUTS, words, seed=9).state_dict()
    assert all(torch.equal(again[k], t) for k, t in made.state_dict().items())
    with pytest.raises(ConfigError, match=r"classifier\.weight has shape \(3, 8\)|\(3, 16\)"):
        build(start, shape, 5, words)
    other = build(start.model_copy(update={"init_skip": ("classifier.*",)}), shape, 5, words)
    body = {k: t for k, t in other.state_dict().items() if not k.startswith("classifier")}
    assert all(torch.equal(made.state_dict()[k], t) for k, t in body.items())


def test_a_checkpoint_of_another_task_loads_by_skipping_its_head(tmp_path):
    """As pretrained texts come: without the parts of this task, with others."""
    made = network("bert")
    masked = transformers.BertForMaskedLM(made.config)
    masked.save_pretrained(tmp_path)
    given = ModelSettings(
        name="transformers:bert", args=SMALL["bert"], init=tmp_path / "model.safetensors"
    )
    with pytest.raises(ConfigError, match=r"classifier\.weight is missing") as fault:
        build(given, (TOKENS,), OUTPUTS, WORDS)
    assert "cls.predictions.bias' is unknown" in str(fault.value)
    skip = ("classifier.*", "bert.pooler.*", "cls.*")
    found = build(given.model_copy(update={"init_skip": skip}), (TOKENS,), OUTPUTS, WORDS)
    expected = masked.bert.encoder.layer[1].output.dense.weight
    assert torch.equal(found.bert.encoder.layer[1].output.dense.weight, expected)


@pytest.mark.parametrize(
    ("kind", "args", "message"),
    [
        ("timm_wrapper", {}, "unknown model.name=transformers:timm_wrapper"),
        ("../elsewhere", {}, "unknown model.name=transformers:../elsewhere"),
        ("vit", {"attn_implementation": "kernels/x"}, r"model\.args\.attn_implementation: "),
        ("vit", {"auto_map": {"AutoModel": "a.b"}}, r"model\.args\.auto_map: "),
        ("vit", {"num_hidden_layers": 10**9}, "holds a number above 1000000"),
        ("vit", {"num_hidden_layers": 10**6}, "more than 20000 modules"),
        ("vit", {"hidden_size": 10**6, "num_attention_heads": 1}, "GB of weights"),
        ("vit", {"hidden_size": "8"}, "cannot be built"),
        ("bert", {"vocab_size": 5}, "the texts have 20 tokens"),
        ("bert", {"max_position_embeddings": 4}, "fails on a sample"),
    ],
)
def test_what_does_not_fit_or_would_fetch_is_refused(kind, args, message):
    with pytest.raises(ConfigError, match=message):
        network(kind, **args)


def test_images_for_texts_are_refused():
    settings = ModelSettings(name="transformers:vit", args=SMALL["vit"])
    with pytest.raises(ConfigError, match="takes images; take one of albert"):
        outline(settings, (TOKENS,), 2, WORDS)
    with pytest.raises(ConfigError, match="takes texts; take one of beit"):
        outline(ModelSettings(name="transformers:bert"), (3, 8, 8), 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "no such|does not exist|No such"),
        ("{", "not JSON"),
        ("[]", "its type is None"),
        (json.dumps({"model_type": "../x"}), r"its type is '\.\./x'"),
        (json.dumps({"model_type": ["vit"]}), "its type is"),
        (json.dumps({"model_type": "bert", "hidden_size": None}), "hidden_size is null"),
    ],
)
def test_a_folder_without_a_known_configuration_is_refused(text, message, tmp_path):
    if text is not None:
        Path(tmp_path, "config.json").write_text(text)
    with pytest.raises(ConfigError, match=message):
        resolved(ModelSettings(name=f"transformers:{tmp_path}"))
