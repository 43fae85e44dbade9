"""MedMNIST v2 (Yang et al. 2023): one .npz per data set; its validation split is added to the
training rows.
"""

from pomona.core.bounds import Targets
from pomona.data import image_arrays, npz, targets
from pomona.data.catalogue import locate
from pomona.data.dataset import Dataset
from pomona.data.kinds import PublicImages

_ORGANS = (
    *("bladder", "femur-left", "femur-right", "heart", "kidney-left", "kidney-right"),
    *("liver", "lung-left", "lung-right", "pancreas", "spleen"),
)
CLASSES = {
    "pathmnist": (
        *("adipose", "background", "debris", "lymphocytes", "mucus", "smooth muscle"),
        *(
            "normal colon mucosa",
            "cancer-associated stroma",
            "colorectal adenocarcinoma epithelium",
        ),
    ),
    "dermamnist": (
        *(
            "actinic keratoses and intraepithelial carcinoma",
            "basal cell carcinoma",
            "benign keratosis-like lesions",
        ),
        *("dermatofibroma", "melanoma", "melanocytic nevi", "vascular lesions"),
    ),
    "octmnist": ("choroidal neovascularization", "diabetic macular edema", "drusen", "normal"),
    "pneumoniamnist": ("normal", "pneumonia"),
    "retinamnist": ("0", "1", "2", "3", "4"),
    "breastmnist": ("malignant", "normal, benign"),
    "bloodmnist": (
        *("basophil", "eosinophil", "erythroblast", "immature granulocytes"),
        *("lymphocyte", "monocyte", "neutrophil", "platelet"),
    ),
    "tissuemnist": (
        *(
            "collecting duct, connecting tubule",
            "distal convoluted tubule",
            "glomerular endothelial cells",
        ),
        *("interstitial endothelial cells", "leukocytes", "podocytes", "proximal tubule segments"),
        "thick ascending limb",
    ),
    "chestmnist": (  # flags, not classes
        *("atelectasis", "cardiomegaly", "effusion", "infiltration", "mass", "nodule", "pneumonia"),
        *("pneumothorax", "consolidation", "edema", "emphysema", "fibrosis", "pleural", "hernia"),
    ),
    **dict.fromkeys(("organamnist", "organcmnist", "organsmnist"), _ORGANS),
}


def read(settings: PublicImages) -> Dataset:
    """Read a 2-D set of the collection; chestmnist has 14 flags per row instead of a class."""
    name, path = settings.name, locate(settings)
    parts = [
        npz.pair(path, (f"{part}_images", f"{part}_labels")) for part in ("train", "val", "test")
    ]
    kind: Targets = "multilabel" if name == "chestmnist" else "classes"
    y, classes = targets.from_arrays(
        [(y.where, y.load()) for _, y in parts], kind, CLASSES.get(name, ())
    )
    x = image_arrays.gathered([x for x, _ in parts], settings.memory_share)
    n_train = len(parts[0][0]) + len(parts[1][0])
    labels = CLASSES[name] if kind == "multilabel" else ()
    return Dataset(
        name, "image", x, y, classes, n_train, image_arrays.SHIFT, image_arrays.SCALE, labels=labels
    )
