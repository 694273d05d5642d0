"""The Makefile's virtual environment, made with stand-ins for Python."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_REPOSITORY = Path(__file__).parents[1]
_MAKE = shutil.which("make")
# What Debian's python3 does without the package python3-venv: it fails half-way.
_HALF_WAY = 'mkdir -p .venv/bin && ln -s "$0" .venv/bin/python && exit 1'

pytestmark = pytest.mark.skipif(_MAKE is None, reason="there is no make")


def python(folder: Path, *, venv: str, has_ensurepip: bool = True) -> Path:
    """Write a Python whose pip works in a whole environment only; `venv` is what -m venv does."""
    path = folder / "python3"
    path.write_text(
        f"""#!/bin/sh
case "$*" in
    *"import ensurepip"*) {"exit 0" if has_ensurepip else "exit 1"} ;;
    "-m venv"*) {venv} ;;
    "-m pip"*) test -e .venv/whole; exit $? ;;
    *) exec {sys.executable} "$@" ;;
esac
"""
    )
    path.chmod(0o755)
    return path


def make(folder: Path, python: Path, target: str = "install") -> subprocess.CompletedProcess[str]:
    assert _MAKE is not None
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(_REPOSITORY / name, folder / name)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
    command = [_MAKE, "-s", f"PYTHON={python}", target]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def package() -> str:
    return f"python{sys.version_info[0]}.{sys.version_info[1]}-venv"


@pytest.mark.parametrize("has_ensurepip", [False, True])
def test_without_venv_one_line_says_what_to_install_and_nothing_is_left(
    tmp_path: Path, has_ensurepip: bool
) -> None:
    broken = python(tmp_path, venv=_HALF_WAY, has_ensurepip=has_ensurepip)
    for _ in range(2):  # the second time as the first
        done = make(tmp_path, broken)
        assert done.returncode != 0
        [line] = [line for line in done.stderr.splitlines() if not line.startswith("make")]
        assert line == (
            f"{broken} cannot make a virtual environment with pip: "
            f"install its venv module (on Debian and Ubuntu {package()})."
        )
        assert not (tmp_path / ".venv").exists()


def test_a_half_made_environment_is_made_whole(tmp_path: Path) -> None:
    whole = python(tmp_path, venv="touch .venv/whole")
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "python").symlink_to(whole)
    (tmp_path / ".venv" / "of-the-user").touch()
    assert make(tmp_path, python(tmp_path, venv="exit 1")).returncode != 0
    assert (tmp_path / ".venv" / "of-the-user").exists()
    python(tmp_path, venv="touch .venv/whole")
    done = make(tmp_path, whole)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / ".venv" / ".installed").exists()


def test_a_whole_environment_is_not_made_again(tmp_path: Path) -> None:
    never = python(tmp_path, venv="exit 1")
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "python").symlink_to(never)
    (tmp_path / ".venv" / "whole").touch()
    done = make(tmp_path, never)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / ".venv" / ".installed").exists()


def test_ci_can_ask_which_python_and_which_package(tmp_path: Path) -> None:
    any_python = python(tmp_path, venv="exit 1")
    assert make(tmp_path, any_python, "which-python").stdout == f"{any_python}\n"
    assert make(tmp_path, any_python, "venv-package").stdout == f"{package()}\n"
    assert not (tmp_path / ".venv").exists()
