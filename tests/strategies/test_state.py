"""A strategy's state goes through a file, and the run goes on as if it had never stopped."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping

import numpy as np
import pytest
from flwr.common import Parameters
from flwr.server.strategy import (
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedMedian,
    FedProx,
    FedYogi,
    Krum,
    Strategy,
)

from strategies import RoundReport, ZeroFL
from strategies.state import (
    Resumable,
    State,
    check_resumable,
    load_strategy_state,
    prefixed,
    strategy_state,
    unprefixed,
)
from tests.strategies.federation import Toy, honest_nodes, managed, play, same_bits, toy
from zerofl_flwr.errors import SettingsError
from zerofl_flwr.model_arrays import Array

MODEL = toy(batch_norm=True)
BUILDERS: dict[str, Callable[[Parameters], Strategy]] = {
    "FedAvg": lambda start: FedAvg(initial_parameters=start),
    "FedProx": lambda start: FedProx(initial_parameters=start, proximal_mu=0.1),
    "FedAvgM": lambda start: FedAvgM(
        initial_parameters=start, server_momentum=0.9, server_learning_rate=0.7
    ),
    "FedAvgM without momentum": lambda start: FedAvgM(initial_parameters=start),
    "FedAdam": lambda start: FedAdam(initial_parameters=start, eta=0.1, tau=0.01),
    "FedYogi": lambda start: FedYogi(initial_parameters=start, eta=0.1),
    "FedAdagrad": lambda start: FedAdagrad(initial_parameters=start, eta=0.1),
}


class OwnStrategy(FedAvg):
    """A strategy of a user's own, which counts its rounds."""

    rounds = 0

    def state_arrays(self) -> State:
        return {"rounds": np.array(self.rounds)}

    def load_state_arrays(self, state: Mapping[str, Array]) -> None:
        self.rounds = int(state["rounds"])


class Subclass(FedAvg):
    """May hold state that FedAvg does not know of."""


def through_a_file(state: State) -> State:
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **state)
    file.seek(0)
    with np.load(file, allow_pickle=False) as stored:
        return {name: stored[name] for name in stored.files}


def run(
    strategy: ZeroFL, model: Toy, parameters: Parameters, first: int, last: int
) -> tuple[Parameters, list[dict[str, object]]]:
    manager = managed(honest_nodes(model, [10, 20, 30, 40, 50]))
    metrics: list[dict[str, object]] = []
    for server_round in range(first, last + 1):
        played = play(strategy, manager, parameters, server_round)
        parameters = played.parameters
        metrics.append(dict(played.metrics))
    return parameters, metrics


@pytest.mark.parametrize(
    ("name", "frozen_after"),
    [
        *((name, None) for name in BUILDERS),
        *((name, after) for name in ("FedAvg", "FedAdam") for after in (1, 2, 3)),
    ],
)
def test_a_resumed_run_ends_as_the_unbroken_one(name: str, frozen_after: int | None) -> None:
    def build(reports: list[RoundReport]) -> ZeroFL:
        wrapped = BUILDERS[name](MODEL.parameters)
        assert isinstance(wrapped, FedAvg)
        wrapped.min_fit_clients, wrapped.fraction_fit = 3, 0.0
        return ZeroFL(
            wrapped,
            sparsity=0.8,
            mask_ratio=0.1,
            rule="top-k-diff",
            freeze_mask_after_round=frozen_after,
            seed=4,
            on_round=reports.append,
        )

    unbroken_reports: list[RoundReport] = []
    unbroken = build(unbroken_reports)
    expected, expected_metrics = run(unbroken, MODEL, MODEL.parameters, 1, 4)
    assert expected.tensors != MODEL.parameters.tensors

    stopped = build([])
    half, _ = run(stopped, MODEL, MODEL.parameters, 1, 2)
    reports: list[RoundReport] = []
    resumed = build(reports)
    resumed.load_state_arrays(through_a_file(stopped.state_arrays()))
    end, metrics = run(resumed, MODEL, half, 3, 4)

    assert end.tensors == expected.tensors
    # Bytes on the wire and mask overlaps are those of the unbroken run, too.
    np.testing.assert_equal(metrics, expected_metrics[2:])
    assert [r.layers for r in reports] == [r.layers for r in unbroken_reports[2:]]
    first, second = unbroken.state_arrays(), resumed.state_arrays()
    assert list(first) == list(second)
    assert same_bits(list(first.values()), list(second.values()))


