from __future__ import annotations

from simulations.naming import unknown_name


def test_nearest_name_is_suggested() -> None:
    message = unknown_name("partitioner", "dirichelt", ["iid", "dirichlet"])
    assert message == (
        "unknown partitioner 'dirichelt'; did you mean 'dirichlet'? (known: dirichlet, iid)"
    )


def test_nothing_is_suggested_when_nothing_is_near() -> None:
    assert unknown_name("column", "zzz", ["label"]) == "unknown column 'zzz' (known: label)"
    assert unknown_name("column", "zzz", []) == "unknown column 'zzz' (known: none)"
