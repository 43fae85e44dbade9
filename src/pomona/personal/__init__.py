"""Personal models as files: written at the end of a run, and loaded for prediction.

``save`` writes one, ``PersonalModel.load`` reads it, ``PersonalModel.predict`` predicts, ``inputs``
reads samples. The file format is in ``record.model_file``, the metadata in
``record.model_metadata``.
"""

from pomona.personal.model import PersonalModel, save, save_frozen

__all__ = ["PersonalModel", "save", "save_frozen"]
