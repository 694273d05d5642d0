"""The command line, in this process and as a user starts it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from simulations import __main__ as command_line
from simulations import runner
from simulations.recorder import Recorder
from simulations.setting_groups import all_fields, default_text, help_texts
from simulations.settings import read_config
from tests.simulations.invoked import PLAIN, invoke, without_styles
from tests.simulations.small_runs import SMALL, Stopped, small, stopped_after
from zerofl_flwr.errors import LeanFlwrError, SettingsError

COMMAND = [sys.executable, "-m", "simulations"]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Note what would run, and run nothing."""
    calls: list[Any] = []

    def run(settings: Any, folder: Path, *, overwrite: bool = False) -> Path:
        calls.append((settings, folder, overwrite))
        return folder

    def resume(folder: Path) -> Path:
        calls.append(folder)
        return folder

    monkeypatch.setattr(runner, "run", run)
    monkeypatch.setattr(runner, "resume", resume)
    return calls


def test_the_help_lists_the_commands() -> None:
    result = invoke("--help")
    assert result.exit_code == 0
    assert "Run a simulation, or continue one with --resume." in result.output
    assert "Write a run's trained network to a file, for use in plain torch." in result.output
    assert invoke().exit_code == 2
    assert "run" in invoke().output
    assert "export" in invoke().output


def test_the_help_of_run_describes_every_setting_with_its_default() -> None:
    result = invoke("run", "--help")
    assert result.exit_code == 0
    text = " ".join(without_styles(result.output).replace("│", " ").split())
    for group, key, field in all_fields():
        if key == "algorithm":
            continue
        assert f"--{key}" in text, key
        description = help_texts(group)[field.name].replace("`partition_by`", "--partition-by")
        description = description.replace("`", "")
        assert description in text, key
        says_itself = "default: " in description.lower()
        assert (f"{description} (default: {default_text(field)})" in text) != says_itself, key
    assert "(default: senders; with --paper: all-clients)" in text
    assert "(default: 0.95)" in text
    assert "default: everything but the input layer" in text
    assert not re.findall(r"[Dd]efault: [^()]*\(default: unset\)", text)
    assert "(default: unset)" in text
    assert "partition_by" not in text
    assert "None" not in text
    assert "log-mel or mfcc" in text
    assert "initial weights, sampling of clients and shuffling" in text
    assert "--clients" in text
    assert "--no-sparse-downlink" in text
    for panel in ("Simulation", "Data and clients", "Local training", "ZeroFL"):
        assert panel in text


def test_the_help_needs_no_ray_and_no_data_library() -> None:
    program = (
        "import sys; import simulations.__main__; "
        "print(sorted({'ray', 'pandas', 'datasets', 'flwr_datasets', 'sklearn', 'matplotlib', "
        "'pyarrow', 'librosa'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.stdout.strip() == "[]", result.stderr


def test_options_override_the_config_file_and_that_the_defaults(
    started: list[Any], tmp_path: Path
) -> None:
    config = tmp_path / "config.toml"
    config.write_text(tomli_w.dumps(SMALL | {"rounds": 7, "local-epochs": 2}))
    out = tmp_path / "run"
    options = ["--rounds", 5, "--clients", 9, "--no-sparse-downlink", "--seed", 11]
    result = invoke("run", "zerofl", "--config", config, "--out", out, *options)
    assert result.exit_code == 0, result.output
    assert started == [
        (
            small(rounds=5, local_epochs=2, num_clients=9, sparse_downlink=False, seed=11),
            out,
            False,
        )
    ]
    assert f"results: {out}" in result.output


@pytest.mark.parametrize("name", ["out", "resume", "overwrite"])
def test_what_is_only_an_option_is_refused_in_a_config_file(
    started: list[Any], tmp_path: Path, name: str
) -> None:
    config = tmp_path / "config.toml"
    config.write_text(tomli_w.dumps({name: "run"}))
    result = invoke("run", "--config", config)
    assert isinstance(result.exception, SettingsError)
    assert f"{config}: {name} is no setting of a run; pass --{name}" in str(result.exception)
    assert started == []


def test_either_name_of_the_number_of_clients_counts(started: list[Any]) -> None:
    for name in ("--clients", "--num-clients"):
        invoke("run", name, "33")
        assert started.pop()[0].data.num_clients == 33


def test_results_go_to_a_folder_of_their_own_unless_told(
    started: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    invoke("run")
    folder = started[0][1]
    assert folder.parent == tmp_path / "runs"
    assert re.fullmatch(r"zerofl-\d{8}-\d{6}", folder.name)


def test_overwrite_is_passed_on(started: list[Any], tmp_path: Path) -> None:
    invoke("run", "--out", tmp_path, "--overwrite")
    assert started[0][2] is True


def test_resume_goes_alone(started: list[Any], tmp_path: Path) -> None:
    assert invoke("run", "--resume", tmp_path).exit_code == 0
    assert started == [tmp_path]
    for more in (["--rounds", "3"], ["zerofl"], ["--out", "x"], ["--overwrite"], ["--config", "x"]):
        result = invoke("run", *more, "--resume", tmp_path)
        assert isinstance(result.exception, SettingsError), more
        assert "give it alone" in str(result.exception)
    assert len(started) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sparsity", "1.5"], "sparsity must lie between 0 and 1"),
        (["zeroflop"], "unknown algorithm 'zeroflop'; did you mean 'zerofl'"),
        (["--config", "no-such-file.toml"], "there is no config file no-such-file.toml"),
        (["--clients", "5", "--clients-per-round", "6"], "clients-per-round is 6"),
    ],
)
def test_a_setting_that_cannot_work_is_our_error(
    started: list[Any], arguments: list[str], message: str
) -> None:
    result = invoke("run", *arguments)
    assert isinstance(result.exception, LeanFlwrError)
    assert message in str(result.exception)
    assert started == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rounds", "many"], "'many' is not a valid int"),
        (["--sparstiy", "0.9"], "No such option"),
        (["--rounds"], "requires an argument"),
    ],
)
def test_an_option_that_cannot_be_read_is_a_usage_error(
    started: list[Any], arguments: list[str], message: str
) -> None:
    result = invoke("run", *arguments)
    assert result.exit_code == 2
    assert message in " ".join(without_styles(result.output).split())
    assert started == []


