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
| VOI LUT and window, Presentation LUT, private scales of Philips, overlays, burned-in text | noted |
"""  # noqa: E501

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pomona.core import bounds
from pomona.core.errors import DataError
from pomona.data.formats.dicom_header import DOSE
from pomona.data.images.image_file import scaled, scaled_type
from pomona.data.images.packages import package

# relations of values to what was measured, which are no units: such values may be inverted
RELATIVE = ("", "LIN", "LOG", "DISP", "stored numbers", "US")
OVERLAYS = [(group, 0x3000) for group in range(0x6000, 0x6020, 2)]
NOT_APPLIED = {
    "PresentationLUTSequence": "the Presentation LUT is for display and not applied",
    "MaskSubtractionSequence": "the mask image of the angiography is not subtracted",
}
VOI = (
    "the header's window (VOI LUT) is for display and not applied: values are those of the "
    "modality (after slope and intercept, or Modality LUT); data.window applies one to all"
)


@dataclass(frozen=True, eq=False)
class Scale:
    """How stored numbers become values.

    Attributes:
        dtype: that holds all of them.
        unit: of the values, or empty.
        slope, shift: value = slope * stored + shift; (1, 0) if there is a table.
        table: returns the values of stored numbers that a table lists.
        inverted: value + inverted value, if they are inverted.
        notes: remarks.
    """

    dtype: np.dtype[Any]
    unit: str
    slope: float = 1.0
    shift: float = 0.0
    table: Callable[[NDArray[Any]], NDArray[Any]] | None = None
    inverted: float | None = None
    notes: tuple[str, ...] = ()

    def values(self, stored: NDArray[Any], path: Path) -> NDArray[Any]:
        """Convert stored numbers. Raises DataError for numbers beyond the dtype."""
        if self.table is not None:
            values = self.table(stored.astype(np.int64))  # pydicom subtracts in the stored dtype
        else:
            values = scaled(stored, self.slope, self.shift, self.dtype, path)
        if self.inverted is not None:
            values = self.inverted - values.astype(np.float64)
        return values.astype(self.dtype, copy=False)

    @property
    def step(self) -> float:
        """The difference of neighbouring values, or 0 if they are as stored."""
        return 0.0 if (self.slope, self.shift) == (1, 0) else abs(self.slope)

    def padding(self, header: Any) -> float | None:
        """Return the value of pixels outside the measured region, if the header names it."""
        value = header.get("PixelPaddingValue")
        if value is None or self.inverted is not None or self.table is not None:
            return None
        return float(value) * self.slope + self.shift


def scale(path: Path, header: Any) -> Scale:
    """Return how the stored numbers of a frame become values; ``header``: of the frame, flat.

    Raises DataError for a slope or intercept that are of no use.
    """
    notes = list(_notes(header))
    unit = _unit(header)
    if "BitsStored" not in header:  # float or double pixels
        if int(header.BitsAllocated) == 64:
            notes.append("real numbers of 64 bits are rounded to 32")
        return Scale(np.dtype(np.float32), unit, notes=tuple(notes))
    slope, shift, table = 1.0, 0.0, None
    if header.get("ModalityLUTSequence"):
        lookup = package("pydicom.pixels", path).apply_modality_lut
        table = partial(lookup, ds=header)
        dtype = np.dtype(f"uint{header.ModalityLUTSequence[0].LUTDescriptor[2]}")
        ends = [0, np.iinfo(dtype).max]
    else:
        slope, shift = _slope(path, header)
        bits = int(header.BitsStored)
        lowest = -(2 ** (bits - 1)) if int(header.PixelRepresentation) else 0
        dtype = scaled_type(lowest, lowest + 2**bits - 1, slope, shift)
        ends = [end * slope + shift for end in (lowest, lowest + 2**bits - 1)]
    inverted = None
    if header.get("PhotometricInterpretation") == "MONOCHROME1":
        action = f"kept, since they are {unit}"
        if unit.split(",")[0] in RELATIVE:
            inverted = float(sum(ends))
            action = (
                f"inverted, so that low is dark ({inverted:g} - v); data.window counts after it"
            )
        notes.append(f"MONOCHROME1 (low values are shown white): {action}")
    return Scale(dtype, unit, slope, shift, table, inverted, tuple(notes))


def _slope(path: Path, header: Any) -> tuple[float, float]:
    """Return slope and intercept of the stored numbers. Raises DataError if they are of no use."""
    slope, shift = header.get("RescaleSlope"), header.get("RescaleIntercept")
    if mapping := _mapping(header):
        slope, shift = mapping.RealWorldValueSlope, mapping.RealWorldValueIntercept
    elif header.get("SOPClassUID") == DOSE:
        slope, shift = header.get("DoseGridScaling"), None
    slope, shift = float(1 if slope is None else slope), float(0 if shift is None else shift)
    if not np.isfinite([slope, shift]).all() or not slope:
        raise DataError(
            f"{path} has RescaleSlope {slope} and RescaleIntercept {shift}; correct them"
        )
    return slope, shift


def _mapping(header: Any) -> Any:
    """Return the linear real-world mapping that is the only scale of a frame, or None."""
    mappings = header.get("RealWorldValueMappingSequence") or ()
    rescaled = (header.get("RescaleSlope"), header.get("RescaleIntercept"))
    scaled_already = rescaled not in {(None, None), (1, 0)} or header.get("ModalityLUTSequence")
    linear = len(mappings) == 1 and "RealWorldValueSlope" in mappings[0]
    return mappings[0] if linear and not scaled_already else None


def _unit(header: Any) -> str:
    """Return the unit of a frame's values, as far as the header names it."""
    if mapping := _mapping(header):
        return _code(mapping)
    table = header.get("ModalityLUTSequence")
    scale_type = table[0].get("ModalityLUTType") if table else header.get("RescaleType")
    units = (header.get("Units"), header.get("DoseUnits"), scale_type)
    unit = next((str(u) for u in units if u and str(u) != "US"), "")
    modality = header.get("Modality")
    if modality == "PT" and header.get("DecayCorrection"):
        unit = f"{unit}, decay corrected to {header.DecayCorrection}"
    elif modality == "CT" and not unit and not table:
        unit = "HU" if "RescaleSlope" in header else "stored numbers"
    elif not unit and header.get("PixelIntensityRelationship"):
        falling = int(header.get("PixelIntensityRelationshipSign") or 1) < 0
        unit = f"{header.PixelIntensityRelationship}{', falling with the dose' if falling else ''}"
    return bounds.plain(unit, 60)


