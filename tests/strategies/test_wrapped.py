"""What a wrapped strategy is given, which ones can be wrapped, and what is taken back from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import flwr.server.strategy as flower
import numpy as np
import pytest
from flwr.common import FitRes, Parameters, Scalar, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import FedAvg, Krum, Strategy

from strategies import ZeroFL
from strategies.member import Member
from strategies.replies import Failure, Reply
from strategies.wrapped import (
    aggregate_each,
    aggregate_mean,
    check_can_wrap,
    check_finite,
    in_own_dtypes,
)
from tests.strategies.federation import OK, Node, f32, same_bits
from zerofl_flwr.errors import RoundFailedError, SettingsError
from zerofl_flwr.model_arrays import Array
from zerofl_flwr.payload import TensorSpec

AVERAGE = {"FedAvg", "FedProx", "FedAvgM", "FedOpt", "FedAdam", "FedYogi", "FedAdagrad"}
NEED_EVERY_REPLY = {
    "Bulyan",
    "DPFedAvgAdaptive",
    "DPFedAvgFixed",
    "DifferentialPrivacyClientSideAdaptiveClipping",
    "DifferentialPrivacyClientSideFixedClipping",
    "DifferentialPrivacyServerSideAdaptiveClipping",
    "DifferentialPrivacyServerSideFixedClipping",
    "FaultTolerantFedAvg",
    "FedMedian",
    "FedTrimmedAvg",
    "Krum",
    "QFedAvg",
}
IMPOSSIBLE = {
    "FedXgbBagging": "boosted trees",
    "FedXgbCyclic": "boosted trees",
    "FedXgbNnAvg": "boosted trees",
    "FedAvgAndroid": "raw bytes",
}


def strategy_named(name: str) -> Strategy:
    # Only its type is looked at; the many constructors do not matter.
    kind: type[Strategy] = getattr(flower, name)
    return kind.__new__(kind)


class Spy(FedAvg):
    """Notes what it is given."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.given: list[tuple[ClientProxy, FitRes]] = []
        self.failures: Sequence[Failure] = []

    def aggregate_fit(
        self,
        server_round: int,
        results: list[tuple[ClientProxy, FitRes]],
        failures: list[Failure],
    ) -> tuple[Parameters | None, dict[str, Scalar]]:
        self.given, self.failures = results, failures
        return super().aggregate_fit(server_round, results, failures)


def reply(partition_id: int, num_examples: int, **metrics: Scalar) -> Reply:
    parameters = ndarrays_to_parameters([f32([partition_id])])
    result = FitRes(OK, parameters, num_examples, {**metrics})
    return Reply(Member(Node(partition_id), partition_id), result)


REPLIES = [reply(1, 10, loss=0.5), reply(4, 30, loss=0.1)]


def test_every_strategy_of_flowers_has_its_place() -> None:
    known = AVERAGE | NEED_EVERY_REPLY | set(IMPOSSIBLE)
    assert known == set(flower.__all__) - {"Strategy"}


@pytest.mark.parametrize("name", sorted(AVERAGE))
def test_strategies_that_average_can_be_wrapped(name: str) -> None:
    strategy = strategy_named(name)
    for per_client in (False, True):
        check_can_wrap(strategy, per_client=per_client)
    assert ZeroFL(strategy).strategy is strategy


@pytest.mark.parametrize("name", sorted(NEED_EVERY_REPLY))
def test_strategies_that_need_every_reply_are_named(name: str) -> None:
    with pytest.raises(SettingsError, match=f"{name} needs every .*per_client=True"):
        check_can_wrap(strategy_named(name), per_client=False)
    check_can_wrap(strategy_named(name), per_client=True)


@pytest.mark.parametrize("name", sorted(IMPOSSIBLE))
@pytest.mark.parametrize("per_client", [False, True])
def test_strategies_of_something_else_are_refused(name: str, per_client: bool) -> None:
    with pytest.raises(SettingsError, match=f"{name} .*{IMPOSSIBLE[name]}.* cannot wrap it"):
        check_can_wrap(strategy_named(name), per_client=per_client)


def test_only_strategies_can_be_wrapped() -> None:
    with pytest.raises(SettingsError, match=r"got <class .*FedAvg"):
        check_can_wrap(FedAvg, per_client=False)  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="Krum needs every client's own reply"):
        ZeroFL(Krum())
    assert ZeroFL(Krum(), per_client=True).settings.per_client


def test_the_mean_is_one_reply_with_everybodys_samples() -> None:
    spy, mean, failures = Spy(), [f32([[1, 2]]), f32(3)], [ValueError("lost")]
    parameters, metrics = aggregate_mean(spy, 1, mean, REPLIES, failures)
    assert parameters is not None
    ((proxy, result),) = spy.given
    assert proxy is REPLIES[0].member
    assert result.num_examples == 40
    assert list(spy.failures) == failures
    assert same_bits(parameters_to_ndarrays(result.parameters), mean)
    assert same_bits(parameters_to_ndarrays(parameters), mean)
    assert metrics == {}


