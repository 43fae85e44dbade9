"""Personal models as files: written at the end of a run, read back to answer."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from pomona.data.text import encode
from pomona.errors import ConfigError, DataError, StorageError
from pomona.models import ModelSettings, build
from pomona.models.space import ParameterSpace
from pomona.scenario import Scenario

FORMAT = "pomona-model-1"


def save(path: Path, model: dict[str, Tensor], scenario: Scenario, client: int, named: tuple[str, str]) -> None:
    """Write one model with all that is needed to use it: network, normalisation, classes."""
    data = scenario.dataset
    about = {
        "format": FORMAT,
        "client": scenario.names[client],
        "model": ", ".join(named),
        "network": scenario.config.model.model_dump(mode="json"),
        "input_shape": scenario.input_shape,
        "outputs": data.n_outputs,
        "vocabulary": data.vocabulary,
        "words": data.words,
        "classes": data.classes,
        "targets": scenario.targets,
        "shift": data.shift,
        "scale": data.scale,
    }
    save_file({k: v.cpu() for k, v in model.items()}, path, {"pomona": json.dumps(about)})


@dataclass(frozen=True)
class PersonalModel:
    """A client's model, ready to answer."""

    module: nn.Module
    about: dict[str, Any]

    @classmethod
    def load(cls, path: Path) -> "PersonalModel":
        """Read a file of ``models/``. Raises StorageError naming the file if it is none."""
        try:
            with safe_open(path, "pt") as file:
                about = json.loads(file.metadata()["pomona"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            if about["format"] != FORMAT:
                raise ValueError(f"format {about['format']!r}, expected {FORMAT!r}")
            settings = ModelSettings.model_validate(about["network"])
            module = build(settings, tuple(about["input_shape"]), int(about["outputs"]), int(about["vocabulary"]))
            ParameterSpace(module, "average").row(tensors)  # says what is missing or does not fit
            module.load_state_dict(tensors, strict=False)
        except (OSError, SafetensorError, KeyError, TypeError, ValueError, ValidationError, ConfigError) as fault:
            raise StorageError(f"{path} holds no model ({fault}); give a file of models/ in a run folder") from None
        return cls(module.eval(), about)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """One sample's shape: (C, H, W), (F,) or (T,)."""
        return tuple(self.about["input_shape"])

    def encode(self, texts: list[str]) -> NDArray[np.int32]:
        """Token numbers (n, T) of texts, by the vocabulary of the training. Raises DataError if the model has none."""
        if not self.about["words"]:
            raise DataError("this model was not trained on words; give it arrays of what it was trained on")
        index = {word: number for number, word in enumerate(self.about["words"], start=2)}
        return encode(texts, index, self.input_shape[0], memory_share=1.0)

    @torch.no_grad()
    def outputs(self, x: NDArray[np.generic]) -> Tensor:
        """Outputs (n, K) for inputs as a data set holds them: (n, H, W, C), (n, F) or (n, T)."""
        values = torch.from_numpy(np.array(x))
        if not self.about["vocabulary"]:
            values = (values.float() - torch.tensor(self.about["shift"])) / torch.tensor(self.about["scale"])
            values = values.movedim(-1, 1) if values.dim() == 4 else values
        outputs: Tensor = self.module(values)
        return outputs

    def predict(self, x: NDArray[np.generic]) -> list[dict[str, Any]]:
        """One answer a sample: class and probability, or probabilities per label, or values."""
        outputs = self.outputs(x).double()
        match self.about["targets"]:
            case "classes":
                probability, number = outputs.softmax(1).max(1)
                names = self.about["classes"]
                return [
                    {"class": names[int(c)], "probability": float(p)} for c, p in zip(number, probability, strict=True)
                ]
            case "multilabel":
                return [{f"label {k}": float(p) for k, p in enumerate(row)} for row in outputs.sigmoid()]
            case "regression":
                return [{f"target {k}": float(v) for k, v in enumerate(row)} for row in outputs]
        raise DataError(f"unknown kind of targets {self.about['targets']!r}")
