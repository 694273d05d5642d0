"""The mean of whole models is Flower's, bit for bit."""

from __future__ import annotations

import numpy as np
from flwr.common import FitRes
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy.aggregate import aggregate_inplace

from strategies.dense_mean import mean_model
from strategies.member import Member
from tests.strategies.dense_federation import fit_res
from tests.strategies.federation import Node, f32, same_bits


def test_the_mean_is_flowers_bit_for_bit() -> None:
    generator = np.random.default_rng(0)
    models = [[generator.normal(size=(7, 5)).astype(np.float32)] for _ in range(5)]
    examples = [37, 5, 64, 8, 21]
    results: list[tuple[ClientProxy, FitRes]] = [
        (Member(Node(p), p), fit_res(model, count))
        for p, (model, count) in enumerate(zip(models, examples, strict=True))
    ]
    mean = mean_model([np.zeros((7, 5), np.float32)], zip(models, examples, strict=True), 135)
    assert same_bits(mean, aggregate_inplace(results))
    assert np.abs(mean[0]).max() > 0.1


def test_integers_keep_the_value_of_the_model_before() -> None:
    current = [f32([0.0]), np.array(7, np.int64)]
    models = [([f32([value]), np.array(9, np.int64)], 1) for value in (1.0, 4.0)]
    mean = mean_model(current, models, 2)
    assert same_bits(mean, [f32([2.5]), np.array(7, np.int64)])


def test_what_overflows_is_infinite_and_no_warning() -> None:
    huge = np.float32(3e38)
    models = [([np.full(2, huge)], 1), ([np.full(2, huge)], 1)]
    assert np.isinf(mean_model([f32([0, 0])], models, 1)[0]).all()
