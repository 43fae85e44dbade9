"""What the stored numbers of a DICOM frame mean: their scale and unit, from each place where the
standard keeps one.

| place | what is done |
| --- | --- |
| slope and intercept, at the top (PS3.3 C.11.1) or in functional groups (C.7.6.16.2.9) | used |
| Modality LUT Sequence (C.11.1) | used |
| Dose Grid Scaling (C.8.8.3) | used |
| Real World Value Mapping (C.7.6.16.2.11) | used where no other scale is; else noted |
| float and double pixels (C.7.6.24) | used, double rounded to float |
| Rescale Type, Units, Decay Correction, Pixel Intensity Relationship | the unit of the values |
| MONOCHROME1 | inverted, unless the values have a physical unit |
| private scales of Philips, Presentation LUT, overlays, burned-in text | noted |
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pomona.core import bounds
from pomona.core.errors import DataError
from pomona.data.formats.dicom_groups import element, item, items
from pomona.data.formats.dicom_header import DOSE
from pomona.data.images.image_file import scaled, scaled_type

# relations of values to what was measured, which are no units: such values may be inverted
RELATIVE = ("", "LIN", "LOG", "DISP", "stored numbers", "US")


@dataclass(frozen=True, eq=False)
class Values:
    """How stored numbers become values.

    Attributes:
        dtype: that holds all of them.
        unit: of the values, or empty.
        slope, shift: value = slope * stored + shift; (1, 0) if there is a table.
        table: values of the stored numbers from ``first`` on, if they are listed.
        first: the stored number of the table's first value.
        clipped: whether stored numbers beyond the table take its ends; else they are errors.
        inverted: value + inverted value, if they are inverted.
        notes: remarks.
    """

    dtype: np.dtype[Any]
    unit: str
    slope: float = 1.0
    shift: float = 0.0
    table: NDArray[Any] | None = None
    first: int = 0
    clipped: bool = True
    inverted: float | None = None
    notes: tuple[str, ...] = ()

    def of(self, stored: NDArray[Any], path: Path) -> NDArray[Any]:
        """Convert stored numbers. Raises DataError for numbers beyond a table or the dtype."""
        if self.table is not None:
            place = stored.astype(np.int64) - self.first
            if not self.clipped and ((place < 0) | (place >= len(self.table))).any():
                raise DataError(
                    f"{path} holds numbers beyond its table of real-world values; correct it"
                )
            values = self.table[place.clip(0, len(self.table) - 1)]
        else:
            values = scaled(stored, self.slope, self.shift, self.dtype, path)
        if self.inverted is not None:
            values = self.inverted - values.astype(np.float64)
        converted: NDArray[Any] = values.astype(self.dtype, copy=False)
        return converted

    @property
    def step(self) -> float:
        """The difference of neighbouring values, or 0 if they are as stored."""
        return 0.0 if (self.slope, self.shift) == (1, 0) else abs(self.slope)


def values(path: Path, dataset: Any, frame: int) -> Values:
    """Return how the stored numbers of a frame become values. Raises DataError for a scale that is
    of no use.
    """
    notes = [*_display(dataset), *_private(dataset)]
    if "BitsStored" not in dataset:  # float or double pixels
        if int(dataset.BitsAllocated) == 64:
            notes.append("real numbers of 64 bits are rounded to 32")
        return Values(np.dtype(np.float32), _unit(dataset, frame, None), notes=tuple(notes))
    bits, signed = int(dataset.BitsStored), int(dataset.PixelRepresentation) == 1
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    mapping, more = _mapping(dataset, frame)
    notes += more
    unit = _unit(dataset, frame, mapping)
    table, first = _table(dataset, mapping, signed)
    slope, shift = (1.0, 0.0) if table is not None else _slope(path, dataset, frame, mapping)
    if table is not None:
        dtype = table.dtype
        ends = (0.0, float(np.iinfo(dtype).max)) if dtype.kind == "u" else (0.0, 0.0)
    else:
        dtype = scaled_type(low, high, slope, shift)
        ends = (low * slope + shift, high * slope + shift)
    inverted = None
    if str(dataset.get("PhotometricInterpretation")) == "MONOCHROME1":
        physical = unit.split(",")[0] not in RELATIVE
        inverted = None if physical else sum(ends)
        notes.append(
            f"MONOCHROME1 (low values are shown white): kept, since they are {unit}"
            if physical
            else "MONOCHROME1 (low values are shown white): inverted, so that low is dark "
            f"({sum(ends):g} - v); data.window counts after that"
        )
    return Values(dtype, unit, slope, shift, table, first, mapping is None, inverted, tuple(notes))


def padding(dataset: Any, scale: Values) -> float | None:
    """Return the value of pixels outside the measured region, if the header names it."""
    value = dataset.get("PixelPaddingValue")
    if value is None or scale.inverted is not None or scale.table is not None:
        return None
    return float(value) * scale.slope + scale.shift


def _slope(path: Path, dataset: Any, frame: int, mapping: Any) -> tuple[float, float]:
    """Return slope and intercept of the stored numbers. Raises DataError if they are of no use."""
    if mapping is not None:
        found = [mapping.get("RealWorldValueSlope"), mapping.get("RealWorldValueIntercept")]
    elif dataset.get("SOPClassUID") == DOSE:
        found = [dataset.get("DoseGridScaling"), None]
    else:
        found = _rescale(dataset, frame)
    slope, shift = (
        usual if value is None else float(value)
        for usual, value in zip((1.0, 0.0), found, strict=True)
    )
    if not np.isfinite([slope, shift]).all() or not slope:
        raise DataError(
            f"{path} has RescaleSlope {slope} and RescaleIntercept {shift}; correct them"
        )
    return slope, shift


def _rescale(dataset: Any, frame: int) -> list[Any]:
    sequence = "PixelValueTransformationSequence"
    return [element(dataset, frame, f"Rescale{name}", sequence) for name in ("Slope", "Intercept")]


def _mapping(dataset: Any, frame: int) -> tuple[Any, list[str]]:
    """Return the real-world mapping that is the only scale of a frame, or None, and remarks."""
    mappings = items(dataset, frame, "RealWorldValueMappingSequence")
    if not mappings:
        return None, []
    units = " and ".join(_code(mapping) or "a unit without a name" for mapping in mappings)
    slope, shift = _rescale(dataset, frame)
    plain = (slope in (None, 1), shift in (None, 0)) == (True, True)
    if plain and not dataset.get("ModalityLUTSequence") and len(mappings) == 1:
        return mappings[0], []
    linear = [(m.get("RealWorldValueSlope"), m.get("RealWorldValueIntercept")) for m in mappings]
    if linear == [(slope, shift)]:
        return None, []
    return None, [
        f"the header maps the numbers to real-world values too ({units}); they are as the modality "
        "scales them"
    ]


def _table(dataset: Any, mapping: Any, signed: bool) -> tuple[NDArray[Any] | None, int]:
    """Return the values that a header lists, and the stored number of the first."""
    if mapping is not None:
        data = mapping.get("RealWorldValueLUTData")
        if data is None:
            return None, 0
        return np.array(data, np.float32), int(mapping.RealWorldValueFirstValueMapped)
    lut = next(iter(dataset.get("ModalityLUTSequence") or ()), None)
    if lut is None:
        return None, 0
    count, first, bits = (int(number) for number in lut.LUTDescriptor)
    count, dtype = count or 2**16, np.dtype(np.uint8 if bits <= 8 else np.uint16)
    data = lut.LUTData
    if isinstance(data, bytes):
        little = dataset.original_encoding[1] is not False
        packed = len(data) < 2 * count
        data = np.frombuffer(data, np.uint8 if packed else ("<u2" if little else ">u2"))
    entries = np.atleast_1d(np.asarray(data)).astype(dtype)[:count]
    if len(entries) < count:
        raise ValueError(f"ModalityLUTSequence has {len(entries)} of {count} entries")
    return entries, first - 2**16 if signed and first >= 2**15 else first


def _unit(dataset: Any, frame: int, mapping: Any) -> str:
    """Return the unit of a frame's values, as far as the header names it."""
    if mapping is not None:
        return _code(mapping)
    lut = next(iter(dataset.get("ModalityLUTSequence") or ()), None)
    scale = item(dataset, frame, "PixelValueTransformationSequence")
    named = (
        lut.get("ModalityLUTType")
        if lut is not None
        else (scale.get("RescaleType") if scale is not None else dataset.get("RescaleType"))
    )
    modality = str(dataset.get("Modality", ""))
    units = [dataset.get("Units"), dataset.get("DoseUnits"), named]
    unit = next((str(u) for u in units if u and str(u) != "US"), "")
    if modality == "PT" and dataset.get("DecayCorrection"):
        unit = f"{unit}, decay corrected to {dataset.DecayCorrection}"
    if modality == "CT" and not unit and lut is None:
        unit = "HU" if _rescale(dataset, frame) != [None, None] else "stored numbers"
    if not unit and dataset.get("PixelIntensityRelationship"):
        sign = dataset.get("PixelIntensityRelationshipSign")
        falling = ", falling with the dose" if sign is not None and int(sign) < 0 else ""
        unit = f"{dataset.PixelIntensityRelationship}{falling}"
    return bounds.plain(unit, 60)


