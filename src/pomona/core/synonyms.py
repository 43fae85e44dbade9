"""Other words for the names of this package, for suggestions."""

from collections.abc import Iterable, Sequence

SYNONYMS: dict[str, tuple[str, ...]] = {
    "image": ("images",),
    "pictures": ("images",),
    "photos": ("images",),
    "scans": ("images",),
    "volumes": ("images",),
    "png": ("images",),
    "jpg": ("images",),
    "jpeg": ("images",),
    "tiff": ("images",),
    "dicom": ("images",),
    "nifti": ("images",),
    "folder": ("images", "table"),
    "manifest": ("images",),
    "files": ("table", "images", "text", "arrays"),
    "csv": ("table", "text"),
    "parquet": ("table", "text"),
    "tables": ("table",),
    "tabular": ("table",),
    "spreadsheet": ("table",),
    "tsv": ("table",),
    "excel": ("table",),
    "xlsx": ("table",),
    "xls": ("table",),
    "ods": ("table",),
    "sas": ("table",),
    "spss": ("table",),
    "stata": ("table",),
    "arrow": ("table",),
    "feather": ("table",),
    "texts": ("text",),
    "documents": ("text",),
    "sentences": ("text",),
    "array": ("arrays",),
    "numpy": ("arrays",),
    "npy": ("arrays",),
    "npz": ("arrays",),
    "tensors": ("arrays",),
    "mnist-fashion": ("fashion-mnist",),
    "cifar-10": ("cifar10",),
    "cifar-100": ("cifar100",),
    "emnist": ("emnist-byclass", "emnist-balanced", "emnist-letters"),
    "auc": ("auroc",),
    "roc": ("auroc",),
    "roc-auc": ("auroc",),
    "pr-auc": ("auprc",),
    "average-precision": ("auprc",),
    "acc": ("accuracy",),
    "f1": ("macro_f1",),
    "rmse": ("mse",),
    "concordance": ("c_index",),
    "logistic-regression": ("logistic",),
    "linear": ("logistic",),
    "dnn": ("mlp",),
    "resnet": ("resnet18",),
    "u-net": ("unet",),
    "local": ("separate",),
    "alone": ("separate",),
    "standalone": ("separate",),
    "finetuning": ("fedavg-ft",),
    "noniid": ("dirichlet", "pathological"),
    "non-iid": ("dirichlet", "pathological"),
    "lda": ("dirichlet",),
}
"""By a word in lower case with hyphens: the names that may be meant, the likeliest first."""


def normalized(name: str) -> str:
    """Return a name in the form in which names are compared: case and separators do not count."""
    return "-".join(name.casefold().replace("_", " ").replace("-", " ").split())


def intended(name: str, names: Iterable[str]) -> Sequence[str]:
    """Return the names that differ from this one in case or separators only, else its synonyms."""
    choices = [*names]
    return [choice for choice in choices if normalized(choice) == normalized(name)] or [
        choice for choice in SYNONYMS.get(normalized(name), ()) if choice in choices
    ]
