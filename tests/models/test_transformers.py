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

VOCABULARY, TOKENS, OUTPUTS = 20, 10, 3
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
    "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 8,
    "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
}  # fmt: skip
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
        "dim": 8, "n_layers": 2, "n_heads": 2, "hidden_dim": 8,
        "dropout": 0.0, "attention_dropout": 0.0, "seq_classif_dropout": 0.0,
    },
    "modernbert": {
        **{k: v for k, v in TEXT.items() if "dropout" not in k},
        "pad_token_id": 3, "eos_token_id": 2, "bos_token_id": 1, "cls_token_id": 1, "sep_token_id": 2, "local_attention": 4,
    },
}  # fmt: skip


@pytest.fixture(autouse=True)
def _no_network(monkeypatch):
    def refused(*_, **__):
        pytest.fail("a network was built from the internet")

    monkeypatch.setattr(socket, "getaddrinfo", refused)


def network(family, construct=build, outputs=OUTPUTS, **args):
    shape, vocabulary = ((TOKENS,), VOCABULARY) if family in TEXTS else ((3, 16, 16), 0)
    settings = ModelSettings(name=f"transformers:{family}", args=SMALL.get(family, {}) | args)
    return construct(settings, shape, outputs, vocabulary)


def of_package(family, ours):
    """The package's own network with the same values, made from a configuration in its notation."""
    config = deepcopy(ours.config)
    plain = type(ours)(config)
    plain.load_state_dict(ours.state_dict())
    return plain.eval()


def texts(padding):
    """Four texts of words 4 to 19 and three lengths: ours with padding 0, and as the network's."""
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(4, VOCABULARY, (4, TOKENS), generator=draw)
    mask = torch.arange(TOKENS) < torch.tensor([10, 6, 3, 10])[:, None]
    return ids * mask, torch.where(mask, ids, padding), mask.long()


@pytest.mark.parametrize("family", [*IMAGES, *TEXTS])
def test_outputs_and_names_are_those_of_the_package(family):
    ours = network(family).eval()
    plain = of_package(family, ours)
    assert ours.state_dict().keys() == plain.state_dict().keys()
    with torch.no_grad():
        if family in TEXTS:
            x, ids, mask = texts(ours.config.pad_token_id)
            expected = plain(input_ids=ids, attention_mask=mask).logits
        else:
            x = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))
            expected = plain(pixel_values=x).logits
        assert torch.allclose(ours(x), expected, atol=1e-6)
        assert not torch.allclose(expected[0], expected[1], atol=1e-7)
    outer = [name for name, _ in ours.named_parameters()][-1]
    assert "classifier" in outer


@pytest.mark.parametrize("family", TEXTS)
def test_padding_changes_no_output(family):
    ours = network(family).eval()
    x, _, _ = texts(0)
    longer = nn.functional.pad(x, (0, 7))
    with torch.no_grad():
        assert torch.allclose(ours(x), ours(longer), atol=1e-6)
        assert torch.allclose(ours(x[2:3]), ours(x[2:3, :3]), atol=1e-6)


@pytest.mark.parametrize("family", ["vit", *(family for family in TEXTS if family != LOCAL)])
def test_gradients_of_each_sample_are_those_of_one_at_a_time(family):
    """As private training takes them."""
    ours = network(family).eval()
    x = texts(0)[0] if family in TEXTS else torch.randn(4, 3, 16, 16)
    y = torch.tensor([0, 1, 2, 0])
    values = {k: p.detach() for k, p in ours.named_parameters()}

    def loss(values, x, y):
        return nn.functional.cross_entropy(functional_call(ours, values, (x[None],)), y[None])

    stacked = vmap(grad(loss), in_dims=(None, 0, 0))(values, x, y)
    for k in range(4):
        single = grad(loss)(values, x[k], y[k])
        assert all(torch.allclose(stacked[name][k], single[name], atol=1e-6) for name in values)


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


def config(family, folder, method="fedavg", **changes):
    data = (
        reviews(folder)
        if family in TEXTS
        else {"name": "digits", "train_limit": 90, "test_limit": 20}
    )
    keys = {"clients": 3, "rounds": 2, "lr": 0.1, "workers": 1, "batch_size": 1000, **changes}
    model = {"name": f"transformers:{family}", "args": SMALL[family], **keys.pop("model", {})}
    return Config(method=method, data=data, model=model, partition="iid", **keys)


@pytest.mark.parametrize("family", ["vit", "bert", "distilbert"])
def test_two_rounds_of_fedavg_are_plain_steps_of_the_package(family, tmp_path):
    """Whole batches, one epoch: each client takes one step, and the server the weighted mean."""
    settings = config(family, tmp_path)
    scenario = Scenario.prepare(settings)
    data = scenario.objective().data
    x, y = data.gather(torch.arange(len(data.y)))
    net = of_package(family, scenario.network.common)
    rows = data.rows["train"]
    state = {k: p.detach().clone() for k, p in net.named_parameters()}
    for _ in range(2):
        steps = []
        for batch in rows:
            net.load_state_dict(state)
            if family in TEXTS:
                logits = net(input_ids=x[batch], attention_mask=(x[batch] != 0).long()).logits
            else:
                logits = net(pixel_values=x[batch]).logits
            loss = nn.functional.cross_entropy(logits, y[batch])
            slopes = torch.autograd.grad(loss, net.parameters())
            steps.append([p - 0.1 * g for p, g in zip(state.values(), slopes, strict=True)])
        share = torch.tensor([len(batch) for batch in rows]) / sum(map(len, rows))
        state = {
            k: sum(w * step[i] for w, step in zip(share, steps, strict=True)).detach()
            for i, k in enumerate(state)
        }
    run = pomona.run(settings, tmp_path / "run")
    weights = run.models[0]
    assert weights.keys() == state.keys()
    assert all(torch.allclose(weights[k], state[k], atol=1e-6) for k in state)


