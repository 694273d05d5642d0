"""Hand one round's outcome to the Flower strategy that ZeroFL wraps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from flwr.common import (
    Code,
    FitRes,
    Parameters,
    Scalar,
    Status,
    ndarrays_to_parameters,
    parameters_to_ndarrays,
)
from flwr.server.strategy import (
    Bulyan,
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedMedian,
    FedTrimmedAvg,
    FedXgbBagging,
    FedXgbCyclic,
    FedXgbNnAvg,
    Krum,
    QFedAvg,
    Strategy,
)

from strategies.replies import Failure, Reply
from zerofl_flwr.errors import RoundFailedError, SettingsError
from zerofl_flwr.model_arrays import Array
from zerofl_flwr.payload import TensorSpec

# These look at single replies; the mean alone is not enough for them.
_NEED_EVERY_REPLY = (
    Bulyan,
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedMedian,
    FedTrimmedAvg,
    Krum,
    QFedAvg,
)
# These do not average arrays of weights at all.
_NOT_FOR_WEIGHTS = (FedXgbBagging, FedXgbCyclic, FedXgbNnAvg)


def check_can_wrap(strategy: Strategy, *, per_client: bool) -> None:
    """Refuse a strategy that could not work behind ZeroFL.

    Raises
    ------
    SettingsError
        Naming the strategy and what to change.
    """
    name = type(strategy).__name__
    if not isinstance(strategy, Strategy):
        raise SettingsError(f"ZeroFL wraps a flwr.server.strategy.Strategy; got {name}")
    if isinstance(strategy, _NOT_FOR_WEIGHTS):
        raise SettingsError(f"{name} aggregates boosted trees, not weights: ZeroFL cannot wrap it")
    if isinstance(strategy, _NEED_EVERY_REPLY) and not per_client:
        raise SettingsError(
            f"{name} needs every client's own reply, and ZeroFL hands over only their mean: "
            "pass per_client=True, which densifies each reply (memory grows with the clients)"
        )


def aggregate_mean(
    strategy: Strategy,
    server_round: int,
    mean: list[Array],
    replies: Sequence[Reply],
    failures: Sequence[Failure],
) -> tuple[Parameters | None, dict[str, Scalar]]:
    """Give the wrapped strategy the mean as one reply that carries everybody's samples."""
    total = sum(reply.result.num_examples for reply in replies)
    combined = FitRes(Status(Code.OK, "mean"), ndarrays_to_parameters(mean), total, {})
    with _every_clients_metrics(strategy, replies):
        return strategy.aggregate_fit(server_round, [(replies[0].member, combined)], list(failures))


def aggregate_each(
    strategy: Strategy,
    server_round: int,
    dense: Iterator[list[Array]],
    replies: Sequence[Reply],
    failures: Sequence[Failure],
) -> tuple[Parameters | None, dict[str, Scalar]]:
    """Give the wrapped strategy every client's densified reply, in partition order."""
    results = [
        (
            reply.member,
            FitRes(
                reply.result.status,
                ndarrays_to_parameters(arrays),
                reply.result.num_examples,
                reply.result.metrics,
            ),
        )
        for reply, arrays in zip(replies, dense, strict=True)
    ]
    return strategy.aggregate_fit(server_round, results, list(failures))  # type: ignore[arg-type]


def checked_model(
    parameters: Parameters | None,
    specs: Sequence[TensorSpec],
    names: Sequence[str],
    server_round: int,
    strategy: Strategy,
) -> list[Array]:
    """Return the wrapped strategy's new model in the model's own dtypes, or refuse it.

    Raises
    ------
    RoundFailedError
        If there is no model, a shape changed, or a value is not finite.
    """
    name = type(strategy).__name__
    if parameters is None:
        raise RoundFailedError(f"round {server_round}: {name} gave no model")
    arrays = parameters_to_ndarrays(parameters)
    if [array.shape for array in arrays] != [spec.shape for spec in specs]:
        raise RoundFailedError(f"round {server_round}: {name} changed the shapes of the model")
    for layer, array in zip(names, arrays, strict=True):
        if not np.isfinite(array).all():
            raise RoundFailedError(
                f"round {server_round}: the aggregate of layer {layer} is not finite after {name}; "
                "the model of the round before stays the last good one"
            )
    return [array.astype(spec.dtype, copy=False) for array, spec in zip(arrays, specs, strict=True)]


@contextmanager
def _every_clients_metrics(strategy: Strategy, replies: Sequence[Reply]) -> Iterator[None]:
    """Let the strategy's metric function see all clients' metrics while it gets one reply."""
    function: Any = getattr(strategy, "fit_metrics_aggregation_fn", None)
    if function is None:
        yield
        return
    metrics = [(reply.result.num_examples, reply.result.metrics) for reply in replies]
    strategy.fit_metrics_aggregation_fn = lambda _: function(metrics)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        strategy.fit_metrics_aggregation_fn = function  # type: ignore[attr-defined]
