"""Small pictures inside HTML, of arrays: PNG as a data URI, lines and bars as SVG. No files, no imaging package."""

from __future__ import annotations

import base64
import struct
import zlib

import numpy as np

#: Pixels along the longer side of a thumbnail; larger pictures are thinned out.
SIDE = 64
#: Points of a line.
_POINTS = 96
#: Channels that a sparkline draws.
CHANNELS = 4
# Readable on white and on black.
COLOURS = ("#3f8fd2", "#e07b39", "#3aa76d", "#b05fc4")


def png(pixels: np.ndarray) -> bytes:
    """A PNG file of uint8 pixels.

    Parameters
    ----------
    pixels : ndarray of uint8, shape (height, width), or (height, width, 3) or (height, width, 4)

    Notes
    -----
    Portable Network Graphics Specification, third edition (W3C 2025): signature and chunks in section 5, IHDR in
    11.2.1, every line with filter type 0 in 9.2.
    """
    height, width = pixels.shape[:2]
    kind = {2: 0, 3: 2}.get(pixels.ndim if pixels.shape[-1] != 4 or pixels.ndim == 2 else 4, 6)
    lines = np.zeros((height, 1 + pixels[0].size), np.uint8)
    lines[:, 1:] = pixels.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines.tobytes(), 6))
            + chunk(b"IEND", b""))


def data_uri(pixels: np.ndarray) -> str:
    return "data:image/png;base64," + base64.b64encode(png(pixels)).decode("ascii")


def as_images(samples: np.ndarray) -> np.ndarray:
    """Samples of an image-like field as (n, height, width) or (n, height, width, 3 or 4), colours last."""
    if samples.ndim == 4:
        if samples.shape[-1] not in (1, 3, 4):
            samples = np.moveaxis(samples, 1, -1)
        if samples.shape[-1] == 1:
            samples = samples[..., 0]
    return samples


def as_pixels(images: np.ndarray) -> np.ndarray:
    """Images as uint8: bytes of pictures as they are, other values stretched over what is shown; not finite: black."""
    values = np.abs(images) if images.dtype.kind == "c" else images
    colours = values.ndim == 4
    if values.dtype == np.uint8 and (colours or values.size and int(values.max()) > 127):
        return values
    values = values.astype(np.float64)
    finite = np.isfinite(values)
    if not finite.any():
        return np.zeros(values.shape, np.uint8)
    low, high = float(values[finite].min()), float(values[finite].max())
    if colours and 0 <= low and high <= 1:
        low, high = 0.0, 1.0
    with np.errstate(all="ignore"):
        scaled = (values - low) * (255 / (high - low)) if high > low else np.full(values.shape, 128.0)
    return np.where(finite, np.clip(np.nan_to_num(scaled), 0, 255), 0).astype(np.uint8)


def thinned(images: np.ndarray, side: int = SIDE) -> np.ndarray:
    """Images of at most `side` pixels a side, by leaving pixels out."""
    step = -(-max(images.shape[1:3]) // side)
    return images[:, ::step, ::step]


def sparkline(series: np.ndarray, width: int = 150, height: int = 34) -> str:
    """Lines of one sample (times, channels), each on a scale of its own; gaps where values are not finite."""
    step = -(-len(series) // _POINTS)
    values = np.asarray(series[::step, :CHANNELS], dtype=np.float64)
    lines = [_line(column, width, height, COLOURS[i % len(COLOURS)]) for i, column in enumerate(values.T)]
    return _svg(width, height, "".join(lines))


def _line(values: np.ndarray, width: int, height: int, colour: str) -> str:
    finite = np.isfinite(values)
    if not finite.any():
        return f'<text x="4" y="{height - 12}" font-size="11" fill="currentColor">not finite</text>'
    low, high = float(values[finite].min()), float(values[finite].max())
    with np.errstate(all="ignore"):
        share = (values - low) / (high - low) if high > low else np.full(len(values), 0.5)
        y = height - 3 - share * (height - 6)
    x = np.linspace(2, width - 2, len(values)) if len(values) > 1 else np.array([width / 2])
    path, pen = [], "M"
    for i in range(len(values)):
        if finite[i] and np.isfinite(y[i]):
            path.append(f"{pen}{x[i]:.1f} {y[i]:.1f}")
            pen = "L"
        else:
            pen = "M"
    if len(path) == 1:
        path.append(path[0].replace("M", "L"))
    return (f'<path d="{"".join(path)}" fill="none" stroke="{colour}" stroke-width="1.2" stroke-linecap="round" '
            'stroke-linejoin="round"/>')


def bars(values: np.ndarray, width: int = 150, height: int = 34) -> str:
    """Values as bars from zero."""
    known = np.where(np.isfinite(values), values, 0.0).astype(np.float64)
    low, high = min(0.0, float(known.min(initial=0))), max(0.0, float(known.max(initial=0)))
    span = (high - low) or 1.0
    each = width / max(1, len(known))
    zero = height - 2 - (0 - low) / span * (height - 4)
    shapes = []
    for i, value in enumerate(known.tolist()):
        top = height - 2 - (value - low) / span * (height - 4)
        shapes.append(f'<rect x="{i * each + 0.5:.1f}" y="{min(top, zero):.1f}" width="{max(each - 1, 0.6):.1f}" '
                      f'height="{max(abs(zero - top), 0.5):.1f}" fill="{COLOURS[0]}"/>')
    return _svg(width, height, "".join(shapes))


def _svg(width: int, height: int, inside: str) -> str:
    return (f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
            f'style="vertical-align:middle">{inside}</svg>')
