"""What a run's settings make of a baseline's client and strategy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flwr.app import RecordDict
from flwr.common import ndarrays_to_parameters

from simulations import baseline_parts
from simulations.baseline_parts import check_baseline, make_client, make_strategy
from simulations.baselines import AloneClient, BaselineClient, ScaffoldClient
from simulations.run_models import plain_model
from simulations.settings import RunSettings
from strategies import FedNova
from tests.simulations.changed_settings import settings_with
from zerofl_flwr.errors import SettingsError
from zerofl_flwr.model_arrays import array_names, get_arrays

SMALL: dict[str, Any] = {
    "algorithm": "baseline",
    "num-clients": 6,
    "clients-per-round": 3,
    "rounds": 4,
    "validation-fraction": 0.2,
    "seed": 3,
}


def small(**changes: Any) -> RunSettings:
    return settings_with(SMALL, **changes)


@pytest.mark.parametrize(
    ("strategy", "kind"),
    [
        ("fedavg", BaselineClient),
        ("fedprox", BaselineClient),
        ("fednova", BaselineClient),
        ("scaffold", ScaffoldClient),
        ("alone", AloneClient),
    ],
)
def test_a_strategy_has_clients_of_its_kind(strategy: str, kind: Any, tmp_path: Path) -> None:
    settings = small(strategy=strategy, learning_rate=0.3, cpus_per_client=2)
    client = make_client(settings, 4, RecordDict(), tmp_path)
    assert type(client) is kind
    assert (client.partition_id, client.seed, client.device) == (4, 3, "cpu")
    assert client.training == settings.training
    # 240 of 1438 digits, of which a fifth is held out.
    assert sum(len(labels) for _, labels in client.train_batches) == 192


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Note what the wrapper of a strategy is given, with the strategy."""
    calls: list[dict[str, Any]] = []

    def note(strategy: Any, **options: Any) -> None:
        calls.append({"strategy": strategy, **options})

    monkeypatch.setattr(baseline_parts, "Baseline", note)
    return calls


def test_the_strategy_is_told_what_the_settings_say(given: list[dict[str, Any]]) -> None:
    settings = small(
        strategy="fednova", on_failure="raise", min_replies=2, evaluate_every=3, rounds=5, seed=11
    )
    rounds: list[Any] = []
    tests: list[Any] = []
    make_strategy(settings, "a-run", rounds.append, tests.append)
    (call,) = given
    assert type(call.pop("strategy")) is FedNova
    assert call == {
        "array_names": array_names(plain_model(settings)),
        "evaluate_every": 3,
        "last_round": 5,
        "min_replies": 2,
        "on_failure": "raise",
        "seed": 11,
        "on_round": rounds.append,
        "on_test": tests.append,
    }


@pytest.mark.parametrize(
    ("fraction", "tested"), [(0.0, [True, False, True, False, True]), (0.5, [False] * 5)]
)
def test_the_server_tests_in_rounds_of_tests_where_no_client_does(
    given: list[dict[str, Any]], fraction: float, tested: list[bool]
) -> None:
    settings = small(fraction_evaluate=fraction, evaluate_every=2, test_samples=20)
    make_strategy(settings)
    model = ndarrays_to_parameters(get_arrays(plain_model(settings)))
    outcomes = [given[0]["strategy"].evaluate(number, model) for number in range(5)]
    assert [outcome is not None for outcome in outcomes] == tested


def test_clients_alone_that_nobody_tests_are_refused() -> None:
    check_baseline(small(strategy="alone"))
    check_baseline(small(fraction_evaluate=0.0))
    with pytest.raises(SettingsError, match="fraction-evaluate is 0, but with strategy alone"):
        check_baseline(small(strategy="alone", fraction_evaluate=0.0))
