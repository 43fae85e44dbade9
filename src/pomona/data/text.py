"""Texts in columns as rows of token ids; AG's News."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any
from unicodedata import category, normalize

import numpy as np
from numpy.typing import NDArray

from pomona.core.errors import ConfigError
from pomona.data import formats, tokenizer
from pomona.data.axes import PublicTexts, Source, Texts, settings_class
from pomona.data.catalogue import CATALOGUE, locate, own_path
from pomona.data.dataset import Dataset
from pomona.data.tables import cells
from pomona.data.tables.roles import require_cells
from pomona.data.tables.source import TableSource
from pomona.data.tables.survey import TableSurvey, survey
from pomona.data.validation import blocks
from pomona.storage.mapped_array import allocate

PADDING, UNKNOWN, FIRST_WORD = 0, 1, 2  # FIRST_WORD: id of the first word
BLOCK = 1 << 14  # texts processed at a time


@cache
def _word_pattern() -> re.Pattern[str]:
    """Return the pattern of a word: letters with their marks, such as vowels of Hindi and Thai,
    and with joiners inside. Marks from U+FE00 to U+FFFF, and from U+E0100 on, select a form.
    """
    characters = map(chr, (*range(0xFE00), *range(0x10000, 0x1F000)))
    marks = "".join(c for c in characters if category(c) in {"Mn", "Mc"})
    return re.compile(rf"\w(?:[\w{marks}]|[\u200c\u200d](?=[\w{marks}]))*")


def tokens(text: str) -> list[str]:
    """Split a text into lower-case words: runs of letters with their marks, digits and
    underscores.
    """
    return _word_pattern().findall(normalize("NFC", text).lower())


def encode(
    texts: Sequence[str], index: Mapping[str, int], length: int, memory_share: float
) -> NDArray[Any]:
    """Encode the first tokens of each text as ids (N, length) int32: 1 for unknown words, 0 for
    padding.
    """
    x = allocate((len(texts), length), np.int32, memory_share)
    x[...] = PADDING
    for row, text in enumerate(texts):
        numbers = [index.get(token, UNKNOWN) for token in tokens(text)[:length]]
        x[row, : len(numbers)] = numbers
    return x


def read(settings: Texts) -> Dataset:
    """Read own texts: a file, or a folder with training and maybe test rows."""
    return read_parts(formats.training_and_test(own_path(settings)), 1, settings)[0]


def read_parts(
    paths: Sequence[Path], training: int, settings: Texts
) -> tuple[Dataset, tuple[int, ...]]:
    """Read files, the first ``training`` of them for training; returns the data and their row
    counts.

    The vocabulary is that of ``data.tokenizer``; or it has the words of all rows, and
    ``Dataset.learn`` restricts it to training rows.
    """
    table, columns, texts = _texts(paths, settings)
    y, classes = table.targets(settings)
    n_train = sum(table.counts[:training])
    dataset = _dataset(table.name, texts, y, classes, n_train, settings)
    return table.described(dataset, training, columns), table.counts


def _texts(
    paths: Sequence[Path], settings: Texts
) -> tuple[TableSurvey, tuple[int, ...], list[str]]:
    if not settings.text_columns:
        raise ConfigError(
            f"{paths[0]} needs texts: set data.text_columns to the names or numbers of columns"
        )
    table = survey(paths, settings)
    columns = table.sources[0].indices(settings.text_columns, "text_columns")
    return table, columns, [text for source in table.sources for text in row_texts(source, columns)]


def row_texts(source: TableSource, columns: Sequence[int]) -> list[str]:
    """Return each row's cells in these columns, in this order, as one text.

    Raises DataError for columns that hold neither text nor numbers.
    """
    require_cells(source, columns)
    columns_texts = [cells.texts(source.cells(i)) for i in columns]
    return [" ".join(row) for row in zip(*columns_texts, strict=True)]


def _dataset(
    name: str,
    texts: Sequence[str],
    y: NDArray[np.generic],
    classes: tuple[str, ...],
    n_train: int,
    settings: Texts,
) -> Dataset:
    if settings.tokenizer:
        pretrained = tokenizer.from_setting(settings.tokenizer)
        x = pretrained.encode(texts, settings.sequence_length, settings.memory_share)
        note = (
            f"tokens of {settings.tokenizer}: {pretrained.vocabulary}, SHA-256 {pretrained.sha256}"
        )
        vocabulary_size = pretrained.vocabulary
        dataset = Dataset(name, "text", x, y, classes, n_train, vocabulary=vocabulary_size)
        return replace(dataset, tokenizer=pretrained, notes=(note,))
    vocabulary = tuple(sorted({token for text in texts for token in tokens(text)}))
    index = {token: number for number, token in enumerate(vocabulary, start=FIRST_WORD)}
    x = encode(texts, index, settings.sequence_length, settings.memory_share)
    learn = partial(spoken, size=settings.vocabulary_size, memory_share=settings.memory_share)
    vocabulary_size = len(vocabulary) + FIRST_WORD
    dataset = Dataset(name, "text", x, y, classes, n_train, vocabulary=vocabulary_size)
    return replace(dataset, words=vocabulary, learn=learn)


def spoken(
    dataset: Dataset,
    rows: NDArray[np.int64],
    _training: NDArray[np.int64] | None = None,
    *,
    size: int,
    memory_share: float,
) -> Dataset:
    """Re-encode texts with the vocabulary of these rows, i.e. the training rows.

    Args:
        dataset: texts with known words.
        rows: (n,) indices of the rows whose words are kept; other words become the unknown token.
        size: maximum number of tokens, including padding and unknown. The most frequent words are
            kept and numbered by frequency, ties alphabetically.
        memory_share: see ``allocate``.
    """
    counts = np.zeros(dataset.vocabulary, np.int64)
    for _, block in blocks(rows, BLOCK):
        counts += np.bincount(dataset.x[block].ravel(), minlength=len(counts))
    frequent = np.flatnonzero(counts[FIRST_WORD:]) + FIRST_WORD
    ranked = sorted(
        frequent, key=lambda number: (-counts[number], dataset.words[number - FIRST_WORD])
    )[: size - FIRST_WORD]
    renumbered = np.full(dataset.vocabulary, UNKNOWN, np.int32)
    renumbered[PADDING] = PADDING
    renumbered[ranked] = np.arange(FIRST_WORD, FIRST_WORD + len(ranked))
    x = allocate(dataset.x.shape, np.int32, memory_share)
    for start, block in blocks(dataset.x, BLOCK):
        x[start : start + len(block)] = renumbered[block]
    vocabulary = tuple(dataset.words[number - FIRST_WORD] for number in ranked)
    return replace(
        dataset, x=x, vocabulary=len(vocabulary) + FIRST_WORD, words=vocabulary, learn=None
    )


def ag_news(settings: PublicTexts) -> Dataset:
    """Read AG's News (Zhang, Zhao, LeCun 2015): class 1 to 4, title, description.

    Without the training file the 7,600 test rows are split (``first_share``) and the name says so;
    such results must not be reported as AG News accuracy.
    """
    path, classes = locate(settings), CATALOGUE["ag-news"].classes
    columns_of: Any = settings_class(Source("text", "path", "csv"))
    fixed = columns_of(
        name="text",
        header=False,
        label_column=0,
        text_columns=(1, 2),
        classes=("1", "2", "3", "4"),
        vocabulary_size=settings.vocabulary_size,
        sequence_length=settings.sequence_length,
        memory_share=settings.memory_share,
        tokenizer=settings.tokenizer,
    )
    if path.name == "train.csv":
        dataset = read_parts([path, path.with_name("test.csv")], 1, fixed)[0]
        return replace(dataset, name="ag-news", classes=classes)
    table, _, texts = _texts([path], fixed)
    y, _ = table.targets(fixed)
    order, n_train = first_share(y, 0.8)
    return _dataset(
        "ag-news (test file only)", [texts[i] for i in order], y[order], classes, n_train, fixed
    )


def first_share(y: NDArray[Any], share: float) -> tuple[NDArray[np.int64], int]:
    """Return an order with the first ``share`` of each class in front, and the number of rows in
    front.
    """
    front = np.zeros(len(y), bool)
    for label in np.unique(y):
        rows = np.flatnonzero(y == label)
        front[rows[: int(share * len(rows))]] = True
    return np.argsort(~front, kind="stable"), int(front.sum())
