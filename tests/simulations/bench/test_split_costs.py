"""The command that prints a run's costs."""

from __future__ import annotations

from pathlib import Path

import tomli_w
from typer.testing import CliRunner

from simulations.bench import split_costs
from simulations.commands import command
from tests.simulations.planned_runs import PLANNED_SPLIT
from tests.simulations.small_runs import SMALL


def printed(tmp_path: Path, **changes: object) -> str:
    (tmp_path / "run.toml").write_text(tomli_w.dumps(changes))
    result = CliRunner().invoke(command(split_costs.main), [str(tmp_path / "run.toml")])
    assert result.exit_code == 0, result.output
    return result.output


def test_costs_of_an_adasplit_run_are_printed(tmp_path: Path) -> None:
    lines = printed(tmp_path, **PLANNED_SPLIT).splitlines()
    assert lines[0] == "in all rounds of training, as dense arrays, exactly:"
    assert lines[1] == "clients: 1,800 samples, and gradients of 0"
    assert lines[2] == "server:  450 samples"
    # 8 x 8 digits: the first convolution has 16 outputs of 3 x 3; the head 128 of 1 x 1, then 64.
    forward = 1800 * (64 * 16 * 9 + 64 * 16 * 128 + 128 * 64) / 1e12
    assert lines[3].startswith(f"clients: {forward:.4g} T multiply-adds forward, ")
    assert f"activations {450 * 4 * 64 * 16:,}, labels 450" in lines[6]


def test_costs_of_a_zerofl_run_are_printed(tmp_path: Path) -> None:
    output = printed(tmp_path, **SMALL)
    assert "server:  0 samples" in output
    assert "weights" in output


def test_a_baseline_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text('algorithm = "baseline"\n')
    result = CliRunner().invoke(command(split_costs.main), [str(tmp_path / "run.toml")])
    assert result.exit_code == 2
    assert "the algorithm is baseline" in result.output
