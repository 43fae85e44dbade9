"""What the stored numbers of a DICOM frame mean: their scale and unit, from each element that the
standard has for them (functional groups are flattened by ``frame_header``).

| element | use |
| --- | --- |
| slope and intercept (PS3.3 C.11.1, C.7.6.16.2.9) | applied |
| Modality LUT Sequence (C.11.1) | applied, by pydicom |
| Dose Grid Scaling (C.8.8.3) | applied |
| Real World Value Mapping (C.7.6.16.2.11) | slope and intercept applied where no other scale is; else noted |
| float and double pixels (C.7.6.24) | used, double rounded to float |
| Rescale Type, Units, Decay Correction, Pixel Intensity Relationship | the unit of the values |
| MONOCHROME1 | inverted, unless the values have a physical unit |
| Pixel Padding Value | noted |
| VOI LUT and window, Presentation LUT, overlays, burned-in text | noted |
"""  # noqa: E501

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pomona.core import bounds
from pomona.core.errors import DataError
from pomona.data.formats import pictures
from pomona.data.formats.dicom_header import DOSE
from pomona.data.images import package
from pomona.data.images.image_file import RELATIVE_UNITS, ROUNDED, scaled, scaled_type

OVERLAYS = [(group, 0x3000) for group in range(0x6000, 0x6020, 2)]
DISPLAY = {
    "WindowCenter": "window (VOI LUT)",
    "VOILUTSequence": "VOI LUT",
    "PresentationLUTSequence": "Presentation LUT",
    "MaskSubtractionSequence": "mask subtraction",
}


@dataclass(frozen=True, eq=False)
class Scale:
    """How stored numbers become values.

    Attributes:
        dtype: that holds all of them.
        unit: of the values, or empty.
        slope, shift: value = slope * stored + shift; (1, 0) if there is a table.
        table: the header, if its Modality LUT lists the values.
        inverted: value + inverted value, if they are inverted.
        notes: remarks.
    """

    dtype: np.dtype[Any]
    unit: str
    slope: float = 1.0
    shift: float = 0.0
    table: Any = None
    inverted: float | None = None
    notes: tuple[str, ...] = ()

    def values(self, stored: NDArray[Any], path: Path) -> NDArray[Any]:
        """Convert stored numbers. Raises DataError for numbers beyond the dtype."""
        values: NDArray[Any]
        if self.table is not None:
            # pydicom subtracts in the stored dtype, where it may overflow
            lookup = package("pydicom.pixels", path).apply_modality_lut
            values = lookup(stored.astype(np.int64), self.table)
        else:
            values = scaled(stored, self.slope, self.shift, self.dtype, path)
        if self.inverted is not None:
            values = self.inverted - values.astype(np.float64)
        return values.astype(self.dtype, copy=False)

    @property
    def step(self) -> float:
        """The difference of neighbouring values, or 0 if they are as stored."""
        return 0.0 if (self.slope, self.shift) == (1, 0) else abs(self.slope)


def scale(path: Path, header: Any) -> Scale:
    """Return how the stored numbers of a frame become values; ``header``: of the frame, flat.

    Raises DataError for a slope or intercept that are of no use.
    """
    notes = list(_notes(header))
    slope, shift, unit = _linear(header)
    if "BitsStored" not in header:  # float or double pixels
        if int(header.BitsAllocated) == 64:
            notes.append(ROUNDED)
        return Scale(np.dtype(np.float32), unit, notes=tuple(notes))
    if not np.isfinite([slope, shift]).all() or not slope:
        raise DataError(f"{path} has RescaleSlope {slope} and RescaleIntercept {shift}; fix them")
    if table := header.get("ModalityLUTSequence"):
        dtype = np.dtype(f"uint{table[0].LUTDescriptor[2]}")
        limits = 0.0, float(np.iinfo(dtype).max)
    else:
        lowest = -(2 ** (int(header.BitsStored) - 1)) if int(header.PixelRepresentation) else 0
        highest = lowest + 2 ** int(header.BitsStored) - 1
        dtype = scaled_type(lowest, highest, slope, shift)
        limits = lowest * slope + shift, highest * slope + shift
    inverted = None
    if header.get("PhotometricInterpretation") == "MONOCHROME1":
        action = f"kept, since they are {unit}"
        if unit.split(",")[0] in RELATIVE_UNITS:
            inverted = sum(limits)
            action = f"inverted, so low is dark ({inverted:g} - v); data.window counts after it"
        notes.append(f"MONOCHROME1 (low values are shown white): {action}")
    notes += _padding_notes(header, slope, shift, inverted)
    return Scale(dtype, unit, slope, shift, header if table else None, inverted, tuple(notes))


