"""The name under which a run's clients keep their state."""

from __future__ import annotations

from pathlib import Path

import pytest

from adasplit_flwr.client_state import check_run_name
from simulations.run_name import RUN_NAME, draw_run_name, read_run_name
from zerofl_flwr.errors import DataError


def test_a_drawn_name_is_kept_and_is_no_other_runs(tmp_path: Path) -> None:
    first = draw_run_name(tmp_path)
    assert read_run_name(tmp_path) == first
    second = draw_run_name(tmp_path)
    assert read_run_name(tmp_path) == second != first
    for name in (first, second):
        check_run_name(name)
    # It travels with each message: the bytes of a run must not depend on it.
    assert len(first) == len(second)


def test_a_run_without_a_name_says_so(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"run_name\.txt is missing: it holds the name under"):
        read_run_name(tmp_path)
    (tmp_path / RUN_NAME).write_bytes(b"\xff")
    with pytest.raises(DataError, match=r"run_name\.txt cannot be read"):
        read_run_name(tmp_path)
