"""Sources: one image file as one array. The only room that knows Pillow."""

from __future__ import annotations

import contextlib
import functools
import io
import os
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from h5store.errors import CorruptChunkError, OptionError, SourceError, require
from h5store.ragged import Ragged
from h5store.schema import Field
from h5store.sources.npy import Unreadable
from h5store.storage import pool

ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff", ".webp", ".gif")
MODES = ("L", "LA", "RGB", "RGBA")
# Of the EXIF standard: 274 is the orientation, 5 to 8 lie on their side.
_ORIENTATION = 274
_PLAIN = {"1": "L", "CMYK": "RGB", "YCbCr": "RGB", "HSV": "RGB", "LAB": "RGB", "RGBX": "RGB", "PA": "RGBA",
          "RGBa": "RGBA", "La": "LA"}
_CHANNELS = {"L": 1, "LA": 2, "RGB": 3, "RGBA": 4, "I;16": 1, "I": 1, "F": 1}
_DTYPES: dict[str, np.dtype] = {"I;16": np.dtype("<u2"), "I": np.dtype("<i4"), "F": np.dtype("<f4")}
#: What JPEG and PNG end with, and how far from the end it may be: some cameras write a little behind it.
_ENDS = {"JPEG": (b"\xff\xd9", 4096), "PNG": (b"IEND", 64)}


def pillow() -> ModuleType:
    """
    Raises
    ------
    MissingExtraError
    SourceError
        Pillow was told to make up the missing half of truncated images.
    """
    files = require("PIL.ImageFile", "images", "reading images")
    if files.LOAD_TRUNCATED_IMAGES:
        raise SourceError("PIL.ImageFile.LOAD_TRUNCATED_IMAGES is True, so cut images would be packed half grey; set "
                          "it to False, and leave broken images out with on_error='skip'")
    return _image_module()


@functools.lru_cache(maxsize=None)
def _image_module() -> ModuleType:
    return require("PIL.Image", "images", "reading images")