def test_state_matters() -> None:
    # Without it, momentum starts anew: the test above would see that.
    ends = []
    for keep in (True, False):
        strategy = ZeroFL(BUILDERS["FedAdam"](MODEL.parameters), sparsity=0.8, mask_ratio=0.1)
        half, _ = run(strategy, MODEL, MODEL.parameters, 1, 2)
        resumed = ZeroFL(BUILDERS["FedAdam"](MODEL.parameters), sparsity=0.8, mask_ratio=0.1)
        if keep:
            resumed.load_state_arrays(strategy.state_arrays())
        ends.append(run(resumed, MODEL, half, 3, 3)[0].tensors)
    assert ends[0] != ends[1]


def test_state_is_plain_named_arrays() -> None:
    strategy = ZeroFL(BUILDERS["FedAvgM"](MODEL.parameters), sparsity=0.8, mask_ratio=0.1)
    run(strategy, MODEL, MODEL.parameters, 1, 1)
    state = strategy.state_arrays()
    count = len(MODEL.arrays)
    assert sorted(state) == sorted(
        [
            *(f"wrapped/momentum/{index:05d}" for index in range(count)),
            *(f"wrapped/current/{index:05d}" for index in range(count)),
            "mask/conv.weight",
            "mask/fc.weight",
            "model/names",
            "model/masked",
        ]
    )
    assert all(array.dtype.kind in "fiu" for array in state.values())


@pytest.mark.parametrize("name", ["FedAvg", "FedProx"])
def test_averaging_alone_has_no_state(name: str) -> None:
    strategy = BUILDERS[name](MODEL.parameters)
    assert strategy_state(strategy) == {}
    load_strategy_state(strategy, {})


@pytest.mark.parametrize("name", list(BUILDERS))
def test_a_new_strategy_can_be_saved_and_loaded(name: str) -> None:
    first, second = BUILDERS[name](MODEL.parameters), BUILDERS[name](toy(seed=8).parameters)
    state = strategy_state(first)
    load_strategy_state(second, through_a_file(state))
    again = strategy_state(second)
    assert list(again) == list(state)
    assert same_bits(list(again.values()), list(state.values()))


@pytest.mark.parametrize(
    "strategy", [Subclass(), FedMedian(), Krum()], ids=["subclass", "median", "krum"]
)
def test_unknown_strategies_are_refused_by_name(strategy: Strategy) -> None:
    message = f"{type(strategy).__name__} cannot be checkpointed or resumed: give it the methods"
    for call in (check_resumable, strategy_state, lambda s: load_strategy_state(s, {})):
        with pytest.raises(SettingsError, match=message):
            call(strategy)


def test_zerofl_asks_its_wrapped_strategy() -> None:
    strategy = ZeroFL(Subclass())
    for call in (check_resumable, ZeroFL.state_arrays):
        with pytest.raises(SettingsError, match="Subclass cannot be checkpointed"):
            call(strategy)


def test_a_strategy_of_ones_own_may_join() -> None:
    own = OwnStrategy()
    assert isinstance(own, Resumable)
    own.rounds = 5
    saved = ZeroFL(own, sparsity=0.8, mask_ratio=0.1).state_arrays()
    assert saved["wrapped/rounds"] == 5
    other = OwnStrategy()
    ZeroFL(other, sparsity=0.8, mask_ratio=0.1).load_state_arrays(saved)
    assert other.rounds == 5


@pytest.mark.parametrize(
    ("saved", "loaded", "message"),
    [
        ("FedAdam", "FedAvg", "holds current, .*which FedAvg does not have"),
        ("FedAdam", "FedAvgM", "first_moment, second_moment, which FedAvgM does not have"),
        ("FedAvgM", "FedYogi", "holds momentum, which FedYogi does not have"),
        ("FedAvg", "FedAdam", "no weights of FedAdam"),
    ],
)
def test_another_strategys_state_is_refused(saved: str, loaded: str, message: str) -> None:
    strategy = ZeroFL(BUILDERS[saved](MODEL.parameters), sparsity=0.8, mask_ratio=0.1)
    run(strategy, MODEL, MODEL.parameters, 1, 1)
    other = BUILDERS[loaded](MODEL.parameters)
    with pytest.raises(SettingsError, match=message):
        load_strategy_state(other, strategy_state(strategy.strategy))


def test_prefixes_nest() -> None:
    inner = {"x": 1, "y/z": 2}
    outer = prefixed("a", inner) | prefixed("ab", {"x": 3}) | prefixed("b", prefixed("a", inner))
    assert unprefixed("a", outer) == inner
    assert unprefixed("ab", outer) == {"x": 3}
    assert unprefixed("a", unprefixed("b", outer)) == inner
    assert unprefixed("c", outer) == {}
