"""The masked server goes on bit for bit from a checkpoint, with and without a file of masks."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch

from adasplit_flwr.mask_store import FILE_NAME, MaskStore
from adasplit_flwr.masked_server import MaskedServer, store_for
from tests.adasplit_flwr.server_batches import batch, same_bits, small_server
from zerofl_flwr.errors import DataError, SettingsError
from zerofl_flwr.model_arrays import Array

ORDER = [0, 1, 2, 0, 2, 1, 3, 0, 1, 3, 2, 0]
ONE_RECORD = 3 * 277 * 8


def masks_in(folder: Path | None, *, records: int = 1) -> MaskStore:
    """Make a store with room for so many records; with one, each switch of clients spills."""
    budget = records * ONE_RECORD
    return store_for(small_server(), seed=3, folder=folder, memory_budget_bytes=budget)


def server_in(folder: Path | None, *, masks: str = "soft", model_seed: int = 0) -> MaskedServer:
    store = None if masks == "none" else masks_in(folder) if folder else masks_in(None, records=4)
    return MaskedServer(small_server(seed=model_seed), store, masks=masks)


def play(server: MaskedServer, order: list[int], first: int = 0) -> list[float]:
    return [
        server.train_batch(client, *batch(number)).loss
        for number, client in enumerate(order, start=first)
    ]


def through_a_file(state: dict[str, Array]) -> dict[str, Array]:
    """Save and load a state, without pickle."""
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **state)
    file.seek(0)
    with np.load(file, allow_pickle=False) as stored:
        return {name: stored[name] for name in stored.files}


def visible(server: MaskedServer) -> dict[str, Array]:
    """Return all that matters of a server, wherever its masks lie."""
    state = {k: v for k, v in server.state_arrays().items() if not k.startswith("masks/")}
    for client in range(5):
        state |= {f"{client}/{k}": v.numpy() for k, v in server.submodel(client).items()}
    return state


@pytest.mark.parametrize("masks", ["soft", "hard", "none"])
@pytest.mark.parametrize("in_file", [False, True])
@pytest.mark.parametrize("cut", [0, 1, 7])
def test_it_goes_on_bit_for_bit(tmp_path: Path, masks: str, in_file: bool, cut: int) -> None:
    whole = server_in(None, masks=masks)
    losses = play(whole, ORDER)
    folder = tmp_path if in_file else None
    first = server_in(folder, masks=masks)
    assert play(first, ORDER[:cut]) == losses[:cut]
    state = through_a_file(first.state_arrays())
    first.committed()
    play(first, [3, 0, 1, 2, 0], first=70)  # lost in a crash
    first.state_arrays()
    play(first, [1, 3, 2], first=80)
    second = server_in(folder, masks=masks, model_seed=9)
    second.predict(0, batch(0)[0])  # what it had at hand before must not stay
    second.load_state_arrays(state)
    assert second.clients() == ([] if masks == "none" else sorted(set(ORDER[:cut])))
    assert play(second, ORDER[cut:], first=cut) == losses[cut:]
    assert same_bits(visible(second), visible(whole))


def test_a_server_can_be_set_back(tmp_path: Path) -> None:
    server = server_in(tmp_path)
    play(server, ORDER[:5])
    state, before = server.state_arrays(), visible(server)
    play(server, ORDER[5:], first=5)
    server.load_state_arrays(state)
    assert same_bits(visible(server), before)


def test_masks_are_in_the_state_only_without_a_file(tmp_path: Path) -> None:
    within, beside = server_in(None), server_in(tmp_path)
    for server in (within, beside):
        play(server, ORDER[:3])
    names = {name for name in within.state_arrays() if name.startswith("masks/")}
    assert names == {"masks/clients", "masks/steps", *(f"masks/record/{c}" for c in range(3))}
    columns = {n: a for n, a in beside.state_arrays().items() if n.startswith("masks/")}
    assert set(columns) == {f"masks/{n}" for n in ("clients", "steps", "slots", "checksums")}
    assert all(len(column) == 3 for column in columns.values())
    assert (tmp_path / FILE_NAME).stat().st_size > 3 * ONE_RECORD
    with pytest.raises(DataError, match="a table of masks"):
        beside.load_state_arrays(within.state_arrays())


def test_a_state_that_does_not_fit_changes_nothing(tmp_path: Path) -> None:
    server = server_in(tmp_path)
    play(server, ORDER[:4])
    state, before = server.state_arrays(), visible(server)
    lacking = {name: array for name, array in state.items() if name != "exp_avg/4.bias"}
    with pytest.raises(SettingsError, match=r"the state lacks exp_avg/4\.bias"):
        server.load_state_arrays(lacking)
    hard = server_in(None, masks="hard")
    with pytest.raises(SettingsError, match="was saved with masks soft, not with hard"):
        hard.load_state_arrays(state)
    single = MaskedServer(small_server(torch.float32), None)
    with pytest.raises(SettingsError, match=r"weights/0\.weight .* dtype float64; .* float32"):
        single.load_state_arrays(state)
    other = dict(state, **{"masks/slots": state["masks/slots"] + 50})
    with pytest.raises(DataError, match="is too short"):
        server.load_state_arrays(other)
    assert same_bits(visible(server), before)


def test_the_last_checkpoint_is_whole_whenever_the_process_dies(tmp_path: Path) -> None:
    server, states = server_in(tmp_path), []
    for start in (0, 4, 8):
        play(server, ORDER[start : start + 4], first=start)
        states.append((through_a_file(server.state_arrays()), visible(server)))
        if start == 4:
            server.committed()
    for state, expected in states[1:]:  # the last was not acknowledged: both may be on disk
        again = server_in(tmp_path, model_seed=5)
        again.load_state_arrays(state)
        assert same_bits(visible(again), expected)


def test_a_damaged_mask_is_refused_when_its_client_comes(tmp_path: Path) -> None:
    server = server_in(tmp_path)
    play(server, ORDER[:3])
    state = server.state_arrays()
    path = tmp_path / FILE_NAME
    content = bytearray(path.read_bytes())
    content[65_536 * (1 + int(state["masks/slots"][1])) + 8 * 300] ^= 128  # in the first moment
    path.write_bytes(content)
    again = server_in(tmp_path)
    again.load_state_arrays(state)
    again.train_batch(0, *batch(3))
    with pytest.raises(DataError, match=r"the mask of client 1 .* is damaged"):
        again.train_batch(1, *batch(4))
