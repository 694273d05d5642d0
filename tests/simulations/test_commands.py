"""Commands of benchmarks: how they end."""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import pytest
import tomli_w
import typer
from typer.testing import CliRunner

from simulations import bench
from simulations.commands import command
from tests.simulations.small_runs import SMALL
from zerofl_flwr.errors import SettingsError

BENCH = Path(bench.__file__).parent


def greet(
    name: Annotated[str, typer.Argument(help="Whom.")],
    times: Annotated[int, typer.Option(min=1, help="How often.")] = 1,
) -> None:
    """Say hello."""
    if name == "nobody":
        raise SettingsError("name is 'nobody' [bold], who is no one")
    if name == "bug":
        raise ValueError("a fault of ours")
    print(f"hello {name} " * times)


def test_a_function_is_a_command_with_its_own_arguments_and_help() -> None:
    runner = CliRunner()
    assert "hello Ada hello Ada" in runner.invoke(command(greet), ["Ada", "--times", "2"]).output
    assert "Say hello." in runner.invoke(command(greet), ["--help"]).output
    assert runner.invoke(command(greet), ["Ada", "--times", "0"]).exit_code == 2


def test_an_error_of_ours_is_one_message_and_a_bug_is_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        command(greet)(["nobody"])
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert re.sub(r"\x1b\[[0-9;]*m", "", err) == ("error: name is 'nobody' [bold], who is no one\n")
    with pytest.raises(ValueError, match="a fault of ours"):
        command(greet)(["bug"])


def ended_with(
    script: Path, arguments: Sequence[object], monkeypatch: pytest.MonkeyPatch
) -> int | str | None:
    """Run a file as python would, and return its exit code."""
    monkeypatch.setattr(sys, "argv", [str(script), *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script), run_name="__main__")
    return ended.value.code


@pytest.mark.parametrize("script", sorted(BENCH.glob("[a-z]*.py")), ids=lambda script: script.stem)
def test_every_benchmark_tells_what_it_does(
    script: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended_with(script, ["--help"], monkeypatch) == 0
    assert "Usage:" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("script", "arguments", "message"),
    [
        (
            BENCH / "memory.py",
            ["--config", "wrong.toml"],
            "unknown setting 'sparstiy'; did you mean 'sparsity'",
        ),
        (BENCH / "overhead.py", ["--rounds", "0"], "rounds is 0"),
    ],
    ids=["memory", "overhead"],
)
def test_a_wrong_setting_is_told_without_a_traceback(
    script: Path,
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "wrong.toml").write_text(tomli_w.dumps(SMALL | {"sparstiy": 0.9}))
    monkeypatch.chdir(tmp_path)
    assert ended_with(script, arguments, monkeypatch) == 2
    told = capsys.readouterr().err
    assert "error:" in told
    assert message in told
    assert "Traceback" not in told
