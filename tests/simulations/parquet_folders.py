"""Parquet folders for tests: made-up ones, and slices of the real ones."""

from __future__ import annotations

import io
import wave
from collections.abc import Sequence
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray
from PIL import Image

REAL_DATA = Path(__file__).parents[3] / "shared" / "data"


def real_folder(name: str) -> Path:
    """The real data set of that name beside the repository; skips the test without it."""
    folder = REAL_DATA / name
    if not folder.is_dir():
        pytest.skip(f"needs the real data set {name} in {REAL_DATA}")
    return folder


def slice_of_real(name: str, target: Path, *, train: int, test: int, step: int = 1) -> Path:
    """Copy some rows of a real data set: row 0, step, 2 * step, ... of each split."""
    source = real_folder(name)
    target.mkdir(parents=True)
    for split, count in (("train", train), ("test", test)):
        file = f"{split}-00000-of-00001.parquet"
        rows = np.arange(count) * step
        pq.write_table(pq.read_table(source / file).take(rows), target / file)
    return target


def png(pixels: NDArray[np.uint8]) -> bytes:
    """Encode grey (H, W) or colour (H, W, 3) pixels."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="png")
    return buffer.getvalue()


def wav(samples: NDArray[np.float64], rate: int) -> bytes:
    """Encode samples (n,) or (n, channels) in [-1, 1] as 16-bit PCM."""
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1 if samples.ndim == 1 else samples.shape[1])
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(np.round(samples * 32767).astype("<i2").tobytes())
    return buffer.getvalue()


def pictures(count: int, *, height: int = 4, width: int = 6, seed: int = 0) -> list[bytes]:
    """Random grey pictures as png."""
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, size=(count, height, width), dtype=np.uint8)
    return [png(picture) for picture in pixels]


def write_split(folder: Path, split: str, columns: dict[str, list[object]]) -> None:
    """Write a parquet file without the hub's metadata; encoded files become bytes and path."""
    folder.mkdir(parents=True, exist_ok=True)
    cells = {
        name: [{"bytes": v, "path": None} if isinstance(v, bytes) else v for v in values]
        for name, values in columns.items()
    }
    pq.write_table(pa.table(cells), folder / f"{split}-00000-of-00001.parquet")


def write_labelled_pictures(
    folder: Path, split: str, labels: Sequence[object], *, seed: int = 0
) -> None:
    """Write a split with columns image and label."""
    images: list[object] = list(pictures(len(labels), seed=seed))
    write_split(folder, split, {"image": images, "label": list(labels)})


def picture_dataset(labels: list[int], names: list[str], *, seed: int = 0) -> datasets.Dataset:
    """A table as the hub gives it: typed image and label columns."""
    features = datasets.Features(
        {"img": datasets.Image(), "label": datasets.ClassLabel(names=names)}
    )
    cells = [{"bytes": picture, "path": None} for picture in pictures(len(labels), seed=seed)]
    return datasets.Dataset.from_dict({"img": cells, "label": labels}, features=features)
