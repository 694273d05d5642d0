"""Whole runs of SL-basic and SplitFed, which finish exchanges before client parts are shared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from simulations.preflight import check
from simulations.round_rows import round_line, round_row
from simulations.runner import resume, run
from simulations.settings import RunSettings, read_config
from strategies import AdaSplitClientReport, AdaSplitRoundReport
from tests.simulations.changed_settings import settings_with
from tests.simulations.same_results import differences
from tests.simulations.small_runs import Stopped, arrays_of, run_undrawn, stopped_after
from zerofl_flwr.errors import SettingsError

pytestmark = pytest.mark.usefixtures("no_plots")

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
    return settings_with(SMALL, client_weights=weights, **changes)


@pytest.fixture(scope="module", params=["averaged", "relayed"])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_undrawn(small(request.param), tmp_path_factory.mktemp("whole") / "run")


def weights_of(folder: Path) -> str:
    return str(read_config(folder / "config.toml")["client-weights"])


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


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_ray_ends_bit_equal(whole: Path, tmp_path: Path) -> None:
    assert differences(whole, run(small(weights_of(whole), backend="ray"), tmp_path / "run")) == []


def test_a_resumed_run_ends_as_an_unbroken_one(whole: Path, tmp_path: Path) -> None:
    with stopped_after(2), pytest.raises(Stopped):
        run(small(weights_of(whole)), tmp_path / "resumed")
    assert differences(whole, resume(tmp_path / "resumed")) == []


def test_the_line_of_a_finishing_round_says_so() -> None:
    settings = small("averaged")
    told = [AdaSplitClientReport(client, 0, 100, 50, 1.5, 0.0) for client in range(3)]
    report = AdaSplitRoundReport(3, "finish", told, float("nan"), 0.1)
    test = {"accuracy": 0.5, "loss": 1.25}
    line = round_line(round_row(3, report, 2.0, test, settings), report, 6, test)
    assert line.startswith("round 3/6  finish  accuracy  50.0 %  loss  1.250  up ")


@pytest.mark.parametrize(
    ("name", "weights"), [("sl-basic-digits", "relayed"), ("splitfed-digits", "averaged")]
)
def test_the_presets_learn_from_gradients_alone(name: str, weights: str) -> None:
    settings = RunSettings.from_mapping(read_config(PRESETS / f"{name}.toml"))
    check(settings)
    method = settings.adasplit
    assert (method.client_weights, method.server_gradient) == (weights, "selected")
    assert (method.kappa, method.selection, method.mask) == (0.0, "all", "none")
    assert (method.local_loss, method.iterations_per_round) == (False, 1)


def test_more_exchanges_than_rounds_are_refused_at_the_start() -> None:
    with pytest.raises(SettingsError, match=r"share_every is 6, .* rounds is 6: it must be at"):
        check(small("averaged", share_every=6))
    with pytest.raises(SettingsError, match="share_every is 2, but with client_weights 'personal'"):
        small("personal")