def _padding_notes(
    header: Any, slope: float, shift: float, inverted: float | None
) -> Iterator[str]:
    """Yield a remark on the value of pixels outside the measured region, if the header has it."""
    padding = header.get("PixelPaddingValue")
    if padding is not None and not header.get("ModalityLUTSequence"):
        value = float(padding) * slope + shift
        value = value if inverted is None else inverted - value
        yield (
            f"the header names a padding value ({value:g}) of pixels where nothing was measured; "
            "data.window clips it"
        )


def _linear(header: Any) -> tuple[float, float, str]:
    """Return slope, intercept and unit of a frame; 1 and 0 if it has no slope, or a table."""
    slope, shift, unit = header.get("RescaleSlope"), header.get("RescaleIntercept"), _unit(header)
    mappings: Any = header.get("RealWorldValueMappingSequence") or ()
    unscaled = (slope, shift) in {(None, None), (1, 0)}
    if header.get("ModalityLUTSequence"):
        slope, shift = 1, 0
    elif header.get("SOPClassUID") == DOSE:
        slope = header.get("DoseGridScaling")
    elif unscaled and len(mappings) == 1 and "RealWorldValueSlope" in mappings[0]:
        slope, shift = mappings[0].RealWorldValueSlope, mappings[0].RealWorldValueIntercept
        unit = _code(mappings[0])
    return float(1 if slope is None else slope), float(0 if shift is None else shift), unit


def _unit(header: Any) -> str:
    """Return the unit of a frame's values, as far as the header names it."""
    unit = _stated_unit(header)
    if header.get("Modality") == "PT" and header.get("DecayCorrection"):
        unit = f"{unit}, decay corrected to {header.DecayCorrection}"
    return bounds.plain(unit or _implied_unit(header), 60)


def _implied_unit(header: Any) -> str:
    """Return the unit that values have without an element for units, or empty."""
    if header.get("Modality") == "CT" and not header.get("ModalityLUTSequence"):
        return "stored numbers" if header.get("RescaleSlope") is None else "HU"
    relationship = str(header.get("PixelIntensityRelationship") or "")
    is_falling = relationship and int(header.get("PixelIntensityRelationshipSign") or 1) < 0
    return f"{relationship}, falling with the dose" if is_falling else relationship


def _stated_unit(header: Any) -> str:
    """Return the unit that an element for units has, or empty."""
    table = header.get("ModalityLUTSequence")
    scale_type = table[0].get("ModalityLUTType") if table else header.get("RescaleType")
    units = (header.get("Units"), header.get("DoseUnits"), scale_type)
    return next((str(unit) for unit in units if unit and str(unit) != "US"), "")


def _code(mapping: Any) -> str:
    """Return the unit's code of a real-world mapping."""
    codes = mapping.get("MeasurementUnitsCodeSequence")
    return bounds.plain(str(codes[0].get("CodeValue", "")), 60) if codes else ""


def _notes(header: Any) -> Iterator[str]:
    """Yield remarks on what the header says about the values and is not applied."""
    if display := _display_settings(header):
        yield (
            f"the header's {', '.join(display)} is not applied: values are those of the modality "
            "(after slope and intercept, or Modality LUT); data.window applies one window to all"
        )
    if any(tag in header for tag in OVERLAYS):
        yield "overlays (graphics over the image) are not read"
    if not pictures.is_srgb(header.get("ICCProfile") or b"sRGB"):
        yield pictures.PROFILE
    if header.get("BurnedInAnnotation") == "YES":
        yield "text is burned into the pixels (BurnedInAnnotation); a model may read it"
    if header.get("Modality") == "PT" and header.get("Units") in {"BQML", "CNTS"}:
        yield f"PET in {header.Units} depends on dose and weight; it is not converted to SUV"
    if unused := _unused_mappings(header):
        yield (
            f"the header maps the numbers to real-world values too ({' and '.join(unused)}), not "
            "applied: they are as the modality scales them"
        )


def _display_settings(header: Any) -> list[str]:
    """Return the titles of the header's settings for display."""
    titles = [title for name, title in DISPLAY.items() if header.get(name) is not None]
    is_inverse = header.get("PresentationLUTShape") == "INVERSE"
    if is_inverse and header.get("PhotometricInterpretation") == "MONOCHROME2":
        titles.append("Presentation LUT Shape INVERSE")
    return titles


def _unused_mappings(header: Any) -> list[str]:
    """Return the units of the real-world mappings that are not applied."""
    applied = _linear(header)[:2]
    return [
        _code(mapping) or "a unit without a name"
        for mapping in header.get("RealWorldValueMappingSequence") or ()
        if (mapping.get("RealWorldValueSlope"), mapping.get("RealWorldValueIntercept")) != applied
    ]
