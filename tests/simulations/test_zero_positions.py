"""The history of masks on sampled positions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from simulations.run_files import read_mask_history
from simulations.zero_positions import SAMPLED_POSITIONS, ZeroPositions


def mask_of(text: str) -> NDArray[np.bool_]:
    return np.array([letter == "x" for letter in text])


def test_a_small_layer_is_kept_whole_bit_by_bit() -> None:
    zeros = ZeroPositions({})
    zeros.add(1, {"fc.weight": mask_of("x..x..x...")})
    zeros.add(2, {"fc.weight": mask_of(".x.x..x..x")})
    arrays = zeros.to_arrays()
    assert list(arrays) == ["rounds", "fc.weight/positions", "fc.weight/kept"]
    assert arrays["rounds"].tolist() == [1, 2]
    assert arrays["fc.weight/positions"].tolist() == list(range(10))
    # Ten bits a row in two bytes, the highest bit first.
    assert arrays["fc.weight/kept"].tolist() == [[0b10010010, 0], [0b01010010, 0b01000000]]
    assert arrays["fc.weight/kept"].dtype == np.uint8


def test_a_large_layer_is_sampled_evenly_and_by_the_same_positions_each_round() -> None:
    size = 10 * SAMPLED_POSITIONS + 3
    generator = np.random.default_rng(0)
    masks = [generator.random(size) < 0.1 for _ in range(3)]
    zeros = ZeroPositions({})
    for number, mask in enumerate(masks, start=1):
        zeros.add(number, {"conv.weight": mask})
    arrays = zeros.to_arrays()
    positions = arrays["conv.weight/positions"]
    assert len(positions) == SAMPLED_POSITIONS
    assert (positions[0], positions[-1]) == (0, size - 1)
    assert set(np.diff(positions)) <= {10, 11}
    kept = np.unpackbits(arrays["conv.weight/kept"], axis=1, count=len(positions))
    for row, mask in zip(kept, masks, strict=True):
        assert np.array_equal(row.astype(bool), mask[positions])


@pytest.mark.parametrize("size", [1, 7, 8, SAMPLED_POSITIONS, SAMPLED_POSITIONS + 1])
def test_positions_ascend_and_lie_inside_the_layer(size: int) -> None:
    zeros = ZeroPositions({})
    zeros.add(1, {"layer": np.ones(size, dtype=bool)})
    positions = zeros.to_arrays()["layer/positions"]
    assert len(positions) == min(size, SAMPLED_POSITIONS)
    assert (np.diff(positions) > 0).all()
    assert positions[0] == 0
    assert positions[-1] == size - 1


def test_a_continued_history_is_that_of_an_unbroken_one() -> None:
    generator = np.random.default_rng(1)
    rounds = [
        {"a/b.weight": generator.random(20) < 0.5, "fc.weight": generator.random(9) < 0.5}
        for _ in range(4)
    ]
    unbroken = ZeroPositions({})
    for number, masks in enumerate(rounds, start=1):
        unbroken.add(number, masks)
    first = ZeroPositions({})
    for number, masks in enumerate(rounds[:2], start=1):
        first.add(number, masks)
    second = ZeroPositions(first.to_arrays())
    for number, masks in enumerate(rounds[2:], start=3):
        second.add(number, masks)
    expected, arrays = unbroken.to_arrays(), second.to_arrays()
    assert list(arrays) == list(expected)
    for name, array in expected.items():
        assert array.dtype == arrays[name].dtype
        assert np.array_equal(array, arrays[name])


def test_a_round_without_masks_leaves_no_trace() -> None:
    zeros = ZeroPositions({})
    zeros.add(1, {})
    assert list(zeros.to_arrays()) == ["rounds"]
    assert zeros.to_arrays()["rounds"].tolist() == []


def test_the_reader_of_run_folders_understands_the_file(tmp_path: Path) -> None:
    path = tmp_path / "zero_positions.npz"
    zeros = ZeroPositions({})
    zeros.add(5, {"fc.weight": mask_of("x.x..x.x.x.x")})
    np.savez(path, allow_pickle=False, **zeros.to_arrays())
    history = read_mask_history(path)
    assert history is not None
    assert history.rounds.tolist() == [5]
    assert history.kept["fc.weight"].tolist() == [mask_of("x.x..x.x.x.x").tolist()]