@dataclass(frozen=True)
class Picture:
    """How image files become arrays (height, width, channels).

    Parameters
    ----------
    resize : (height, width), or int for the shorter side, optional
    crop : (height, width), optional
        Cut out of the middle, after resizing.
    mode : {"L", "LA", "RGB", "RGBA"}, optional
        None keeps grey, colour, alpha and 16 bit as they are; palettes and CMYK become RGB.
    """

    resize: Any = None
    crop: Any = None
    mode: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "resize", _size("resize", self.resize, True))
        object.__setattr__(self, "crop", _size("crop", self.crop, False))
        if self.mode is not None and self.mode not in MODES:
            raise OptionError(f"mode: expected one of {', '.join(map(repr, MODES))}, got {self.mode!r}")

    def look(self, data: Any) -> tuple[np.dtype, tuple[int, ...]]:
        """Dtype and shape that `decode` will give, without decoding where the end of the file looks whole.

        Raises
        ------
        Unreadable
        """
        with _opened(data) as image:
            end, reach = _ENDS.get(image.format or "", (b"", 0))
            image.fp.seek(0, os.SEEK_END)
            image.fp.seek(max(0, image.fp.tell() - reach))
            if end not in image.fp.read():
                image.fp.seek(0)
                with _opened(data) as whole:
                    whole.load()
            mode = self._mode(image)
            height, width = self._shape(image.size[::-1] if _orientation(image) > 4 else image.size)
            return _DTYPES.get(mode, np.dtype("u1")), (height, width, _CHANNELS[mode])

    def decode(self, data: Any) -> np.ndarray:
        """The image as an array (height, width, channels).

        Parameters
        ----------
        data : path or file object

        Raises
        ------
        Unreadable
        """
        with _opened(data) as image:
            mode = self._mode(image)
            if self.resize is not None and image.format == "JPEG":
                # JPEG decodes to a half, a quarter, an eighth at less cost; three times the size asked for is enough
                # for the filter not to show it.
                image.draft(None, tuple(3 * s for s in self._scaled(image.size)))
            image.load()
            return self._cropped(self._resized(_upright(image), mode))

    def _mode(self, image: Any) -> str:
        """The mode of the array: as asked, or the image's own in a form that people train on."""
        own = image.mode
        if own == "P":
            own = "RGBA" if "transparency" in image.info else "RGB"
        elif own.startswith("I;16") or (own == "I" and image.format == "PNG"):
            own = "I;16"
        own = _PLAIN.get(own, own)
        if own not in _CHANNELS:
            raise Unreadable(f"its mode {image.mode!r} is not known; convert it")
        if self.mode and own in ("I", "F"):
            raise Unreadable(f"has {'32-bit whole numbers' if own == 'I' else 'floats'} for pixels, which mode="
                             f"{self.mode!r} has no scale for; leave mode out, or convert it")
        if self.mode is None and image.format == "PNG" and _deep(image):
            raise Unreadable("has 16 bits a colour, of which Pillow reads 8; accept that with mode='RGB'")
        return self.mode or own

    def _shape(self, size: tuple[int, int]) -> tuple[int, int]:
        if self.crop is not None:
            width, height = self._scaled(size)
            if height < self.crop[0] or width < self.crop[1]:
                raise Unreadable(f"is {height} x {width} pixels high and wide, less than the crop of {self.crop[0]} x "
                                 f"{self.crop[1]}")
            return self.crop  # type: ignore[no-any-return]
        width, height = self._scaled(size)
        return height, width

    def _scaled(self, size: tuple[int, int]) -> tuple[int, int]:
        """Width and height after resizing."""
        if self.resize is None:
            return size
        if len(self.resize) == 2:
            return self.resize[1], self.resize[0]
        short = min(size)
        width, height = (max(1, round(s * self.resize[0] / short)) for s in size)
        return width, height

    def _resized(self, image: Any, mode: str) -> np.ndarray:
        size = self._scaled(image.size)
        if mode in _DTYPES or image.mode.startswith("I"):
            pixels = np.asarray(image)
            if mode not in _DTYPES:
                # Pillow's own conversion clips everything above 255 to white.
                pixels = ((pixels.astype(np.uint32) * 255 + 32767) // 65535).astype(np.uint8)
                image = _image_module().fromarray(pixels)
            elif size == image.size:
                return pixels.astype(_DTYPES[mode])[..., None]
            else:
                # Resized as floats: Pillow has no filters for 16 bits.
                smooth = np.asarray(_image_module().fromarray(pixels.astype(np.float32)).resize(size))
                if mode != "F":
                    info = np.iinfo(str(_DTYPES[mode]))
                    smooth = np.clip(np.rint(smooth.astype(np.float64)), info.min, info.max)
                return smooth.astype(_DTYPES[mode])[..., None]
        if image.mode != mode:
            image = image.convert(mode)
        if size != image.size:
            image = image.resize(size)
        pixels = np.asarray(image)
        return pixels if pixels.ndim == 3 else pixels[..., None]

    def _cropped(self, pixels: np.ndarray) -> np.ndarray:
        if self.crop is None:
            return pixels
        top, left = ((have - want) // 2 for have, want in zip(pixels.shape, self.crop))
        return pixels[top:top + self.crop[0], left:left + self.crop[1]]


def decoded(field: Field, stored: Ragged) -> np.ndarray:
    """The images (n, height, width, channels) of a field that stores image files, decoded in threads.

    Raises
    ------
    CorruptChunkError
        One of them gives no such image; packing tried each, so the store was made by something else.
    """
    assert field.encoded is not None
    how = field.encoded
    picture = Picture(how.resize, how.crop, how.mode)
    out = np.empty((len(stored), *how.shape), np.dtype(how.dtype).newbyteorder("="))

    def some(start: int, step: int) -> None:
        for i in range(start, len(stored), step):
            try:
                pixels = picture.decode(io.BytesIO(stored[i].tobytes()))
            except Unreadable as error:
                raise CorruptChunkError(f"field {field.name!r}: an image {error}") from error
            if pixels.shape != how.shape or pixels.dtype != out.dtype:
                raise CorruptChunkError(f"field {field.name!r}: an image is {pixels.dtype} {pixels.shape}, expected "
                                        f"{how.dtype} {how.shape}")
            out[i] = pixels

    threads = min(pool.thread_count(None), len(stored))
    pool.wait([pool.submit(some, start, threads) for start in range(threads)])
    return out


def _size(what: str, value: Any, one: bool) -> tuple[int, ...] | None:
    if value is None:
        return None
    try:
        parts = value.lower().split("x") if isinstance(value, str) else np.atleast_1d(value)
        size = tuple(int(p) for p in parts)
    except (TypeError, ValueError):
        size = ()
    if len(size) == 1 and not one:
        size *= 2
    if len(size) not in (1, 2) or min(size) < 1:
        raise OptionError(f"{what}: expected (height, width), as 'HEIGHTxWIDTH' or two ints"
                          f"{', or one int for the shorter side' if one else ''}; got {value!r}")
    return size


@contextlib.contextmanager
def _opened(data: Any) -> Iterator[Any]:
    """An image file, its pixels not read yet; everything that Pillow complains of is `Unreadable`."""
    pil = _image_module()
    try:
        with pil.open(data) as image:
            if getattr(image, "is_animated", False):
                raise Unreadable(f"has {image.n_frames} frames, a sample is one image; write them to files of their "
                                 "own")
            yield image
    except pil.UnidentifiedImageError:
        size = os.path.getsize(data) if isinstance(data, (str, os.PathLike)) else len(data.getbuffer())
        raise Unreadable("is not an image that Pillow knows" if size else "it is empty") from None
    except pil.DecompressionBombError as error:
        raise Unreadable(f"{error}") from None
    except (OSError, SyntaxError, ValueError, EOFError) as error:
        if isinstance(error, (FileNotFoundError, PermissionError)):
            raise
        raise Unreadable(f"cannot be decoded: {error}") from error


def _orientation(image: Any) -> int:
    """How the camera was held; 1 is upright."""
    if image.format not in ("JPEG", "TIFF", "WEBP", "PNG"):
        return 1
    found = image.getexif().get(_ORIENTATION, 1)
    return found if found in range(1, 9) else 1


def _upright(image: Any) -> Any:
    if _orientation(image) == 1:
        return image
    return require("PIL.ImageOps", "images", "reading images").exif_transpose(image)


def _deep(image: Any) -> bool:
    """Whether a PNG has 16 bits in each of several channels: Pillow's raw mode says so."""
    return any("16B" in str(tile[3]) for tile in image.tile) and image.mode not in ("I", "I;16", "I;16B", "L")
