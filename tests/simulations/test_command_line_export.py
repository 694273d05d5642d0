"""The command that takes a network out of a run."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import torch

from simulations import runner
from simulations.models import build_model
from tests.simulations.invoked import invoke
from tests.simulations.small_split_runs import small_split
from zerofl_flwr.errors import LeanFlwrError


@pytest.mark.usefixtures("no_plots")
def test_a_network_is_exported_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    runner.run(small_split(rounds=1), tmp_path / "run")
    tests = pd.read_csv(tmp_path / "run" / "tests.csv")
    client = tests[~tests["trained"]]["partition_id"].iloc[0]
    result = invoke("export", "run", "--client", client, "--out", "networks/own.pt")
    assert result.exit_code == 0, result.output
    random_mask = "its mask is the random one that it starts with, on which nothing was trained"
    assert result.output.splitlines() == [
        f"note: client {client} has no trained part: its part is the common start",
        f"note: the server has never learned from client {client}: {random_mask}",
        f"network after round 1: {tmp_path}/networks/own.pt",
    ]
    state = torch.load(tmp_path / "networks" / "own.pt", weights_only=True)
    assert list(state) == list(build_model("digits_cnn", 10, (1, 8, 8)).state_dict())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "net.pt"], "say whose with --client, 0 to 7"),
        (["--client", "8", "--out", "net.pt"], "there is no client 8"),
        (["--client", "0", "--out", "net.onnx"], "must end in .pt or .npz"),
        (["--client", "0", "--out", "net.npz"], "has no checkpoint.npz"),
    ],
)
def test_an_export_that_cannot_be_is_our_error(
    tmp_path: Path, arguments: list[str], message: str
) -> None:
    small_split().save(tmp_path / "config.toml")
    result = invoke("export", tmp_path, *arguments)
    assert isinstance(result.exception, LeanFlwrError)
    assert message in str(result.exception)
    assert invoke("export", tmp_path).exit_code == 2  # typer's own: --out is missing
