"""Networks that cannot be taken out of a run, and what is said then."""

from __future__ import annotations

import shutil
from pathlib import Path

import pandas as pd
import pytest

from simulations.export import export, export_network
from simulations.run_name import read_run_name
from tests.simulations.small_runs import small
from zerofl_flwr.errors import ClientFailedError, DataError, SettingsError


@pytest.mark.parametrize("client", [None, -1, 8])
def test_an_unknown_client_is_refused(split_run: Path, client: int | None) -> None:
    message = "there is no client"
    if client is None:
        message = "with AdaSplit each client has a network of its own: say whose with --client"
    with pytest.raises(SettingsError, match=message) as refused:
        export_network(split_run, client)
    assert "0 to 7" in str(refused.value)


def test_a_client_of_zerofl_is_refused(tmp_path: Path) -> None:
    small().save(tmp_path / "config.toml")
    with pytest.raises(SettingsError, match="all clients share one network: leave --client out"):
        export_network(tmp_path, 3)


def test_a_folder_without_a_network_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"holds no run: it has no config\.toml"):
        export_network(tmp_path / "nowhere")
    small().save(tmp_path / "config.toml")
    with pytest.raises(DataError, match=r"neither model\.npz nor checkpoint\.npz"):
        export_network(tmp_path)


def test_a_file_of_the_runs_folder_is_not_overwritten(split_run: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"model\.npz is in the run's folder already"):
        export(split_run, 3, split_run / "plots" / ".." / "model.npz")
    with pytest.raises(SettingsError, match=r"must end in \.pt or \.npz"):
        export(split_run, 3, tmp_path / "model.pth")
    assert list(tmp_path.iterdir()) == []


def test_damaged_and_missing_files_are_named(split_run: Path, tmp_path: Path) -> None:
    client = int(pd.read_csv(split_run / "clients.csv").query("picked")["partition_id"].iloc[-1])
    name = read_run_name(split_run)
    states = f"clients/{name}/client-{client}"
    newest = max((split_run / states).glob("*.npz"), key=lambda path: path.stat().st_mtime).name

    def refused(file: str, damage: str) -> str:
        folder = tmp_path / "run"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(split_run, folder)
        path = folder / file
        content = bytearray(path.read_bytes())
        if damage == "gone":
            path.unlink()
        elif damage == "cut":
            path.write_bytes(content[: len(content) // 2])
        else:  # a bit in each half
            content[len(content) // 4] ^= 1
            content[3 * len(content) // 4] ^= 1
            path.write_bytes(content)
        with pytest.raises((DataError, ClientFailedError, SettingsError)) as error:
            export_network(folder, client)
        return str(error.value)

    assert "checkpoint.npz cannot be read" in refused("checkpoint.npz", "cut")
    assert "checkpoint.npz cannot be read" in refused("checkpoint.npz", "bits")
    assert "server-masks.bin" in refused("masks/server-masks.bin", "gone")
    assert "too short" in refused("masks/server-masks.bin", "cut")
    assert "run_name.txt is missing" in refused("run_name.txt", "gone")
    lost = f"client {client} of run {name}: the state of round 3 is lost"
    assert lost in refused(f"{states}/{newest}", "gone")
    assert f"{newest} cannot be read" in refused(f"{states}/{newest}", "cut")
    assert "is not valid TOML" in refused("config.toml", "cut")


def test_a_mask_of_another_run_is_refused(split_run: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(split_run, tmp_path / "run"))
    masks = folder / "masks" / "server-masks.bin"
    masks.write_bytes(masks.read_bytes()[:65_536].ljust(masks.stat().st_size, b"\1"))
    client = int(pd.read_csv(split_run / "clients.csv").query("picked")["partition_id"].iloc[-1])
    with pytest.raises(DataError, match=f"the mask of client {client} in slot .* is damaged"):
        export_network(folder, client)
