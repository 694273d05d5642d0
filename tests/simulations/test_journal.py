"""The growing tables of a run, and how they are cut back to a round."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from simulations.journal import TABLES, Journal


def row(number: int, **more: Any) -> dict[str, Any]:
    return {"round": number, "loss": 0.1 + number, "accuracy": math.nan, **more}


def client(number: int, failure: str = "") -> dict[str, Any]:
    return {"round": number, "partition_id": 3, "train_loss": 1 / 3, "failure": failure}


def layer(number: int) -> dict[str, Any]:
    return {"round": number, "layer": "fc.weight", "mask_overlap": math.nan}


def write_rounds(folder: Path, *numbers: int) -> Journal:
    journal = Journal(folder)
    journal.append_initial(row(0))
    for number in numbers:
        journal.append_round(
            row(number), {"clients": [client(number)] * 2, "layers": [layer(number)]}
        )
    return journal


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted(folder.iterdir())}


def test_rows_are_appended_under_one_header(tmp_path: Path) -> None:
    write_rounds(tmp_path, 1, 2)
    assert (tmp_path / "rounds.csv").read_text() == (
        "round,loss,accuracy\n0,0.1,\n1,1.1,\n2,2.1,\n"
    )
    assert pd.read_csv(tmp_path / "clients.csv")["round"].tolist() == [1, 1, 2, 2]
    assert pd.read_csv(tmp_path / "layers.csv")["layer"].tolist() == ["fc.weight"] * 2


def test_every_table_is_cut_back(tmp_path: Path) -> None:
    journal, others = Journal(tmp_path), [name for name in TABLES if name != "rounds"]
    assert others == ["clients", "traffic", "layers", "tests"]
    for number in (1, 2, 3):
        journal.append_round(row(number), {name: [layer(number)] * 2 for name in others})
    journal.drop_after(2)
    assert pd.read_csv(tmp_path / "rounds.csv")["round"].tolist() == [1, 2]
    for name in others:
        assert pd.read_csv(tmp_path / f"{name}.csv")["round"].tolist() == [1, 1, 2, 2]


def test_json_lines_are_strict_and_hold_everything(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.append_round(
        row(1, sparsity=0.9, seconds=math.inf),
        {"clients": [client(1), client(1, "é broke")], "layers": [layer(1)]},
    )

    def no_constant(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    [line] = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert json.loads(line, parse_constant=no_constant) == {
        "round": 1,
        "loss": 1.1,
        "accuracy": None,
        "sparsity": 0.9,
        "seconds": None,
        "clients": [client(1), client(1, "é broke")],
        "layers": [{"round": 1, "layer": "fc.weight", "mask_overlap": None}],
    }


def test_an_error_of_several_lines_becomes_one(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    reason = "client 3: <class 'X'>:<'\nException, \"quoted\"\u2028\r\n\tMessage: [NaN]'>"
    journal.append_round(row(1), {"clients": [client(1, reason)], "layers": []})
    assert len((tmp_path / "clients.csv").read_text().splitlines()) == 2
    table = pd.read_csv(tmp_path / "clients.csv")
    expected = "client 3: <class 'X'>:<' Exception, \"quoted\" Message: [NaN]'>"
    assert table["failure"].tolist() == [expected]


def test_no_rows_make_no_table(tmp_path: Path) -> None:
    Journal(tmp_path).append_round(row(1), {"clients": [client(1)], "layers": []})
    assert not (tmp_path / "layers.csv").exists()
    Journal(tmp_path).drop_after(1)
    assert not (tmp_path / "layers.csv").exists()


def test_later_rounds_are_dropped_and_the_rest_is_the_same_text(tmp_path: Path) -> None:
    short, long = tmp_path / "short", tmp_path / "long"
    short.mkdir()
    long.mkdir()
    write_rounds(short, 1, 2, 10)
    write_rounds(long, 1, 2, 10, 11, 12).drop_after(10)
    assert contents(long) == contents(short)


def test_a_journal_that_was_cut_goes_on_like_an_unbroken_one(tmp_path: Path) -> None:
    unbroken, cut = tmp_path / "unbroken", tmp_path / "cut"
    unbroken.mkdir()
    cut.mkdir()
    write_rounds(unbroken, 1, 2, 3)
    journal = write_rounds(cut, 1, 2)
    journal.drop_after(1)
    for number in (2, 3):
        journal.append_round(
            row(number), {"clients": [client(number)] * 2, "layers": [layer(number)]}
        )
    assert contents(cut) == contents(unbroken)


@pytest.mark.parametrize(
    ("name", "unfinished"),
    [
        ("rounds.csv", "1"),  # the beginning of round 12, not a row of round 1
        ("clients.csv", '12,3,0.33,"a reason that'),
        ("layers.csv", "12,fc"),
        ("metrics.jsonl", '{"round": 12, "lo'),
    ],
)
def test_an_unfinished_line_is_dropped(tmp_path: Path, name: str, unfinished: str) -> None:
    journal = write_rounds(tmp_path, 1, 2)
    before = contents(tmp_path)
    with (tmp_path / name).open("a") as file:
        file.write(unfinished)
    journal.drop_after(11)
    assert contents(tmp_path) == before


def test_an_unfinished_header_is_written_again(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    (tmp_path / "rounds.csv").write_text("round,lo")
    journal.drop_after(1)
    journal.append_initial(row(0))
    assert (tmp_path / "rounds.csv").read_text() == "round,loss,accuracy\n0,0.1,\n"


def test_a_table_that_an_older_version_began_keeps_its_columns(tmp_path: Path) -> None:
    journal = write_rounds(tmp_path, 1)
    journal.append_round({"extra": 7, **row(2, more=5)}, {})
    last = (tmp_path / "rounds.csv").read_text().splitlines()[-1]
    assert last == "2,2.1,"
    fewer = {"round": 3, "accuracy": 0.5}
    journal.append_round(fewer, {})
    assert (tmp_path / "rounds.csv").read_text().splitlines()[-1] == "3,,0.5"