def test_every_reply_comes_with_its_own_samples_and_metrics() -> None:
    spy, dense = Spy(), [[f32([1])], [f32([5])]]
    parameters, _ = aggregate_each(spy, 1, iter(dense), REPLIES, [])
    assert parameters is not None
    assert [proxy for proxy, _ in spy.given] == [reply.member for reply in REPLIES]
    assert [result.num_examples for _, result in spy.given] == [10, 30]
    assert [result.metrics for _, result in spy.given] == [{"loss": 0.5}, {"loss": 0.1}]
    # The replies themselves stay as they came: a strategy may change what it is given.
    assert all(
        result is not reply.result for (_, result), reply in zip(spy.given, REPLIES, strict=True)
    )
    assert float(parameters_to_ndarrays(parameters)[0][0]) == 4


def test_metric_functions_see_every_client() -> None:
    def average(metrics: list[tuple[int, dict[str, Scalar]]]) -> dict[str, Scalar]:
        seen.append(metrics)
        return {"loss": sum(count * float(values["loss"]) for count, values in metrics) / 40}

    seen: list[list[tuple[int, dict[str, Scalar]]]] = []
    strategy = FedAvg(fit_metrics_aggregation_fn=average)
    _, metrics = aggregate_mean(strategy, 1, [f32([1])], REPLIES, [])
    assert seen == [[(10, {"loss": 0.5}), (30, {"loss": 0.1})]]
    assert metrics == {"loss": pytest.approx(0.2)}
    assert strategy.fit_metrics_aggregation_fn is average


def test_the_metric_function_is_put_back_after_an_error() -> None:
    def broken(metrics: list[tuple[int, dict[str, Scalar]]]) -> dict[str, Scalar]:
        raise KeyError("accuracy")

    strategy = FedAvg(fit_metrics_aggregation_fn=broken)
    # A strategy that looks into a reply's metrics itself fails alike: the mean's reply has none.
    with pytest.raises(RoundFailedError, match=r"found no 'accuracy'.*per_client=True"):
        aggregate_mean(strategy, 1, [f32([1])], REPLIES, [])
    assert strategy.fit_metrics_aggregation_fn is broken


def test_failures_may_be_unacceptable() -> None:
    strategy = FedAvg(accept_failures=False)
    parameters, _ = aggregate_mean(strategy, 1, [f32([1])], REPLIES, [ValueError("lost")])
    assert parameters is None
    parameters, _ = aggregate_mean(strategy, 1, [f32([1])], REPLIES, [])
    assert parameters is not None


@pytest.mark.parametrize("per_client", [False, True])
def test_strategies_compute_in_single_precision_at_least(per_client: bool) -> None:
    arrays: list[Array] = [
        np.array([1.5, 2], np.float16),
        np.array([True, False]),
        f32([0.1]),
        np.array([0.1]),
        np.array([7]),
    ]
    spy = Spy()
    if per_client:
        aggregate_each(spy, 1, iter([arrays]), REPLIES[:1], [])
    else:
        aggregate_mean(spy, 1, arrays, REPLIES, [])
    given = parameters_to_ndarrays(spy.given[0][1].parameters)
    assert [array.dtype.name for array in given] == [
        "float32",
        "int64",
        "float32",
        "float64",
        "int64",
    ]
    for came, array in zip(given, arrays, strict=True):
        np.testing.assert_array_equal(came, array)


def test_results_take_the_models_dtypes() -> None:
    specs = [
        TensorSpec((2,), np.dtype(np.float16)),
        TensorSpec((), np.dtype(np.float32)),
        TensorSpec((1,), np.dtype(np.bool_)),
        TensorSpec((1,), np.dtype(np.int64)),
    ]
    arrays = [np.array([1.5, 1e9]), np.array(1e300), np.array([1.0]), np.array([7.0])]
    cast = in_own_dtypes(arrays, specs, "the model")
    assert [array.dtype for array in cast] == [spec.dtype for spec in specs]
    # What does not fit is infinite, and there for check_finite to find.
    assert [array.tolist() for array in cast] == [[1.5, np.inf], np.inf, [True], [7]]


@pytest.mark.parametrize("arrays", [[f32([1, 2, 3])], [f32([1, 2]), f32(1)], []])
def test_other_shapes_are_refused(arrays: list[Array]) -> None:
    specs = [TensorSpec((2,), np.dtype(np.float32))]
    with pytest.raises(RoundFailedError, match=r"what X made has shapes .*; expected .*\(2,\)"):
        in_own_dtypes(arrays, specs, "what X made")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused_by_layer(value: float) -> None:
    arrays = [f32([1, 2]), np.array([True]), np.array(7), f32([[1, value]])]
    check_finite(arrays[:3], ["a", "b", "c"], "the model")
    with pytest.raises(RoundFailedError, match="the model is not finite in layer d; the model of"):
        check_finite(arrays, ["a", "b", "c", "d"], "the model")
