"""The keys of a grid file's tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from simulations.comparison.keys import check_keys, check_methods
from zerofl_flwr.errors import SettingsError

GRID = Path("grid.toml")


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"name": "x", "sedes": [1]}, "grid.toml: unknown key 'sedes'; did you mean 'seeds'?"),
        ({"seeds": [1]}, "grid.toml: the key 'name' is missing"),
        ({"name": 3}, "grid.toml: name is 3; expected a str"),
        ({"name": "x", "count": True}, "grid.toml: count is True; expected a int"),
    ],
)
def test_a_table_of_other_keys_or_types_is_refused(table: dict[str, Any], message: str) -> None:
    optional: dict[str, type] = {"seeds": list, "count": int}
    check_keys({"name": "x", "seeds": []}, GRID, {"name": str}, optional)
    with pytest.raises(SettingsError) as caught:
        check_keys(table, GRID, {"name": str}, optional)
    assert str(caught.value).startswith(message)


def test_a_method_that_is_not_there_is_refused_with_the_nearest() -> None:
    check_methods(["one"], ["one", "two"], "pictures")
    with pytest.raises(SettingsError, match=r"^pictures: unknown method 'tow'; did you mean 'two'"):
        check_methods(["one", "tow"], ["one", "two"], "pictures")
