"""Files of networks: what comes back, and what a failure leaves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from simulations.network_file import save_network
from zerofl_flwr.errors import DataError, SettingsError
from zerofl_flwr.model_arrays import Array

ARRAYS: dict[str, Array] = {
    "conv.weight": np.arange(6, dtype=np.float32).reshape(1, 2, 3),
    "norm.num_batches_tracked": np.array(7, np.int64),
    "kept": np.array([True, False]),
}


def test_torch_reads_a_state_dict_without_pickles(tmp_path: Path) -> None:
    save_network(tmp_path / "new" / "net.pt", ARRAYS)
    state = torch.load(tmp_path / "new" / "net.pt", weights_only=True)
    assert list(state) == list(ARRAYS)
    assert torch.equal(state["conv.weight"], torch.tensor([[[0.0, 1, 2], [3, 4, 5]]]))
    assert state["conv.weight"].dtype is torch.float32
    assert torch.equal(state["norm.num_batches_tracked"], torch.tensor(7))
    assert torch.equal(state["kept"], torch.tensor([True, False]))


def test_numpy_reads_the_same(tmp_path: Path) -> None:
    save_network(tmp_path / "net.npz", ARRAYS)
    with np.load(tmp_path / "net.npz", allow_pickle=False) as stored:
        assert stored.files == list(ARRAYS)
        for name, array in ARRAYS.items():
            assert stored[name].dtype == array.dtype
            np.testing.assert_array_equal(stored[name], array)


@pytest.mark.parametrize("name", ["net", "net.pth", "net.npz.gz", ".pt"])
def test_other_endings_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(SettingsError, match=rf"{name} must end in \.pt or \.npz"):
        save_network(tmp_path / name, ARRAYS)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("suffix", [".pt", ".npz"])
def test_an_old_file_is_replaced_as_a_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    path = tmp_path / f"net{suffix}"
    save_network(path, {"old": np.zeros(1)})
    save_network(path, ARRAYS)
    before = path.read_bytes()
    assert b"conv.weight" in before

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(DataError, match=rf"net\{suffix} cannot be written: .*No space left"):
        save_network(path, {"new": np.ones(1)})
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_of_that_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "net.pt").mkdir()
    with pytest.raises(DataError, match=r"net\.pt cannot be written"):
        save_network(tmp_path / "net.pt", ARRAYS)
    assert [path.name for path in tmp_path.iterdir()] == ["net.pt"]
