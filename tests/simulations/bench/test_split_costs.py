"""Costs of a whole AdaSplit run, against counts by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tomli_w
from typer.testing import CliRunner

from adasplit_flwr.costs import sample_costs
from adasplit_flwr.split import split_sequential
from simulations.bench import split_costs
from simulations.bench.split_costs import RunCosts, run_costs
from simulations.commands import command
from simulations.networks import lenet
from simulations.settings import RunSettings
from tests.simulations.small_runs import small
from zerofl_flwr.errors import SettingsError

# A tenth of a client's samples is for its tests: it trains on 45.
RUN: dict[str, Any] = {
    "algorithm": "adasplit",
    "num-clients": 4,
    "samples-per-client": 50,
    "clients-per-round": 4,
    "rounds": 10,
    "batch-size": 16,
    "kappa": 0.5,
    "eta": 0.5,
    "cut": "1",
}


def costs_of(**changes: Any) -> tuple[float, float]:
    kebab = {key.replace("_", "-"): value for key, value in changes.items()}
    costs = run_costs(RunSettings.from_mapping(RUN | kebab).resolved())
    return costs.client_samples, costs.server_samples


def test_clients_train_in_all_rounds_and_the_server_on_the_picked_ones_of_the_global_phase() -> (
    None
):
    assert costs_of() == (10 * 4 * 45, 5 * 2 * 45)


def test_full_batches_leave_the_rest_of_an_epoch_out() -> None:
    assert costs_of(full_batches=True) == (10 * 4 * 32, 5 * 2 * 32)


def test_exchanges_of_some_batches_take_their_share_of_an_epoch() -> None:
    # An epoch has batches of 16, 16 and 13: 6 of them are two epochs.
    assert costs_of(iterations_per_round=6) == (10 * 4 * 90, 5 * 2 * 90)


def test_totals_are_samples_times_their_costs() -> None:
    costs = run_costs(RunSettings.from_mapping(RUN).resolved())
    # 8 x 8 digits: the first convolution has 16 outputs of 3 x 3; the head 128 of 1 x 1, then 64.
    client, head = 64 * 16 * 9, 64 * 16 * 128 + 128 * 64
    assert costs.client_tera == pytest.approx(1800 * (client + head) / 1e12)
    assert costs.uplink_gigabytes == pytest.approx(450 * 4 * 64 * 16 / 1e9)
    assert costs.server_tera == pytest.approx(450 * costs.sample.server / 1e12)


def test_another_method_is_refused() -> None:
    with pytest.raises(SettingsError, match="of a zerofl run"):
        run_costs(small())


@pytest.mark.parametrize(
    "changes",
    [{"client_weights": "relayed"}, {"client_weights": "averaged", "server_gradient": "selected"}],
)
def test_rounds_that_are_no_exchange_of_all_are_refused(changes: dict[str, str]) -> None:
    with pytest.raises(SettingsError, match="not counted here"):
        costs_of(**changes)


def test_mixed_noniid_costs_what_our_reference_says() -> None:
    # 20 rounds of 63 full batches of 32; five clients train, three upload in the last 8 rounds.
    sample = sample_costs(split_sequential(lenet(num_classes=5), "block1"), (3, 32, 32))
    costs = RunCosts(20 * 5 * 63 * 32, 8 * 3 * 63 * 32, sample)
    assert round(costs.client_tera, 2) == 0.44
    assert round(costs.client_tera + costs.server_tera, 2) == 0.90
    assert round(costs.uplink_gigabytes, 2) == 0.99


def test_the_command_prints_them(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(tomli_w.dumps(RUN))
    result = CliRunner().invoke(command(split_costs.main), [str(tmp_path / "run.toml")])
    assert result.exit_code == 0
    assert "clients: 1,800 samples" in result.output
    assert "server:  450 samples" in result.output
