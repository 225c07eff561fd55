"""Write PNG images without an image package: what `add_image` needs, and no more."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from verl.tracking.values import as_array

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_RED = (255, 0, 0)
_COLOR_TYPE = {1: 0, 2: 4, 3: 2, 4: 6}  # channels -> grey, grey + alpha, RGB, RGBA


def encode_png(image_HWC: np.ndarray) -> bytes:
    """Encode an image.

    Args:
        image_HWC: Bytes (uint8) of shape (height, width, channels), 1 to 4 channels.
    """
    height, width, channels = image_HWC.shape
    header = struct.pack(">IIBBBBB", width, height, 8, _COLOR_TYPE[channels], 0, 0, 0)
    rows = np.zeros((height, 1 + width * channels), dtype=np.uint8)  # each row begins with filter type 0
    rows[:, 1:] = image_HWC.reshape(height, -1)
    body = zlib.compress(rows.tobytes(), 6)
    return _SIGNATURE + _chunk(b"IHDR", header) + _chunk(b"IDAT", body) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_size(path: Path) -> tuple[int, int]:
    """Read width and height of a PNG file.

    Raises:
        ValueError: It is not a PNG file.
    """
    with path.open("rb") as file:
        head = file.read(24)
    if len(head) < 24 or not head.startswith(_SIGNATURE):
        raise ValueError(f"{path} is not a PNG image")
    width, height = struct.unpack(">II", head[16:24])
    return width, height


def as_image(values: Any, dataformats: str) -> np.ndarray:
    """Bring an image or a batch of images into one (height, width, channels) array of bytes.

    A batch becomes a contact sheet. Floats are taken as 0 to 1, integers as 0 to 255; both are clipped, and
    NaN is black.

    Args:
        values: Array or tensor.
        dataformats: What its axes are: a permutation of H, W, perhaps C, perhaps N, such as "CHW" or "NHWC".

    Raises:
        TypeError: `values` are not numbers.
        ValueError: The format is none of these, or does not fit the shape.
    """
    array = as_array(values)
    formats = dataformats.upper()
    if sorted(formats) not in (sorted("HW"), sorted("CHW"), sorted("NHW"), sorted("NCHW")):
        raise ValueError(f"dataformats={dataformats!r}: allowed are HW, CHW, HWC, NCHW, NHWC and other orders of them")
    if array.ndim != len(formats):
        raise ValueError(f"an image of shape {array.shape} does not fit dataformats={dataformats!r}")
    if array.size == 0:
        raise ValueError(f"an image of shape {array.shape} has no pixels")
    order = [axis for axis in "NHWC" if axis in formats]
    array = array.transpose([formats.index(axis) for axis in order])
    if "C" not in order:
        array = array[..., None]
    if "N" not in order:
        array = array[None]
    if array.shape[-1] not in _COLOR_TYPE:
        raise ValueError(f"an image has 1 to 4 channels, not {array.shape[-1]} (shape {array.shape}, {dataformats!r})")
    return contact_sheet(_as_bytes(array))


def _as_bytes(array: np.ndarray) -> np.ndarray:
    if array.dtype == np.uint8:
        return array
    if array.dtype.kind == "f":
        array = np.rint(np.nan_to_num(array.astype(np.float64), nan=0.0, posinf=1.0, neginf=0.0).clip(0, 1) * 255)
    elif array.dtype.kind == "b":
        array = array.astype(np.uint8) * 255
    return array.clip(0, 255).astype(np.uint8)


def contact_sheet(images_NHWC: np.ndarray) -> np.ndarray:
    """Lay images out in rows, as square as can be; shape (rows x height, columns x width, channels)."""
    count, height, width, channels = images_NHWC.shape
    columns = int(np.ceil(np.sqrt(count)))
    rows = int(np.ceil(count / columns))
    sheet = np.zeros((rows * columns, height, width, channels), dtype=images_NHWC.dtype)
    sheet[:count] = images_NHWC
    tiles = sheet.reshape(rows, columns, height, width, channels).swapaxes(1, 2)
    return tiles.reshape(rows * height, columns * width, channels)


def draw_boxes(image_HWC: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    """A colour copy of an image with red outlines.

    Args:
        image_HWC: Bytes of shape (height, width, channels).
        boxes: [x1, y1, x2, y2] each, in pixels, shape (boxes, 4); parts outside of the image are cut off.

    Raises:
        ValueError: The boxes have another shape.
    """
    boxes = boxes.reshape(-1, 4) if boxes.ndim == 1 and boxes.size % 4 == 0 else boxes
    if boxes.ndim != 2 or boxes.shape[1] != 4:
        raise ValueError(f"boxes of shape {boxes.shape}; expected (boxes, 4)")
    height, width, channels = image_HWC.shape
    grey = channels < 3
    drawn = np.repeat(image_HWC[..., :1], 3, axis=2) if grey else image_HWC[..., :3].copy()
    for left, top, right, bottom in np.nan_to_num(boxes).astype(np.int64):
        x1, x2 = np.clip([left, right], 0, width - 1)
        y1, y2 = np.clip([top, bottom], 0, height - 1)
        drawn[[y1, y2], x1 : x2 + 1] = _RED
        drawn[y1 : y2 + 1, [x1, x2]] = _RED
    return drawn
