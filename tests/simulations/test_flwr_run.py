"""``flwr run`` on a clone, with real SuperLink and simulation processes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import psutil
import pytest

from simulations.apps import check_federation, check_same
from simulations.setting_groups import all_fields
from simulations.settings import RunSettings
from tests.simulations.setting_defaults import default_of
from zerofl_flwr.errors import SettingsError

_REPOSITORY = Path(__file__).parents[2]
_OWN_KEYS = {"out": "", "resume": False, "paper": False}


def test_run_config_lists_every_setting_with_its_default() -> None:
    pyproject = tomllib.loads((_REPOSITORY / "pyproject.toml").read_text())
    listed = pyproject["tool"]["flwr"]["app"]["config"]
    expected = {key: default_of(setting) for _, key, setting in all_fields()}
    expected = {key: "" if value is None else value for key, value in expected.items()}
    assert listed == expected | _OWN_KEYS


@pytest.fixture
def flwr_environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Give an environment with a Flower home of its own, and end the SuperLink it starts."""
    home = tmp_path / "flwr-home"
    home.mkdir()
    environment = os.environ | {
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    yield environment
    for process in psutil.process_iter():
        try:
            if process.environ().get("FLWR_HOME") == str(home):
                process.kill()
        except psutil.Error:  # it ended by itself, or is not ours to look at
            continue


@pytest.mark.slow
@pytest.mark.timeout(620)
def test_flwr_run_trains_by_any_method_and_writes_the_run_folder(
    tmp_path: Path, flwr_environment: dict[str, str]
) -> None:
    flwr = shutil.which("flwr", path=flwr_environment["PATH"])
    assert flwr is not None
    app = tmp_path / "app"
    names = subprocess.run(
        ["git", "ls-files", "-z"], cwd=_REPOSITORY, check=True, capture_output=True, text=True
    ).stdout
    for name in filter(None, names.split("\0")):
        if (_REPOSITORY / name).is_file():
            (app / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(_REPOSITORY / name, app / name)
    command = [flwr, "run", str(app), "--stream", "--federation-config", "num-supernodes=6"]
    config = "num-clients=6 clients-per-round=3 rounds=2 samples-per-client=40"

    def flwr_run(name: str, options: str = "") -> tuple[Path, pd.DataFrame, str]:
        """Run the app by the one SuperLink; return the run's folder, its rounds, what was said."""
        out = tmp_path / name
        done = subprocess.run(
            [*command, "--run-config", f'{config} out="{out}" {options}'],
            env=flwr_environment,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        output = done.stdout + done.stderr
        assert (out / "rounds.csv").exists(), output
        assert (out / "model.npz").exists(), output
        return out, pd.read_csv(out / "rounds.csv"), output

    out, rounds, output = flwr_run("results")
    assert rounds["round"].tolist() == [0, 1, 2]
    assert rounds["replies"].tolist() == [0, 3, 3], output
    settings = tomllib.loads((out / "config.toml").read_text())
    assert settings["num-clients"] == 6
    assert settings["samples-per-client"] == 40
    # The other method.
    _, rounds, output = flwr_run("split", 'algorithm="adasplit" kappa=0.5 slow="0:1.5"')
    assert rounds["phase"].tolist() == ["local", "global"]
    assert rounds["picked"].tolist() == [0, 2], output
    assert rounds["test_failures"].tolist() == [0, 0], output
    # A baseline whose clients keep a state between messages.
    _, rounds, output = flwr_run("scaffold", 'algorithm="baseline" strategy="scaffold"')
    assert rounds["replies"].tolist() == [3, 3], output
    assert rounds["accuracy"].notna().all(), output


def test_a_run_is_resumed_with_its_own_settings_only() -> None:
    stored = RunSettings.from_mapping({"paper": True, "rounds": 5, "seed": 3})
    check_same(stored, stored)
    message = r"from its config\.toml: rounds is 10 instead of 5, seed is 0 instead of 3\. Pass"
    with pytest.raises(SettingsError, match=message):
        check_same(RunSettings.from_mapping({"paper": True}), stored)


def test_what_the_federation_decides_is_refused() -> None:
    check_federation(RunSettings.from_mapping({"cpus-per-client": 2, "ray-address": ""}))
    for key, value in (("backend", "in-process"), ("ray-address", "10.0.0.1:6379")):
        message = f"{key} is '{value}', which has no effect under flwr run: .* simulation-config"
        with pytest.raises(SettingsError, match=message):
            check_federation(RunSettings.from_mapping({key: value}))
