"""Other words for the names of this package, for suggestions."""

from collections.abc import Iterable, Sequence

SYNONYMS = {
    "images": (
        "image pictures photos scans volumes png jpg jpeg tiff dicom nifti folder manifest files"
    ),
    "table": (
        "folder files csv parquet tables tabular spreadsheet tsv excel xlsx xls ods sas spss "
        "stata arrow feather"
    ),
    "text": "files csv parquet texts documents sentences",
    "arrays": "files array numpy npy npz tensors",
    "fashion-mnist": "mnist-fashion",
    "cifar10": "cifar-10",
    "cifar100": "cifar-100",
    "emnist-byclass": "emnist",
    "emnist-balanced": "emnist",
    "emnist-letters": "emnist",
    "auroc": "auc roc roc-auc",
    "auprc": "pr-auc average-precision",
    "accuracy": "acc",
    "macro_f1": "f1",
    "mse": "rmse",
    "c_index": "concordance",
    "logistic": "logistic-regression linear",
    "mlp": "dnn",
    "resnet18": "resnet",
    "unet": "u-net",
    "separate": "local alone standalone",
    "fedavg-ft": "finetuning",
    "dirichlet": "noniid non-iid lda",
    "pathological": "noniid non-iid",
}
"""By name: words for it in lower case with hyphens; the likelier name of a word comes first."""


def normalized(name: str) -> str:
    """Return a name in the form in which names are compared: case and separators do not count."""
    return "-".join(name.casefold().replace("_", " ").replace("-", " ").split())


def intended(name: str, names: Iterable[str]) -> Sequence[str]:
    """Return the names that differ from this one in case or separators only, else its synonyms."""
    choices, word = [*names], normalized(name)
    return [choice for choice in choices if normalized(choice) == word] or [
        meant for meant, words in SYNONYMS.items() if meant in choices and word in words.split()
    ]


def canonical(name: str, names: Iterable[str]) -> str:
    """Return the one of the names that differs from this one in case or separators only, if there
    is exactly one; else the name.
    """
    choices = [*names]
    alike = [choice for choice in choices if normalized(choice) == normalized(name)]
    return alike[0] if len(alike) == 1 and name not in choices else name
