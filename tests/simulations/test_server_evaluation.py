"""The test of a global model on the server."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from simulations import server_evaluation
from simulations.data import load_data
from simulations.server_evaluation import evaluate_globally
from simulations.settings import RunSettings
from zerofl_flwr.threads import available_cpus

SETTINGS = RunSettings.from_mapping({"num-clients": 4, "clients-per-round": 2, "test-samples": 50})


class OneAnswer(nn.Module):
    """Always says the same class, with a fixed certainty."""

    def __init__(self, answer: int) -> None:
        super().__init__()
        self.answer = answer

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        scores = torch.zeros(len(inputs), 10)
        scores[:, self.answer] = 2.0
        return scores


@pytest.mark.parametrize("answer", [0, 7])
def test_right_answers_are_counted_on_the_joint_test_data(
    answer: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []
    monkeypatch.setattr(server_evaluation, "limit_threads", threads.append)
    labels = load_data(SETTINGS.data).test.tensors[1]
    assert len(labels) == 50
    right = float((labels == answer).float().mean())
    loss, metrics = evaluate_globally(OneAnswer(answer), SETTINGS)
    assert metrics == {"accuracy": pytest.approx(right)}
    # -log of exp(2) / (exp(2) + 9) where it is right, and of 1 / (exp(2) + 9) elsewhere.
    assert loss == pytest.approx(math.log(math.exp(2) + 9) - 2 * right, abs=1e-6)  # float32
    assert threads == [available_cpus()]
