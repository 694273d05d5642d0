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
)
from flwr.server.strategy import (
    Bulyan,
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    DPFedAvgFixed,
    FaultTolerantFedAvg,
    FedAvgAndroid,
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
    DPFedAvgFixed,  # DPFedAvgAdaptive is a subclass
    FaultTolerantFedAvg,  # counts how many of the clients replied
    FedMedian,
    FedTrimmedAvg,
    Krum,
    QFedAvg,
)
_NOT_FOR_WEIGHTS: dict[type[Strategy], str] = {
    FedXgbBagging: "aggregates boosted trees, not weights",
    FedXgbCyclic: "aggregates boosted trees, not weights",
    FedXgbNnAvg: "aggregates boosted trees, not weights",
    FedAvgAndroid: "reads raw bytes, not numpy arrays",
}


def check_can_wrap(strategy: Strategy, *, per_client: bool) -> None:
    """Refuse a strategy that could not work behind ZeroFL.

    Raises
    ------
    SettingsError
        Naming the strategy and what to change.
    """
    name = type(strategy).__name__
    if not isinstance(strategy, Strategy):
        raise SettingsError(f"ZeroFL wraps a flwr.server.strategy.Strategy; got {strategy!r}")
    for kind, reason in _NOT_FOR_WEIGHTS.items():
        if isinstance(strategy, kind):
            raise SettingsError(f"{name} {reason}: ZeroFL cannot wrap it")
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
    combined = FitRes(Status(Code.OK, "mean"), _handed_over(mean), total, {})
    with _every_clients_metrics(strategy, replies):
        try:
            return strategy.aggregate_fit(
                server_round, [(replies[0].member, combined)], list(failures)
            )
        except KeyError as error:
            raise RoundFailedError(
                f"round {server_round}: {type(strategy).__name__}.aggregate_fit found no {error}. "
                "ZeroFL hands it the clients' mean as one reply without metrics: read them in "
                "fit_metrics_aggregation_fn, or pass per_client=True"
            ) from error


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
                _handed_over(arrays),
                reply.result.num_examples,
                reply.result.metrics,
            ),
        )
        for reply, arrays in zip(replies, dense, strict=True)
    ]
    return strategy.aggregate_fit(server_round, results, list(failures))  # type: ignore[arg-type]


def in_own_dtypes(arrays: Sequence[Array], specs: Sequence[TensorSpec], origin: str) -> list[Array]:
    """Cast a strategy's arrays back to the model's dtypes (FedAdam returns float64).

    What does not fit becomes infinite without a warning: see :func:`check_finite`.

    Raises
    ------
    RoundFailedError
        If the shapes are not the model's; names `origin`, where the arrays come from.
    """
    came, expected = [array.shape for array in arrays], [spec.shape for spec in specs]
    if came != expected:
        raise RoundFailedError(f"{origin} has shapes {came}; expected the model's {expected}")
    with np.errstate(over="ignore", invalid="ignore"):
        return [
            array.astype(spec.dtype, copy=False) for array, spec in zip(arrays, specs, strict=True)
        ]


def check_finite(arrays: Sequence[Array], names: Sequence[str], origin: str) -> None:
    """Refuse arrays that hold NaN or infinity.

    Raises
    ------
    RoundFailedError
        Naming `origin`, where the arrays come from, and the first such layer.
    """
    for name, array in zip(names, arrays, strict=True):
        if not np.isfinite(array).all():
            raise RoundFailedError(
                f"{origin} is not finite in layer {name}; "
                "the model of the round before stays the last good one"
            )


def _handed_over(arrays: Sequence[Array]) -> Parameters:
    """Serialize arrays in dtypes that strategies can compute with, float32 and int64 at least.

    In half precision, and in the roots that numpy takes of bytes, a server optimizer's small
    constants vanish; and bools cannot be subtracted.
    """
    return ndarrays_to_parameters(
        [
            array.astype(
                np.promote_types(array.dtype, np.float32)
                if np.issubdtype(array.dtype, np.floating)
                else np.int64,
                copy=False,
            )
            for array in arrays
        ]
    )


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
