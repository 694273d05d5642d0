"""The metrics of a client's reply to an exchange, for the client and for who foretells its size."""

from __future__ import annotations

from collections.abc import Mapping

from flwr.common import Scalar


def exchange_metrics(
    *,
    loss: float,
    seconds: float,
    memory: Mapping[str, float],
    iterations: int,
    activation_arrays: int,
    server_round: int,
) -> dict[str, Scalar]:
    """Name what a client tells the server with its reply.

    Parameters
    ----------
    loss : float
        Mean contrastive loss per sample.
    seconds : float
        What the exchange took.
    memory : mapping of str to float
        As :func:`zerofl_flwr.memory.memory_metric` returns it.
    iterations : int
        Batches taken.
    activation_arrays : int
        Arrays of the reply that belong to the payload of activations.
    server_round : int
        The round that it replies to.
    """
    return {
        "train_loss": loss,
        "train_seconds": seconds,
        **memory,
        "iterations": iterations,
        "activation_arrays": activation_arrays,
        "round": server_round,
    }