def _code(mapping: Any) -> str:
    """Return the unit's code of a real-world mapping."""
    code = next(iter(mapping.get("MeasurementUnitsCodeSequence") or ()), None)
    return "" if code is None else str(code.get("CodeValue", ""))


def _display(dataset: Any) -> Iterator[str]:
    """Yield remarks on what is for display alone, or drawn over the pixels."""
    shape = str(dataset.get("PresentationLUTShape", ""))
    if shape == "INVERSE" and str(dataset.get("PhotometricInterpretation")) == "MONOCHROME2":
        yield "Presentation LUT Shape INVERSE is for display and not applied"
    if dataset.get("PresentationLUTSequence"):
        yield "the Presentation LUT is for display and not applied"
    tags = list(dataset.keys())
    if any(tag.group in range(0x6000, 0x6020, 2) and tag.element == 0x3000 for tag in tags):
        yield "overlays (graphics over the image) are not read"
    if str(dataset.get("BurnedInAnnotation", "")).upper() == "YES":
        yield "text is burned into the pixels (BurnedInAnnotation); a model may read it"
    if dataset.get("MaskSubtractionSequence"):
        yield "the mask image of the angiography is not subtracted"


def _private(dataset: Any) -> Iterator[str]:
    """Yield remarks on scales in private elements, and on PET without a common unit."""
    modality, units = str(dataset.get("Modality", "")), str(dataset.get("Units", ""))
    if "philips" in str(dataset.get("Manufacturer", "")).lower():
        slope = _private_number(dataset, 0x2005, 0x100E)
        if modality == "MR" and slope not in (None, 1.0):
            yield (
                "Philips scales MR for display, and keeps the scale of the measured signal in "
                f"private elements (slope {slope:g} here), not applied: values of series differ"
            )
        factor = _private_number(dataset, 0x7053, 0x1000)
        if modality == "PT" and units == "CNTS" and factor:
            yield f"PET in counts; Philips' private factor to SUV ({factor:g} here) is not applied"
    if modality == "PT" and units == "BQML":
        yield "PET in Bq/ml depends on dose and weight; it is not converted to SUV"


def _private_number(dataset: Any, group: int, tag: int) -> float | None:
    try:
        value = dataset[group, tag].value
        return float(np.frombuffer(value, "<f4")[0] if isinstance(value, bytes) else value)
    except (KeyError, ValueError, TypeError, IndexError):
        return None
