from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from simulations import standardise
from simulations.standardise import channel_statistics, standardised


def test_statistics_of_two_pixels_by_hand() -> None:
    # Channel 0 holds 1 and 5 in row 1, 3 and 3 in row 2: mean 3, variance (4 + 4) / 4.
    images: NDArray[np.uint8] = np.zeros((3, 2, 1, 2), dtype=np.uint8)
    images[1, 0], images[2, 0] = [[1, 5]], [[3, 3]]
    images[:, 1] = 9
    mean, std = channel_statistics(images.__getitem__, np.array([1, 2]))
    assert mean == [3.0, 9.0]
    assert std == [pytest.approx(2**0.5), 1.0]  # a constant channel is only centred


def test_chunks_change_nothing_but_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    images = np.random.default_rng(0).normal(50, 20, size=(90, 3, 4, 5)).astype(np.float32)
    rows = np.random.default_rng(1).permutation(90)[:70]
    sizes: list[int] = []

    def read(some: NDArray[np.int64]) -> NDArray[np.float32]:
        sizes.append(len(some))
        return images[some]

    monkeypatch.setattr(standardise, "_CHUNK", 16)
    mean, std = channel_statistics(read, rows)
    assert max(sizes) == 16
    np.testing.assert_allclose(mean, images[rows].mean(axis=(0, 2, 3)), rtol=1e-5)
    np.testing.assert_allclose(std, images[rows].std(axis=(0, 2, 3)), rtol=1e-5)


def test_one_scale_for_all_images_or_one_for_each() -> None:
    images = np.array([[[[1, 2]], [[3, 4]]], [[[5, 6]], [[7, 8]]]], dtype=np.float32)
    shared = standardised(
        images, np.array([[1, 2]], dtype=np.float32), np.array([[1, 2]], dtype=np.float32)
    )
    assert shared.tolist() == [[[[0, 1]], [[0.5, 1]]], [[[4, 5]], [[2.5, 3]]]]
    each = standardised(
        images,
        np.array([[1, 2], [0, 0]], dtype=np.float32),
        np.array([[1, 1], [5, 2]], dtype=np.float32),
    )
    assert each.dtype == np.float32
    assert each[0].tolist() == [[[0, 1]], [[1, 2]]]
    np.testing.assert_allclose(each[1], [[[1, 1.2]], [[3.5, 4]]], rtol=1e-6)
