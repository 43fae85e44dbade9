"""The tokenizer of a pretrained network: a ``tokenizer.json``, as Hugging Face's tokenizers write
it. It runs no code of its folder, and reaches no network.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from pomona.core import bounds, files
from pomona.core.errors import ConfigError, with_extra
from pomona.core.files import expanded
from pomona.core.settings import Settings
from pomona.data import hub
from pomona.storage.mapped_array import allocate

FILE, BESIDE = "tokenizer.json", "tokenizer_config.json"
MOST_BYTES = 2**24  # bytes of a tokenizer.json: a model's file holds it
MOST_TOKENS = 10**7
MOST_GROWTH = 1000  # how many times longer its replacements may make a text
PADDING = 0  # in all data
STDERR = 2


class Tokenizer(Settings):
    """A tokenizer.

    Attributes:
        file: the text of its ``tokenizer.json``.
        padding: its number of the padding token. In data the numbers of it and of 0 are exchanged,
            since 0 is padding in all data.
    """

    file: str = Field(max_length=MOST_BYTES)
    padding: int = Field(ge=0, lt=2**31)

    @property
    def sha256(self) -> str:
        """SHA-256 in hex of its file."""
        return hashlib.sha256(self.file.encode()).hexdigest()

    @property
    def vocabulary(self) -> int:
        """The number of tokens."""
        highest: int = max((self.padding, *self.built().get_vocab().values()))
        return highest + 1

    def encode(self, texts: Sequence[str], length: int, memory_share: float) -> NDArray[np.generic]:
        """Encode texts as token ids (N, length) int32, as the network's own: with its special
        tokens, cut at ``length``, 0 for padding.

        Raises ConfigError: the package is missing, or it cannot read the file.
        """
        built_tokenizer = self.built()
        built_tokenizer.no_padding()
        built_tokenizer.enable_truncation(length)
        x = allocate((len(texts), length), np.int32, memory_share)
        x[...] = self.padding
        with _faults():
            for row, text in enumerate(texts):
                # one at a time: the package's threads and forked workers do not go together
                ids = np.array(built_tokenizer.encode(text).ids[:length], np.int32)
                x[row, : len(ids)] = ids
                x[row] = np.select(
                    [x[row] == self.padding, x[row] == PADDING], [PADDING, self.padding], x[row]
                )
        return x

    def built(self) -> Any:
        """Return it as the package's object. Raises ConfigError."""
        if not find_spec("tokenizers"):
            raise ConfigError(f"a {FILE} needs tokenizers; {with_extra('transformers')}")
        with _faults():
            if _growth(json.loads(self.file)) > MOST_GROWTH:
                raise ConfigError(
                    f"its replacements can make a text more than {MOST_GROWTH} times as long"
                )
            return import_module("tokenizers").Tokenizer.from_str(self.file)


@contextmanager
def _faults() -> Iterator[None]:
    """Turn what the package raises, which has no narrower types, into ConfigError: its panics are
    no Exceptions, and write a trace of many lines to the process's stderr, which is left out.
    """
    try:
        with _quiet():
            yield
    except BaseException as fault:
        if not isinstance(fault, Exception) and type(fault).__name__ != "PanicException":
            raise
        raise ConfigError(
            f"the {FILE} cannot be used ({bounds.plain(str(fault))}); save it by this version"
        ) from fault


@contextmanager
def _quiet() -> Iterator[None]:
    """Write nothing to the process's stderr."""
    stderr = os.dup(STDERR)
    try:
        with Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), STDERR)
        yield
    finally:
        os.dup2(stderr, STDERR)
        os.close(stderr)


def _growth(node: Any) -> float:
    """Return how many times longer all replacements in a part of a file can make a text: each puts
    its content in the place of one character, or of none.
    """
    children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    growth = len(str(node.get("content", ""))) + 1 if _replaces(node) else 1
    return prod((growth, *map(_growth, children)))


def _replaces(node: Any) -> bool:
    return isinstance(node, dict) and node.get("type") == "Replace"


def from_setting(name: str) -> Tokenizer:
    """Return the tokenizer of ``data.tokenizer``: a folder, or OWNER/NAME@COMMIT in the Hub's
    cache.

    Raises:
        ConfigError: neither, its file is missing or unknown, or it names no padding token.
        DataError: the repository is not on this machine.
    """
    repository, separator, revision = name.rpartition("@")
    folder = expanded(name)
    if separator and not folder.exists():
        folder = hub.snapshot("model", repository, revision)

    def fault_of(reason: str) -> ConfigError:
        return ConfigError(
            f"data.tokenizer={name}: {reason}; give a folder with {FILE}, as AutoTokenizer's "
            "save_pretrained writes it, or OWNER/NAME@COMMIT of the Hub"
        )

    try:
        file = files.text(folder / FILE, MOST_BYTES)
        config = files.text(folder / BESIDE) if (folder / BESIDE).exists() else "{}"
    except (OSError, UnicodeDecodeError) as fault:
        raise fault_of(str(fault)) from None
    padding = _padding(Tokenizer(file=file, padding=0), bounds.parse(config, fault_of))
    if padding is None:
        raise fault_of(f"neither {FILE} nor {BESIDE} names a padding token (pad_token)")
    tokenizer = Tokenizer(file=file, padding=padding)
    if tokenizer.vocabulary > MOST_TOKENS:
        raise fault_of(f"it has {tokenizer.vocabulary} tokens; the limit is {MOST_TOKENS}")
    return tokenizer


def _padding(tokenizer: Tokenizer, config: Any) -> int | None:
    """Return the number of the padding token, from both files; None if they name none."""
    token, built = config.get("pad_token") if isinstance(config, dict) else None, tokenizer.built()
    token = token.get("content") if isinstance(token, dict) else token
    number: int | None = (
        built.token_to_id(token) if isinstance(token, str) else (built.padding or {}).get("pad_id")
    )
    return number
