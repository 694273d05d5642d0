"""The benchmark of LeNet's step runs both kinds; how fast they are is not tested."""

from __future__ import annotations

import re

import pytest

from simulations.bench.lenet_step import main


def test_it_prints_both_kinds_and_their_ratio(capsys: pytest.CaptureFixture[str]) -> None:
    main(batch_size=2, steps=1, repeats=1, threads=1)
    torchs, ours, ratio = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"torch +\d+\.\d ms a step", torchs)
    assert re.fullmatch(r"ours +\d+\.\d ms a step", ours)
    assert re.fullmatch(r"ours is \d+\.\d\d times as fast", ratio)