def fail_with(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> int:
    """Run the program with a run that fails, and return its exit code."""

    def run(*_: object, **__: object) -> Path:
        raise error

    monkeypatch.setattr(runner, "run", run)
    monkeypatch.setattr(sys, "argv", ["lean-flwr", "run"])
    with pytest.raises(SystemExit) as ended:
        command_line.main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_an_error_of_ours_is_one_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "rule is 'x'; [bold]choose[/bold] one of [red] in /runs/[1]"
    assert fail_with(monkeypatch, SettingsError(text)) == 2
    # The brackets are the message's own, not markup.
    assert without_styles(capsys.readouterr().err).strip() == f"error: {text}"


def test_an_error_that_nobody_expected_keeps_its_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fail_with(monkeypatch, ZeroDivisionError("by surprise")) == 1
    errors = capsys.readouterr().err
    assert "Traceback" in errors
    assert "ZeroDivisionError: by surprise" in errors


def test_an_interruption_says_how_to_continue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(settings: object, folder: Path, *, overwrite: bool) -> Path:
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "run", run)
    result = invoke("run", "--out", tmp_path)
    assert result.exit_code == 130
    assert "interrupted" in result.output
    assert "--resume" not in result.output
    (tmp_path / "checkpoint.npz").touch()
    result = invoke("run", "--out", tmp_path)
    assert f"interrupted; to continue: lean-flwr run --resume {tmp_path}" in result.output


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("raise SettingsError('no')", 2),
        ("raise KeyboardInterrupt", 130),
    ],
)
def test_a_server_thread_that_waits_for_ever_does_not_keep_the_process(
    end: str, code: int, tmp_path: Path
) -> None:
    program = f"""
import sys, threading
from simulations import __main__, runner
from zerofl_flwr.errors import SettingsError

def run(*_, **__):
    threading.Thread(target=threading.Event().wait).start()
    {end}

runner.run = run
sys.argv = ["lean-flwr", "run", "--out", {str(tmp_path)!r}]
__main__.main()
"""
    result = subprocess.run([sys.executable, "-c", program], timeout=60, capture_output=True)
    assert result.returncode == code


@pytest.mark.usefixtures("no_plots")
def test_a_run_stops_and_resumes_from_the_command_line(tmp_path: Path) -> None:
    out = tmp_path / "run"
    options = ["--clients", 4, "--clients-per-round", 2, "--rounds", 2, "--backend", "in-process"]
    with stopped_after(1):
        assert isinstance(invoke("run", *options, "--out", out).exception, Stopped)
    result = invoke("run", "--resume", out)
    assert result.exit_code == 0, result.output
    assert (out / "model.npz").exists()
    again = invoke("run", *options, "--out", out)
    assert "holds a run already" in str(again.exception)
    assert invoke("run", *options, "--out", out, "--overwrite").exit_code == 0


def start(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, "run", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | PLAIN,
        # A test run in a shell's background hands down an ignored SIGINT.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def test_a_real_process_refuses_an_unknown_key_without_a_traceback(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(tomli_w.dumps(SMALL | {"sparstiy": 0.9}))
    process = start("--config", config, "--out", tmp_path / "run")
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert output == ""
    assert "error: unknown setting 'sparstiy'; did you mean 'sparsity'?" in without_styles(errors)
    assert "Traceback" not in errors
    assert not (tmp_path / "run").exists()


def test_a_real_process_that_is_interrupted_can_be_resumed(tmp_path: Path) -> None:
    config, out = tmp_path / "config.toml", tmp_path / "run"
    config.write_text(tomli_w.dumps(SMALL | {"rounds": 100_000}))
    process = start("--config", config, "--out", out)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("round      2/100000"):
            break
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"interrupted; to continue: lean-flwr run --resume {out}" in errors
    assert "Traceback" not in errors
    assert Recorder.resume(out).rounds_done >= 2
    assert read_config(out / "config.toml")["rounds"] == 100_000
