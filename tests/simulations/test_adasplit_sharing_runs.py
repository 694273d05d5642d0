"""Whole runs of SL-basic and SplitFed, which finish exchanges before client parts are shared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from simulations import recorder as recorder_module
from simulations.preflight import check
from simulations.round_rows import round_line, round_row
from simulations.run_name import read_run_name
from simulations.runner import resume, run
from simulations.settings import RunSettings, read_config
from strategies import AdaSplitClientReport, AdaSplitRoundReport
from tests.simulations.small_runs import Stopped, arrays_of, stopped_after, table_of
from zerofl_flwr.errors import SettingsError

PRESETS = Path(__file__).parents[2] / "simulations" / "conf"
SMALL: dict[str, Any] = {
    "algorithm": "adasplit",
    "num-clients": 3,
    "clients-per-round": 3,
    "samples-per-client": 60,
    "rounds": 6,
    "validation-fraction": 0.2,
    "batch-size": 16,
    "iterations-per-round": 1,
    "kappa": 0.0,
    "selection": "all",
    "mask": "none",
    "local-loss": False,
    "server-gradient": "selected",
    "share-every": 2,
    "evaluate-every": 3,
    "backend": "in-process",
    "seed": 3,
}
PHASES = ["global", "global", "finish"] * 2


def small(weights: str, **changes: Any) -> RunSettings:
    kebab = {key.replace("_", "-"): value for key, value in changes.items()}
    return RunSettings.from_mapping({**SMALL, "client-weights": weights, **kebab})


@pytest.fixture(autouse=True)
def _no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes seconds."""
    monkeypatch.setattr(recorder_module, "write_plots", lambda folder: [])


@pytest.fixture(scope="module", params=["averaged", "relayed"])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recorder_module, "write_plots", lambda folder: [])
        return run(small(request.param), tmp_path_factory.mktemp("whole") / "run")


def weights_of(folder: Path) -> str:
    return str(read_config(folder / "config.toml")["client-weights"])


def states_of(folder: Path) -> dict[str, dict[str, bytes]]:
    """Read the state that each client has after its last round, but for the run's name."""
    clients = sorted((folder / "clients" / read_run_name(folder)).iterdir())
    last = {c: max(int(p.stem.removeprefix("round-")) for p in c.iterdir()) for c in clients}
    read = {client: arrays_of(client / f"round-{number}.npz") for client, number in last.items()}
    return {c.name: {n: a for n, a in each.items() if n != "run"} for c, each in read.items()}


def assert_same(first: Path, second: Path) -> None:
    assert arrays_of(first / "model.npz") == arrays_of(second / "model.npz")
    assert states_of(first) == states_of(second)
    for name in ("rounds", "clients", "traffic", "tests"):
        one, other = (
            table_of(folder, name).drop(columns="server_seconds", errors="ignore")
            for folder in (first, second)
        )
        pd.testing.assert_frame_equal(one, other)


def test_finishing_rounds_are_shown_as_such(whole: Path) -> None:
    rounds = pd.read_csv(whole / "rounds.csv")
    assert rounds["phase"].tolist() == PHASES
    finish = rounds[rounds["phase"] == "finish"]
    assert (finish["picked"] == 0).all()
    assert finish["server_loss"].isna().all()
    assert finish["accuracy"].notna().all()
    assert (finish["failures"] == 0).all()
    clients = pd.read_csv(whole / "clients.csv")
    is_finishing = clients["round"].isin(finish["round"])
    assert (clients["num_examples"] == 0).tolist() == is_finishing.tolist()
    lines = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    assert [line["phase"] for line in lines] == PHASES


def test_client_parts_travel_where_they_are_shared_and_nowhere_else(whole: Path) -> None:
    clients = pd.read_csv(whole / "clients.csv")
    part = sum(
        len(array)
        for name, array in arrays_of(whole / "model.npz").items()
        if not name.startswith("server")
    )
    batch = 16 * 16 * 8 * 8 * 4  # images, channels, and what the first block leaves of them
    rest = 4000  # headers, labels, the plan
    first, last = clients["round"].isin([1, 4]), clients["round"].isin([3, 6])
    assert clients[first]["downlink_bytes"].between(part, part + rest).all()
    assert clients[last]["uplink_bytes"].between(part, part + rest).all()
    # Otherwise a gradient comes down, and activations go up, of which CSR leaves out the zeros.
    assert clients[~first]["downlink_bytes"].between(batch, batch + rest).all()
    assert clients[~last]["uplink_bytes"].between(0.6 * batch, batch + rest).all()
    assert part > 2 * rest


@pytest.mark.timeout(240)
def test_ray_ends_bit_equal(whole: Path, tmp_path: Path) -> None:
    assert_same(whole, run(small(weights_of(whole), backend="ray"), tmp_path / "run"))


@pytest.mark.parametrize("stop", [1, 2, 3])
def test_a_resumed_run_ends_as_an_unbroken_one(whole: Path, tmp_path: Path, stop: int) -> None:
    with stopped_after(stop), pytest.raises(Stopped):
        run(small(weights_of(whole)), tmp_path / "resumed")
    assert_same(whole, resume(tmp_path / "resumed"))


def test_the_line_of_a_finishing_round_says_so() -> None:
    settings = small("averaged")
    told = [AdaSplitClientReport(client, 0, 100, 50, 1.5, 0.0) for client in range(3)]
    report = AdaSplitRoundReport(3, "finish", told, float("nan"), 0.1)
    test = {"accuracy": 0.5, "loss": 1.25}
    line = round_line(round_row(3, report, 2.0, test, settings), report, 6, test)
    assert line.startswith("round 3/6  finish  accuracy  50.0 %  loss  1.250  up ")


@pytest.mark.parametrize(
    ("name", "weights", "rounds_of_a_pass"),
    [("sl-basic-digits", "relayed", 10), ("splitfed-digits", "averaged", 1)],
)
def test_the_presets_end_and_test_where_client_parts_are_shared(
    name: str, weights: str, rounds_of_a_pass: int
) -> None:
    settings = RunSettings.from_mapping(read_config(PRESETS / f"{name}.toml"))
    check(settings)
    method, simulation = settings.adasplit, settings.simulation
    assert (method.client_weights, method.server_gradient) == (weights, "selected")
    assert (method.kappa, method.selection, method.mask) == (0.0, "all", "none")
    assert (method.local_loss, method.iterations_per_round) == (False, 1)
    period = (method.share_every + 1) * rounds_of_a_pass
    assert simulation.rounds % period == simulation.evaluate_every % period == 0
    assert simulation.checkpoint_every % period == 0


def test_more_exchanges_than_rounds_are_refused_at_the_start() -> None:
    with pytest.raises(SettingsError, match=r"share_every is 6, .* rounds is 6: it must be at"):
        check(small("averaged", share_every=6))
    with pytest.raises(SettingsError, match="share_every is 2, but with client_weights 'personal'"):
        small("personal")