def _code(mapping: Any) -> str:
    """Return the unit's code of a real-world mapping."""
    codes = mapping.get("MeasurementUnitsCodeSequence")
    return bounds.plain(str(codes[0].get("CodeValue", "")), 60) if codes else ""


def _notes(header: Any) -> Iterator[str]:
    """Yield remarks on what the header says about the values and is not applied."""
    yield from (note for name, note in NOT_APPLIED.items() if header.get(name))
    if header.get("WindowCenter") is not None or header.get("VOILUTSequence"):
        yield VOI
    shape, colours = header.get("PresentationLUTShape"), header.get("PhotometricInterpretation")
    if shape == "INVERSE" and colours == "MONOCHROME2":
        yield "Presentation LUT Shape INVERSE is for display and not applied"
    if any(
        tag.group in range(0x6000, 0x6020, 2) and tag.elem == 0x3000 for tag in dict(header.items())
    ):
        yield "overlays (graphics over the image) are not read"
    if header.get("BurnedInAnnotation") == "YES":
        yield "text is burned into the pixels (BurnedInAnnotation); a model may read it"
    if (mappings := header.get("RealWorldValueMappingSequence")) and not _mapping(header):
        slopes = [
            (m.get("RealWorldValueSlope"), m.get("RealWorldValueIntercept")) for m in mappings
        ]
        if slopes != [(header.get("RescaleSlope", 0), header.get("RescaleIntercept"))]:
            units = " and ".join(_code(mapping) or "a unit without a name" for mapping in mappings)
            yield (
                f"the header maps the numbers to real-world values too ({units}), not applied: "
                "they are as the modality scales them"
            )
    yield from _scanner_notes(header)


def _scanner_notes(header: Any) -> Iterator[str]:
    """Yield remarks on scales that differ between scanners or scans."""
    modality, units = header.get("Modality"), header.get("Units")
    private = header.get((0x2005, 0x100E))
    if modality == "MR" and "philips" in str(header.get("Manufacturer", "")).lower() and private:
        yield (
            "Philips scales MR for display, and keeps the scale of the measured signal in private "
            f"elements (slope {bounds.plain(str(private.value), 20)} here), not applied: values of "
            "series differ"
        )
    if modality == "PT" and units in {"BQML", "CNTS"}:
        yield f"PET in {units} depends on dose and weight; it is not converted to SUV"
