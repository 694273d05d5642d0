"""What the README shows is run here, as it stands there."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Context
from flwr.client import Client, NumPyClient
from torch import nn

from simulations.in_process import run_in_process
from simulations.networks import digits_cnn
from strategies import AdaSplitRoundReport, RoundReport
from zerofl_flwr import recommended_settings

_REPOSITORY = Path(__file__).parents[1]
_README = (_REPOSITORY / "README.md").read_text()


def _blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", _README, flags=re.DOTALL)


class _ExistingClient(NumPyClient):
    """A client as a user might have it: it has never heard of this package."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(
            nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2)
        )

    def get_parameters(self, config: dict[str, Any]) -> list[Any]:
        return [value.numpy() for value in self.model.state_dict().values()]

    def fit(self, parameters: list[Any], config: dict[str, Any]) -> tuple[list[Any], int, Any]:
        assert all(isinstance(array, np.ndarray) for array in parameters)
        return [array + np.float32(0.01) for array in parameters], 8, {}

    def evaluate(self, parameters: list[Any], config: dict[str, Any]) -> tuple[float, int, Any]:
        return float(np.abs(parameters[0]).sum()), 8, {}


def test_python_snippets_plug_into_an_existing_project(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def client_fn(context: Context) -> Client:
        return _ExistingClient().to_client()

    inputs, labels = torch.randn(8, 4), torch.randint(0, 2, (8,))
    namespace: dict[str, Any] = {
        "client_fn": client_fn,
        "make_model": lambda: _ExistingClient().model,
        "train_loader": [(inputs, labels)],
        "test_loader": [(inputs, labels)],
    }
    snippets = _blocks("python")
    assert len(snippets) == 5
    for snippet in snippets:
        exec(compile(snippet, "README.md", "exec"), namespace)
    assert namespace["strategy"].settings == recommended_settings(100, sparsity=0.95)

    make_strategy = namespace["ZeroFL"]
    for app in ("client_app", "sparse_client_app"):
        rounds: list[RoundReport] = []
        namespace["ZeroFL"] = partial(make_strategy, on_round=rounds.append)
        run_in_process(namespace["server_app"], namespace[app], num_clients=4)
        assert [len(report.good) for report in rounds] == [2, 2]
        assert all(client.train_seconds > 0 for report in rounds for client in report.good)
        # Of the one masked layer, 16 x 16, a quarter is uploaded.
        assert rounds[-1].layers[0].parameters == 256
        assert rounds[-1].layers[0].nonzero_ratio == pytest.approx(0.25, abs=0.1)
    assert "256 of" in capsys.readouterr().out

    reports: list[AdaSplitRoundReport] = []
    namespace["AdaSplit"] = partial(namespace["AdaSplit"], on_round=reports.append)
    run_in_process(namespace["split_server_app"], namespace["split_client_app"], num_clients=4)
    assert [report.phase for report in reports] == ["local", "global", "global"]
    assert [len(report.good) for report in reports] == [4, 4, 4]
    assert [report.metrics()["picked"] for report in reports] == [0, 2, 2]


@pytest.mark.timeout(240)
def test_command_lines_run_as_written(tmp_path: Path) -> None:
    (tmp_path / "simulations").symlink_to(_REPOSITORY / "simulations")
    commands = [
        line
        for block in _blocks("bash")
        for line in block.splitlines()
        if line.startswith("lean-flwr ")
    ]
    assert len(commands) == 5
    for command in commands:
        arguments = shlex.split(command)[1:]
        done = subprocess.run(
            [sys.executable, "-m", "simulations", *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        if arguments[0] == "plan":
            assert 'kappa = 0.45\neta = 0.35\ncut = "relu1"' in done.stdout
            continue
        out = tmp_path / arguments[arguments.index("--out") + 1]
        if arguments[0] == "export":
            loaded = digits_cnn().load_state_dict(torch.load(out, weights_only=True))
            assert loaded.missing_keys == loaded.unexpected_keys == []
            continue
        assert (out / "model.npz").exists()
        assert (out / "plots" / "accuracy_by_round.png").exists()


def test_results_of_an_upload_are_those_of_the_benchmark() -> None:
    from simulations.bench.payload_sizes import upload_sizes

    sizes = upload_sizes()
    for _, row in sizes.iterrows():
        shown = (
            f"| {100 * row['sparsity']:.0f} % | {row['mask_ratio']:g} | {row['MB']:.1f} | "
            f"{row['smaller by']:.1f} | {row['paper MB']:.1f} | {row['paper smaller by']:.1f} |"
        )
        assert shown in _README
