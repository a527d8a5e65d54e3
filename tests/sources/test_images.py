"""Folders of images: what every kind of file becomes, sizes, labels, and what is refused."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest

import h5store
from h5store import sources
from h5store.errors import OptionError, SourceError

Image = pytest.importorskip("PIL.Image")

COLOUR = np.random.default_rng(0).integers(0, 256, (12, 10, 3), dtype="uint8")
GREY = COLOUR[..., 0]
DEEP = (np.arange(120, dtype="u2") * 546).reshape(12, 10)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def save(path: str, pixels: np.ndarray = COLOUR, **more: object) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, **more)


def packed(source: object, path: str = "out.h5") -> dict[str, np.ndarray]:
    h5store.pack(path, source, progress=False, overwrite=True)
    with h5store.Reader(path) as reader:
        return reader.take(slice(None))


@pytest.mark.parametrize("name", ["a.png", "a.bmp", "a.tif", "a.webp", "a.PNG"])
def test_every_lossless_format_gives_its_pixels(name: str) -> None:
    save(f"img/{name}", **({"lossless": True} if name.endswith("webp") else {}))
    np.testing.assert_array_equal(packed(sources.images("img"))["image"], COLOUR[None])


def test_a_jpeg_is_what_pillow_decodes() -> None:
    save("img/a.jpg", quality=90)
    np.testing.assert_array_equal(packed(sources.images("img"))["image"][0], np.asarray(Image.open("img/a.jpg")))


@pytest.mark.parametrize(("pixels", "shape", "dtype"), [
    (GREY, (12, 10, 1), "uint8"), (DEEP, (12, 10, 1), "uint16"),
    (np.dstack([COLOUR, GREY]), (12, 10, 4), "uint8"), (GREY > 99, (12, 10, 1), "uint8"),
], ids=["grey", "16 bit", "alpha", "black and white"])
def test_channels_and_depth_stay(pixels: np.ndarray, shape: tuple[int, ...], dtype: str) -> None:
    save("img/a.png", pixels)
    found = packed(sources.images("img"))["image"]
    assert (found.shape, found.dtype) == ((1, *shape), np.dtype(dtype))
    expected = pixels * np.uint8(255) if pixels.dtype == bool else pixels
    np.testing.assert_array_equal(found[0], expected.reshape(shape))


def test_palettes_and_cmyk_become_colour() -> None:
    Path("img").mkdir()
    Image.fromarray(COLOUR).quantize(16).save("img/a.png")
    Image.fromarray(COLOUR).convert("CMYK").save("img/b.jpg")
    found = packed(sources.images("img"))["image"]
    for one, name in zip(found, ("a.png", "b.jpg")):
        np.testing.assert_array_equal(one, np.asarray(Image.open(f"img/{name}").convert("RGB")))


def test_float_tiffs_stay_floats() -> None:
    pixels = np.linspace(-1, 1, 120, dtype="f4").reshape(12, 10)
    save("img/a.tif", pixels)
    np.testing.assert_array_equal(packed(sources.images("img"))["image"][0, ..., 0], pixels)
    with pytest.raises(SourceError, match="has floats for pixels"):
        packed(sources.images("img", mode="L"))


def test_16_bits_are_scaled_to_8_when_a_mode_asks_for_it() -> None:
    values = np.arange(256, dtype="u2").reshape(16, 16)
    save("img/a.png", values * 257)
    np.testing.assert_array_equal(packed(sources.images("img", mode="L"))["image"][0, ..., 0], values)
    assert packed(sources.images("img", mode="RGB"))["image"].shape == (1, 16, 16, 3)
    resized = packed(sources.images("img", resize=(8, 8)))["image"]
    assert resized.dtype == np.uint16 and len(np.unique(resized)) > 32


def test_16_bits_a_colour_are_told_not_cut(tmp_path: Path) -> None:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + bytes(range(12)) for _ in range(2))
    Path("img").mkdir()
    head = struct.pack(">IIBBBBB", 2, 2, 16, 2, 0, 0, 0)
    Path("img/deep.png").write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head)
                                     + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))
    with pytest.raises(SourceError, match="deep.png: has 16 bits a colour, of which Pillow reads 8"):
        packed(sources.images("img"))
    assert packed(sources.images("img", mode="RGB"))["image"].shape == (1, 2, 2, 3)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_orientation_of_the_camera_is_applied(orientation: int) -> None:
    exif = Image.Exif()
    exif[274] = orientation
    save("img/a.png", exif=exif)
    found = packed(sources.images("img"))["image"][0]
    turned = pytest.importorskip("PIL.ImageOps").exif_transpose(Image.open("img/a.png"))
    np.testing.assert_array_equal(found, np.asarray(turned))
    assert found.shape == ((12, 10, 3) if orientation < 5 else (10, 12, 3))


def test_sizes_are_height_and_width() -> None:
    for i, (h, w) in enumerate([(20, 30), (30, 20), (25, 25)]):
        pixels = np.zeros((h, w, 3), "u1")
        pixels[:, :w // 2, 0] = pixels[:, w // 2:, 2] = 255
        save(f"img/{i}.png", pixels)
    found = packed(sources.images("img", resize="16x24"))["image"]
    assert found.shape == (3, 16, 24, 3)
    assert (found[:, :, :6] == [255, 0, 0]).all() and (found[:, :, -6:] == [0, 0, 255]).all()
    cropped = packed(sources.images("img", resize=16, crop=(16, 12)))["image"]
    assert cropped.shape == (3, 16, 12, 3)
    with pytest.raises(SourceError) as error:
        packed(sources.images("img"))
    assert "img/1.png: 'image' is uint8 (30, 20, 3), most others are uint8 (20, 30, 3)" in str(error.value)
    assert "img/2.png" in str(error.value)
    with pytest.raises(SourceError, match="less than the crop of 26 x 10"):
        packed(sources.images("img", crop=(26, 10)))


def test_a_large_jpeg_shrinks_as_pillow_would() -> None:
    y, x = np.mgrid[:512, :512]
    save("img/a.jpg", np.dstack([x // 2, y // 2, (x + y) // 4]).astype("u1"), quality=95)
    found = packed(sources.images("img", resize=(32, 32)))["image"][0].astype(int)
    expected = np.asarray(Image.open("img/a.jpg").resize((32, 32))).astype(int)
    assert np.abs(found - expected).max() <= 4


def broken(folder: str) -> None:
    """Two good images, and four that are none, each in its own way."""
    noise = np.random.default_rng(2).integers(0, 256, (64, 64, 3), dtype="uint8")
    for name in ("ok.jpg", "ok.png"):
        save(f"{folder}/{name}", noise)
        buffer = io.BytesIO()
        Image.fromarray(noise).save(buffer, "JPEG" if name.endswith("jpg") else "PNG")
        cut = buffer.getvalue()[:len(buffer.getvalue()) * 6 // 10]
        Path(folder, name.replace("ok", "cut")).write_bytes(cut)
    Path(folder, "empty.jpg").write_bytes(b"")
    Path(folder, "page.jpg").write_text("<html>404</html>")


def test_broken_images_are_all_named() -> None:
    broken("img/a")
    with pytest.raises(SourceError) as error:
        packed(sources.images("img"))
    told = str(error.value).splitlines()
    assert [line.split(":")[0].strip() for line in told[1:]] == [f"img/a/{n}" for n in
                                                                 ("cut.jpg", "cut.png", "empty.jpg", "page.jpg")]
    assert not list(Path().glob("out.h5*"))


def test_broken_images_are_skipped_on_demand_and_labels_stay_aligned() -> None:
    broken("img/a")
    save("img/b/black.png", np.zeros((64, 64, 3), "u1"))
    found = packed(sources.images("img", on_error="skip"))
    assert found["label"].tolist() == ["a", "a", "b"]
    assert (found["image"][2] == 0).all() and (found["image"][:2] != 0).any()
    assert len(Path("out.h5.skipped.csv").read_text().splitlines()) == 5


def test_damage_inside_an_image_is_told_when_it_is_decoded() -> None:
    for i in range(4):
        save(f"img/{i}.png", np.full((16, 16, 3), i, "u1"))
    raw = bytearray(Path("img/2.png").read_bytes())
    raw[raw.index(b"IDAT") + 8] ^= 255
    Path("img/2.png").write_bytes(raw)
    with pytest.raises(SourceError, match=r"img/2\.png: cannot be decoded"):
        packed(sources.images("img"))
    found = packed(sources.images("img", on_error="skip"))
    assert found["image"][:, 0, 0, 0].tolist() == [0, 1, 3]


def test_frames_are_not_dropped_in_silence() -> None:
    frames = [Image.fromarray(np.full((8, 8), 50 * i, "u1")) for i in range(3)]
    Path("img").mkdir()
    frames[0].save("img/film.tif", save_all=True, append_images=frames[1:])
    with pytest.raises(SourceError, match="has 3 frames, a sample is one image"):
        packed(sources.images("img"))


def test_a_pillow_that_makes_up_missing_halves_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    save("img/a.png")
    monkeypatch.setattr("PIL.ImageFile.LOAD_TRUNCATED_IMAGES", True)
    with pytest.raises(SourceError, match="LOAD_TRUNCATED_IMAGES is True"):
        sources.images("img")


def test_folders_are_classes_and_stray_images_are_told() -> None:
    for name in ("cat/2.png", "cat/10.png", "dog/deep/1.png"):
        save(f"img/{name}")
    Path("img/.DS_Store").write_bytes(b"x")
    save("img/.thumbs/1.png")
    assert packed(sources.images("img"))["label"].tolist() == ["cat", "cat", "dog"]
    save("img/stray.png")
    with pytest.raises(SourceError, match=r"img/stray\.png: lies beside the folders of the classes"):
        sources.images("img")


def test_a_flat_folder_needs_no_labels() -> None:
    save("img/a.png")
    assert list(packed(sources.images("img"))) == ["image"]


def test_an_interrupted_pack_resumes_to_the_same_file(resumes: object) -> None:
    for i in range(11):
        save(f"img/{'ab'[i % 2]}/{i}.png", np.full((6, 5, 3), i, "u1"))
    resumes(lambda: sources.images("img", resize=(4, 4)))


@pytest.mark.parametrize(("arguments", "kind", "told"), [
    ({"folder": "imgs"}, FileNotFoundError, "imgs: no such folder; beside it: 'img'"),
    ({"folder": "img/a.png"}, SourceError, "is a file, expected a folder"),
    ({"folder": "empty"}, SourceError, "no samples: found no images"),
    ({"resize": "12by9"}, OptionError, "resize: expected .height, width., as 'HEIGHTxWIDTH'"),
    ({"crop": (0, 3)}, OptionError, "crop: expected"),
    ({"mode": "rgb"}, OptionError, "mode: expected one of"),
    ({"aux": "age"}, OptionError, "aux: names columns of a labels file, and none is given"),
    ({"labels": "lables.csv"}, FileNotFoundError, "lables.csv: no such file; beside it: 'labels.csv'"),
    ({"labels": "labels.csv:lable"}, SourceError, "no column 'lable'; columns: 'label'"),
])
def test_mistakes_are_told(arguments: dict[str, object], kind: type[Exception], told: str) -> None:
    save("img/a.png")
    Path("empty").mkdir()
    Path("labels.csv").write_text("file,label\na.png,1\n")
    with pytest.raises(kind, match=told):
        sources.images(**{"folder": "img", **arguments})


# ---- images that are stored as their files are


def test_encoded_images_keep_their_bytes_and_are_decoded_when_read() -> None:
    y, x = np.mgrid[:64, :48]
    for i in range(9):
        save(f"img/{i}.jpg", np.dstack([x * 3 + i, y * 3, (x + y)]).astype("u1"), quality=90)
    h5store.pack("plain.h5", sources.images("img"), progress=False)
    h5store.pack("out.h5", sources.images("img", store="encoded"), progress=False, chunk=2)
    assert Path("out.h5").stat().st_size < Path("plain.h5").stat().st_size / 2
    with h5store.Reader("out.h5") as reader, h5store.Reader("plain.h5") as plain:
        expected = plain["image"][:]
        stored = reader._store.ragged("image", np.arange(9))
        assert [one.tobytes() for one in stored] == [Path(f"img/{i}.jpg").read_bytes() for i in range(9)]
        view = reader["image"]
        assert (view.shape, view.dtype) == ((9, 64, 48, 3), np.dtype("u1"))
        np.testing.assert_array_equal(view[:], expected)
        np.testing.assert_array_equal(view[[5, 1, 5]], expected[[5, 1, 5]])
        np.testing.assert_array_equal(view[3, 4:9, 0], expected[3, 4:9, 0])
        np.testing.assert_array_equal(reader.take([8, 0])["image"], expected[[8, 0]])
        np.testing.assert_array_equal(reader.batch([2, 3])[0], expected[[2, 3]])
        assert view[[]].shape == (0, 64, 48, 3)
        ours = reader.loader(batch_size=4, shuffle=False)
        np.testing.assert_array_equal(np.concatenate([images for images, in ours.epoch(0)]), expected)
        assert len(reader.select([1, 2])["image"][:]) == 2
        assert "encoded images u1 (64, 48, 3)" in repr(reader.schema)
    assert h5store.verify("out.h5").ok


def test_encoded_images_are_resized_when_read_and_train() -> None:
    for i in range(8):
        save(f"img/{'ab'[i % 2]}/{i}.png", np.full((20 + i, 30, 3), i, "u1"))
    h5store.pack("out.h5", sources.images("img", store="encoded", resize=(8, 12), mode="L"), progress=False)
    with h5store.Reader("out.h5") as reader:
        assert reader["image"][:, 0, 0, 0].tolist() == [0, 2, 4, 6, 1, 3, 5, 7]
        seen = [int(i) for images, _ in reader.loader(batch_size=3, seed=0).epoch(0) for i in images[:, 7, 11, 0]]
        assert sorted(seen) == list(range(8))
        keras = pytest.importorskip("keras")
        net = keras.Sequential([keras.Input((8, 12, 1)), keras.layers.Flatten(), keras.layers.Dense(1)])
        net.compile(loss="mse")
        assert np.isfinite(net.fit(reader.to_keras(batch_size=4, seed=0), verbose=0).history["loss"][0])
        pytest.importorskip("tensorflow")
        dataset = reader.to_tf(batch_size=4, seed=0)
        assert dataset.element_spec[0].shape[1:] == (8, 12, 1)
        assert sorted(int(i) for images, _ in dataset for i in images[:, 0, 0, 0]) == list(range(8))


def test_encoded_images_that_are_broken_are_refused_when_packed() -> None:
    broken("img/a")
    with pytest.raises(SourceError, match="4 of 6 files"):
        packed(sources.images("img", store="encoded"))
    found = packed(sources.images("img", store="encoded", on_error="skip"))
    assert found["image"].shape == (2, 64, 64, 3)
    with pytest.raises(OptionError, match="store: expected 'decoded' or 'encoded'"):
        sources.images("img", store="jpeg")


def test_an_interrupted_pack_of_encoded_images_resumes_to_the_same_file(resumes: object) -> None:
    for i in range(11):
        save(f"img/{'ab'[i % 2]}/{i}.png", np.full((6, 5, 3), i, "u1"))
    resumes(lambda: sources.images("img", store="encoded"))
