"""Pictures of pages compared with references, pixel by pixel, as somebody's eye would.

The edges of letters differ a little between versions of a font renderer. So a pixel counts only if
its colour is none that the other picture has at that place or beside it, both ways.
"""

import io
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

REFERENCES = Path(__file__).parent / "references"
MAX_COLOURS = 255  # the references have so many: they are a third as large then
TOLERANCE = 40  # of 255, in each channel
MAX_DIFFERENT = 24  # pixels: less than a letter

Pixels = npt.NDArray[np.int16]


def reference_of(look: str) -> Path:
    """Where the reference of a look is, such as `empty light wide`."""
    return REFERENCES / f"{look.replace(' ', '-')}.png"


def read(png: bytes) -> Pixels:
    with Image.open(io.BytesIO(png)) as image:
        return np.asarray(image.convert("RGB"), dtype=np.int16)


def compressed(png: bytes) -> bytes:
    """The same with fewer colours, the rare ones too: a dot may be all that says what is wrong."""
    written = io.BytesIO()
    with Image.open(io.BytesIO(png)) as image:
        few = image.convert("RGB").quantize(
            MAX_COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE
        )
        few.save(written, "PNG", optimize=True)
    return written.getvalue()


def num_different(one: Pixels, other: Pixels) -> int:
    """How many pixels differ to the eye. All of them if the sizes do."""
    if one.shape != other.shape:
        return max(one.size, other.size) // 3
    return int((_strange(one, other) | _strange(other, one)).sum())


def _strange(pixels: Pixels, other: Pixels) -> npt.NDArray[np.bool_]:
    """Which pixels lie outside the colours that the other has there and beside it."""
    padded = np.pad(other, ((1, 1), (1, 1), (0, 0)), mode="edge")
    height, width, _ = other.shape
    around = [padded[y : y + height, x : x + width] for y in range(3) for x in range(3)]
    lowest, highest = np.minimum.reduce(around), np.maximum.reduce(around)
    outside = (pixels < lowest - TOLERANCE) | (pixels > highest + TOLERANCE)
    strange: npt.NDArray[np.bool_] = outside.any(axis=2)
    return strange


def difference(one: Pixels, other: Pixels) -> bytes:
    """A picture of where they differ, for people: grey, and red there."""
    if one.shape != other.shape:
        shown = one.astype(np.uint8)
    else:
        grey = 200 + one.mean(axis=2, keepdims=True).repeat(3, axis=2) / 5
        shown = grey.clip(0, 255).astype(np.uint8)
        shown[_strange(one, other) | _strange(other, one)] = (220, 0, 0)
    written = io.BytesIO()
    Image.fromarray(shown).save(written, "PNG")
    return written.getvalue()