@pytest.mark.parametrize("family", ["vit", "distilbert"])
def test_apple_trains_it_and_the_model_comes_back(family, tmp_path):
    settings = config(family, tmp_path, "apple")
    run = pomona.run(settings, tmp_path / "run")
    model = PersonalModel.load(tmp_path / "run/models/client-00.safetensors")
    plain = of_package(family, model.module)
    plain.load_state_dict(run.models[0], strict=False)
    if family in TEXTS:
        x = np.array([[2, 3, 4, 0, 0, 0], [4, 2, 3, 5, 2, 1]], np.int32)
        ids = torch.from_numpy(x).long()
        expected = plain(input_ids=ids, attention_mask=(ids != 0).long()).logits
    else:
        x = np.arange(128, dtype=np.uint8).reshape(2, 8, 8, 1) % 16
        scaled = (torch.from_numpy(x).float() - model.about.shift[0]) / model.about.scale[0]
        expected = plain(pixel_values=scaled.permute(0, 3, 1, 2)).logits
    assert np.allclose(model.outputs(x), expected.detach(), atol=1e-5)


@pytest.mark.parametrize(
    ("family", "layers"), [("vit", "*.q_proj"), ("distilbert", "*.q_lin"), ("bert", "*.query")]
)
def test_low_rank_changes_are_trained_beside_frozen_layers(family, layers, tmp_path):
    ours = network(family)
    if not any(name.endswith(layers[1:]) for name, _ in ours.named_modules()):
        layers = "*.query"  # ViT's name of it in some versions
    train = {"lora": {"rank": 2, "on": [layers]}}
    run = pomona.run(config(family, tmp_path, model={"train": train}), tmp_path / "run")
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
    settings = resolved(path)
    assert (settings.name, settings.args["hidden_size"]) == ("transformers:vit", 24)


def test_a_folder_that_another_party_names_is_not_read(tmp_path):
    network("vit").save_pretrained(tmp_path)
    model = {"name": f"transformers:{tmp_path}"}
    settings = Config(method="fedavg", clients=2, lr=0.1, model=model)
    with pytest.raises(ConfigError, match=r"unknown model\.name=transformers:/"):
        Scenario.prepare(settings, agreed_reader=True).initial()


@pytest.mark.parametrize("family", ["vit", "swin", "bert"])
def test_a_folder_is_replaced_by_its_type_and_its_weights_load(family, tmp_path):
    ours = network(family)
    of_package(family, ours).save_pretrained(tmp_path)
    settings = resolved(ModelSettings(name=f"transformers:{tmp_path}"))
    assert settings.name == f"transformers:{family}"
    assert settings.args["initializer_range"] == 0.02
    assert "architectures" not in settings.args
    assert None not in settings.args.values()  # which no settings file can hold
    assert resolved(settings) is settings
    pretrained = settings.model_copy(update={"init": tmp_path / "model.safetensors"})
    shape, vocabulary = ((TOKENS,), VOCABULARY) if family in TEXTS else ((3, 16, 16), 0)
    reloaded = build(pretrained, shape, OUTPUTS, vocabulary, seed=9).state_dict()
    assert all(torch.equal(reloaded[k], t) for k, t in ours.state_dict().items())
    with pytest.raises(ConfigError, match=r"classifier\.weight has shape \(3, 8\)|\(3, 16\)"):
        build(pretrained, shape, 5, vocabulary)
    without_head = pretrained.model_copy(update={"init_skip": ("classifier.*",)})
    rebuilt = build(without_head, shape, 5, vocabulary)
    body = {k: t for k, t in rebuilt.state_dict().items() if not k.startswith("classifier")}
    assert all(torch.equal(ours.state_dict()[k], t) for k, t in body.items())


def test_a_checkpoint_of_another_task_loads_by_skipping_its_head(tmp_path):
    """As pretrained texts come: without the parts of this task, with others."""
    ours = network("bert")
    masked = transformers.BertForMaskedLM(ours.config)
    masked.save_pretrained(tmp_path)
    settings = ModelSettings(
        name="transformers:bert", args=SMALL["bert"], init=tmp_path / "model.safetensors"
    )
    with pytest.raises(ConfigError, match=r"classifier\.weight is missing") as fault:
        build(settings, (TOKENS,), OUTPUTS, VOCABULARY)
    assert "cls.predictions.bias' is unknown" in str(fault.value)
    skip = ("classifier.*", "bert.pooler.*", "cls.*")
    loaded = build(settings.model_copy(update={"init_skip": skip}), (TOKENS,), OUTPUTS, VOCABULARY)
    expected = masked.bert.encoder.layer[1].output.dense.weight
    assert torch.equal(loaded.bert.encoder.layer[1].output.dense.weight, expected)


@pytest.mark.parametrize(
    ("family", "args", "message"),
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
def test_what_does_not_fit_or_would_fetch_is_refused(family, args, message):
    with pytest.raises(ConfigError, match=message):
        network(family, **args)


def test_images_for_texts_are_refused():
    settings = ModelSettings(name="transformers:vit", args=SMALL["vit"])
    with pytest.raises(ConfigError, match="takes images; take one of albert"):
        outline(settings, (TOKENS,), 2, VOCABULARY)
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
