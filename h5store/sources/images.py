"""Sources: a folder of images, with a labels file or a folder a class."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from h5store.errors import OptionError, SourceError
from h5store.schema import Encoded, Field, Role
from h5store.sources.base import BLOCK_BYTES
from h5store.sources.files import FileSource, Signature, Skipped, checked_on_error, told
from h5store.sources.labels import columns_of, read_labels
from h5store.sources.listing import existing, find
from h5store.sources.npy import Unreadable
from h5store.sources.pictures import ENDINGS, Picture, pillow


def images(folder: Any, labels: Any = None, *, aux: Any = None, weights: Any = None, meta: Any = None,
           resize: Any = None, crop: Any = None, mode: str | None = None, store: str = "decoded",
           on_error: str = "stop", threads: int | None = None) -> Images:
    """A folder of JPEG, PNG, BMP, TIFF or WebP images, as field ``image`` (height, width, channels).

    Parameters
    ----------
    folder : path-like
        With its subfolders. Without a labels file, the subfolder that an image lies in is its ``label``; images that
        lie in no subfolder have none.
    labels : path-like, optional
        A file with ``name label`` a line, or CSV or TSV with any number of columns, with or without column names. Its
        order is the order of the samples. ``"labels.csv:cat,age"`` takes these columns only; by default all that
        no other role names.
    aux, weights, meta : str or list of str, optional
        Columns of the labels file.
    resize : (height, width) or "HEIGHTxWIDTH", or int, optional
        An int is the length of the shorter side.
    crop : (height, width) or "HEIGHTxWIDTH", optional
        Cut out of the middle, after resizing.
    mode : {"L", "LA", "RGB", "RGBA"}, optional
        None keeps grey, colour, alpha and 16 bit as they are; palettes and CMYK become RGB.
    store : {"decoded", "encoded"}
        "encoded" keeps the bytes of the files, and decodes them whenever they are read: a much smaller store of
        photographs, and much slower batches. Reading it needs Pillow.
    on_error : {"stop", "skip"}
        What happens to broken images, images of other sizes or modes, and names that the labels file lacks, repeats,
        contradicts or invents: nothing is packed and all of them are named, or they are left out and listed.
    threads : int, optional

    Raises
    ------
    FileNotFoundError, SourceError, OptionError
    MissingExtraError
        Pillow is not installed.

    Notes
    -----
    The orientation that a camera noted is applied. Transparent pixels keep their colour in mode RGB.
    """
    pillow()
    picture = Picture(resize, crop, mode)
    kinds = {"decoded": Images, "encoded": EncodedImages}
    if store not in kinds:
        raise OptionError(f"store: expected 'decoded' or 'encoded', got {store!r}")
    kind = kinds[store]
    where = existing(folder, "folder")
    if not os.path.isdir(where):
        raise SourceError(f"{where}: is a file, expected a folder of images")
    files = find(where, ENDINGS, "images")
    if labels is None:
        given = next((r for r, v in (("aux", aux), ("weights", weights), ("meta", meta)) if v is not None), None)
        if given:
            raise OptionError(f"{given}: names columns of a labels file, and none is given; add labels=")
        return kind(where, files, picture, _by_folder(where, files), on_error, threads)
    path, wanted = _split(os.fspath(labels))
    matched = read_labels(existing(path), where, files, None)
    roles = {"labels": wanted, "aux": aux, "weights": weights, "meta": meta}
    if matched.problems and checked_on_error(on_error) == "stop":
        raise SourceError(told(f"{path} and {where}", matched.problems, "names and files differ"))
    if not matched.files:
        raise SourceError(told(f"{path} and {where}", matched.problems, "no samples: no name has a file and a label"))
    source = kind(where, matched.files, picture, columns_of(matched, roles, path), on_error, threads)
    source.left_out = matched.problems
    return source


class Images(FileSource):
    """Image files, decoded."""

    def __init__(self, name: str, files: Sequence[str], picture: Picture,
                 columns: Mapping[str, tuple[str, np.ndarray]], on_error: str = "stop",
                 threads: int | None = None) -> None:
        super().__init__(name, files, [("features", "image")], columns, on_error, threads)
        self._picture = picture

    def look(self, path: str) -> Signature:
        return (self._picture.look(path),)

    def load(self, path: str) -> list[np.ndarray]:
        return [self._picture.decode(io.BytesIO(_bytes(path)))]


class EncodedImages(Images):
    """Image files, as they are."""

    def field(self, name: str, role: str, dtype: Any, shape: tuple[int, ...]) -> Field:
        how = Encoded(shape, np.dtype(dtype).str, self._picture.resize, self._picture.crop, self._picture.mode)
        return Field(name, Role(role), np.dtype(np.uint8), (None,), encoded=how)

    def load(self, path: str) -> list[np.ndarray]:
        data = _bytes(path)
        # What cannot be decoded is better found now than in the middle of a training.
        found = self._picture.decode(io.BytesIO(data))
        how = self.schema["image"].encoded
        assert how is not None
        if found.shape != how.shape or found.dtype != np.dtype(how.dtype):
            raise Unreadable(f"'image' is {found.dtype} {found.shape}; the file changed while it was packed")
        return [np.frombuffer(data, np.uint8)]

    @property
    def step(self) -> int:
        """Samples of a block, by the size of the first files."""
        some = self.files[:100]
        return max(1, min(256, BLOCK_BYTES * len(some) // max(1, sum(map(os.path.getsize, some)))))


def _bytes(path: str) -> bytes:
    # At once: Pillow reads a file in dozens of small pieces, and at each of them threads wait for each other.
    with open(path, "rb", buffering=0) as file:
        return file.read()


def _split(labels: str) -> tuple[str, list[str] | None]:
    """Path and columns of ``labels.csv:cat,age``."""
    path, colon, columns = labels.rpartition(":")
    if not colon or os.path.exists(labels):
        return labels, None
    return path, [c.strip() for c in columns.split(",")]


def _by_folder(folder: str, files: Sequence[str]) -> dict[str, tuple[str, np.ndarray]]:
    inside = [os.path.relpath(f, folder).split(os.sep) for f in files]
    flat = [f for f, parts in zip(files, inside) if len(parts) == 1]
    if len(flat) == len(files):
        return {}
    if flat:
        raise SourceError(told(folder, [Skipped(f, "lies beside the folders of the classes") for f in flat],
                               "some images lie in no class folder; move them, or give labels="))
    return {"label": ("labels", np.array([parts[0] for parts in inside], object))}
