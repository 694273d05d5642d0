"""``lean-flwr plan``: the table of the best candidates, and the settings to run with."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import tomli_w

from tests.simulations.invoked import invoke
from tests.simulations.planned_runs import PLANNED_SPLIT
from tests.simulations.small_runs import SMALL
from zerofl_flwr.errors import LeanFlwrError


def config(tmp_path: Path, values: dict[str, Any]) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(tomli_w.dumps(values))
    return path


def test_kappa_eta_and_cut_are_printed_as_run_settings(tmp_path: Path) -> None:
    path, out = config(tmp_path, PLANNED_SPLIT), tmp_path / "plan.csv"
    limits = ("--bytes-budget", "1e6", "--multiply-adds-budget", "3e9")
    result = invoke("plan", path, *limits, "--out", out)
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    [place] = [n for n, line in enumerate(lines) if "candidates fit; the best are above" in line]
    keys = tomllib.loads("\n".join(lines[place + 1 : place + 4]))
    assert list(keys) == ["kappa", "eta", "cut"]
    table = pd.read_csv(out)
    chosen = table[table["chosen"]].iloc[0]
    assert keys == {"kappa": chosen["kappa"], "eta": chosen["eta"], "cut": chosen["cut"]}
    assert chosen["bytes"] <= 1e6
    assert chosen["multiply_adds"] <= 3e9
    assert lines[place].startswith(f"{table['fits'].sum()} of {len(table)} candidates fit")
    assert lines[-1] == f"all candidates: {out}"


def test_a_files_own_budget_holds_unless_another_is_given(tmp_path: Path) -> None:
    path = config(tmp_path, {**PLANNED_SPLIT, "bytes-budget": 1000})
    assert ", of 1,000" in str(_error_of(invoke("plan", path)))
    assert invoke("plan", path, "--bytes-budget", "1e9").exit_code == 0


def test_sparsity_and_mask_ratio_of_zerofl_are_printed_whole_on_a_narrow_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    result = invoke("plan", config(tmp_path, SMALL), "--multiply-adds-budget", "3e8")
    assert result.exit_code == 0, result.output
    assert "sparsity = " in result.output
    assert "mask-ratio = " in result.output
    assert "weights up" in result.output
    assert "…" not in result.output


def test_the_cheapest_is_named_where_nothing_fits(tmp_path: Path) -> None:
    error = _error_of(invoke("plan", config(tmp_path, SMALL), "--bytes-budget", "1000"))
    assert "none of 42 candidates fits into the budget; the cheapest, with sparsity 0.98" in str(
        error
    )


def test_a_baseline_and_a_table_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    error = _error_of(invoke("plan", config(tmp_path, {"algorithm": "baseline"})))
    assert "the algorithm is baseline" in str(error)
    out = tmp_path / "missing" / "plan.csv"
    error = _error_of(invoke("plan", config(tmp_path, SMALL), "--out", out))
    assert "cannot be written" in str(error)


def _error_of(result: Any) -> LeanFlwrError:
    assert isinstance(result.exception, LeanFlwrError), result.output
    return result.exception
