from __future__ import annotations

import pandas as pd

from simulations.markdown import cell_text, to_markdown


def test_markdown_is_aligned_and_leaves_gaps_empty() -> None:
    table = pd.DataFrame(
        {
            "method": ["top-k, r = 0", "a|b"],
            "seeds": [1, 12],
            "accuracy": [75.456, 7.0],
            "spread": [float("nan"), 0.01234],
        }
    )
    assert to_markdown(table).splitlines() == [
        "| method       | seeds | accuracy | spread |",
        "| ------------ | ----: | -------: | -----: |",
        "| top-k, r = 0 |     1 |    75.46 |        |",
        "| a\\|b         |    12 |     7.00 | 0.0123 |",
    ]


def test_markdown_of_an_empty_table_has_only_a_head() -> None:
    lines = to_markdown(pd.DataFrame({"x": pd.Series(dtype="float64")})).splitlines()
    assert lines == ["|   x |", "| --: |"]


def test_a_cell_is_one_line() -> None:
    cells = [None, float("nan"), 0.0, 1234.5, 0.01234, 7, "a\nb  c"]
    assert [cell_text(cell) for cell in cells] == [
        "",
        "",
        "0.00",
        "1234.50",
        "0.0123",
        "7",
        "a b c",
    ]
