"""Local training and evaluation, on numbers worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from tests.zerofl_flwr.one_layer import line, squared
from zerofl_flwr.errors import ClientFailedError, SettingsError
from zerofl_flwr.sparsify import sparsify
from zerofl_flwr.training import (
    TrainingSettings,
    _repeatable_convolutions,
    evaluate,
    seed_of,
    train_locally,
)

Batch = tuple[torch.Tensor, torch.Tensor]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"learning_rate": 0.0}, "learning_rate is 0.0; it must be a positive number"),
        ({"learning_rate": math.nan}, "learning_rate is nan"),
        ({"learning_rate_end": -0.1}, "learning_rate_end is -0.1; it must be a positive number"),
        ({"learning_rate_end": math.inf}, "learning_rate_end is inf"),
        ({"momentum": 1.0}, r"momentum is 1.0; it must be in \[0, 1\)"),
        ({"momentum": -0.1}, "momentum is -0.1"),
        ({"weight_decay": -1e-4}, "weight_decay is -0.0001; it must not be negative"),
        ({"weight_decay": math.nan}, "weight_decay is nan"),
        ({"optimizer": "adm"}, "unknown optimizer 'adm'; did you mean 'adam'"),
        ({"optimizer": "adam", "momentum": 0.9}, "momentum is 0.9, which only sgd has"),
        ({"batch_size": 0}, "batch_size is 0; it must be a whole number from 1"),
        ({"batch_size": 2.5}, "batch_size is 2.5; it must be a whole number from 1"),
        ({"local_epochs": 0}, "local_epochs is 0; it must be a whole number from 1"),
        ({"local_epochs": True}, "local_epochs is True"),
    ],
)
def test_settings_that_cannot_train_are_refused(changes: dict[str, float], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        TrainingSettings(**changes)  # type: ignore[arg-type]


def test_the_learning_rate_falls_exponentially_between_the_printed_values() -> None:
    paper = TrainingSettings(learning_rate=0.1, learning_rate_end=0.01)
    assert paper.learning_rate_at(1, 700) == 0.1
    assert paper.learning_rate_at(700, 700) == 0.01
    assert paper.learning_rate_at(350, 700) == pytest.approx(0.1 * 10 ** (-349 / 699), rel=1e-12)
    assert paper.learning_rate_at(350, 700) == pytest.approx(0.03167489, rel=1e-6)
    # Half way, by the number of steps, is the geometric mean of the two.
    assert paper.learning_rate_at(351, 701) == pytest.approx(math.sqrt(0.1 * 0.01), rel=1e-12)
    rates = [paper.learning_rate_at(t, 700) for t in range(1, 701)]
    assert rates == sorted(rates, reverse=True)


def test_the_learning_rate_stays_without_an_end_in_one_round_and_after_the_last() -> None:
    constant = TrainingSettings(learning_rate=0.1)
    assert [constant.learning_rate_at(t, 700) for t in (1, 350, 700)] == [0.1, 0.1, 0.1]
    falling = TrainingSettings(learning_rate=0.1, learning_rate_end=0.01)
    assert falling.learning_rate_at(1, 1) == 0.1
    assert falling.learning_rate_at(11, 10) == 0.01
    rising = TrainingSettings(learning_rate=0.01, learning_rate_end=0.1)
    assert rising.learning_rate_at(2, 3) == pytest.approx(math.sqrt(0.1 * 0.01), rel=1e-12)


@pytest.mark.parametrize(
    ("parts", "seed"),
    [
        ((1, 2, 3), 7192807709599564863),
        ((0, 0, 0), 3527577169254209511),
        ((-1, 2**40, 5), 1942470972239178529),
    ],
)
def test_seeds_are_the_same_on_every_machine(parts: tuple[int, ...], seed: int) -> None:
    assert seed_of(*parts) == seed


def test_neighbouring_parts_give_different_seeds() -> None:
    seeds = {seed_of(a, b, c) for a in range(8) for b in range(8) for c in range(8)}
    assert len(seeds) == 8**3
    assert all(0 <= seed < 2**63 for seed in seeds)


ONE_SAMPLE: list[Batch] = [(torch.tensor([[1.0, 1.0]]), torch.tensor([0.0]))]


@pytest.mark.parametrize(
    ("settings", "proximal_mu", "weights", "loss"),
    [
        # The output is 1 + 2 = 3, the loss 9, its gradient 2 * 3 for both weights.
        ({}, 0.0, [0.4, 1.4], 9.0),
        ({"weight_decay": 0.1}, 0.0, [1 - 0.61, 2 - 0.62], 9.0),
        # Second epoch: output 1.8, loss 3.24, gradient 3.6.
        ({"local_epochs": 2}, 0.0, [0.04, 1.04], 6.12),
        ({"local_epochs": 2, "momentum": 0.5}, 0.0, [0.4 - 0.66, 1.4 - 0.66], 6.12),
        # FedProx: 10 * (0.4 - 1) = -6 is added to the second gradient: 3.6 - 6 = -2.4.
        ({"local_epochs": 2}, 10.0, [0.64, 1.64], 6.12),
    ],
    ids=["one step", "weight decay", "two epochs", "momentum", "FedProx"],
)
def test_sgd_steps_by_hand(
    settings: dict[str, float], proximal_mu: float, weights: list[float], loss: float
) -> None:
    model = line([1.0, 2.0])
    outcome = train_locally(
        model,
        ONE_SAMPLE,
        TrainingSettings(learning_rate=0.1, **settings),  # type: ignore[arg-type]
        seed=0,
        proximal_mu=proximal_mu,
        loss_function=squared,
    )
    assert model.weight.tolist()[0] == pytest.approx(weights, abs=1e-6)
    assert outcome.loss == pytest.approx(loss, abs=1e-5)
    assert outcome.num_examples == 1
    assert outcome.seconds > 0


def test_parameters_that_need_no_gradient_stay_also_with_fedprox() -> None:
    first, second = line([1.0, 2.0]), line([1.0])
    second.weight.requires_grad_(False)
    model = nn.Sequential(first, second)
    settings = TrainingSettings(learning_rate=0.1, local_epochs=2, weight_decay=0.1)
    train_locally(model, ONE_SAMPLE, settings, seed=0, proximal_mu=1.0, loss_function=squared)
    assert second.weight.tolist() == [[1.0]]
    assert first.weight.tolist() != [[1.0, 2.0]]


def test_the_loss_is_a_mean_over_samples_and_not_over_batches() -> None:
    batches = [
        (torch.zeros(3, 2), torch.tensor([1.0, 1.0, 1.0])),
        (torch.zeros(1, 2), torch.tensor([5.0])),
    ]

    def mean_label(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return labels.mean() + 0 * outputs.sum()

    settings = TrainingSettings(local_epochs=3)
    outcome = train_locally(line([1.0, 1.0]), batches, settings, seed=0, loss_function=mean_label)
    assert outcome.loss == (3 * 1 + 1 * 5) / 4
    assert outcome.num_examples == 4


def dropout_model() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 3))


def shuffled() -> DataLoader[tuple[torch.Tensor, ...]]:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(20, 4, generator=generator)
    labels = torch.randint(3, (20,), generator=generator)
    return DataLoader(TensorDataset(inputs, labels), batch_size=4, shuffle=True)


def trained(seed: int, global_seed: int) -> torch.Tensor:
    model = dropout_model()
    torch.manual_seed(global_seed)
    train_locally(model, shuffled(), TrainingSettings(), seed=seed)
    return nn.utils.parameters_to_vector(model.parameters()).detach()


def test_shuffling_and_dropout_depend_on_the_seed_and_on_nothing_else() -> None:
    assert torch.equal(trained(seed=1, global_seed=0), trained(seed=1, global_seed=99))
    assert not torch.equal(trained(seed=1, global_seed=0), trained(seed=2, global_seed=0))


def test_training_leaves_the_global_generator_as_it_was() -> None:
    model = dropout_model()
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    train_locally(model, shuffled(), TrainingSettings(), seed=1)
    assert torch.equal(torch.rand(3), expected)


def test_training_puts_the_model_in_training_mode_and_evaluation_out_of_it() -> None:
    model = dropout_model()
    evaluate(model, shuffled())
    assert not model.training
    train_locally(model, shuffled(), TrainingSettings(), seed=1)
    assert model.training


def test_a_loss_that_is_not_finite_ends_training_at_once() -> None:
    seen: list[int] = []

    def batches() -> Iterator[Batch]:
        for number, label in enumerate([0.0, math.inf, 0.0]):
            seen.append(number)
            yield torch.tensor([[1.0, 1.0]]), torch.tensor([label])

    model = line([1.0, 2.0])
    message = "training diverged at learning rate 0.1: the loss of a batch is inf"
    with pytest.raises(ClientFailedError, match=message):
        train_locally(model, batches(), TrainingSettings(), seed=0, loss_function=squared)
    assert seen == [0, 1]
    assert model.weight.tolist()[0] == pytest.approx([0.4, 1.4])


def test_nan_in_a_sparse_layer_says_that_training_diverged() -> None:
    model = sparsify(nn.Sequential(line([1.0, 2.0])), 0.5, masked=["0"])
    batches = [(torch.tensor([[math.nan, 1.0]]), torch.tensor([0.0]))]
    with pytest.raises(ClientFailedError, match=r"diverged at learning rate 0\.1: layer 0, activ"):
        train_locally(model, batches, TrainingSettings(), seed=0, loss_function=squared)


def test_no_data_is_an_error() -> None:
    with pytest.raises(ClientFailedError, match="no training data"):
        train_locally(line([1.0]), [], TrainingSettings(), seed=0)
    with pytest.raises(ClientFailedError, match="no data to evaluate on"):
        evaluate(line([1.0]), [])


def test_evaluation_counts_over_all_samples() -> None:
    model = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.eye(2))
    inputs = torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 0.0]])
    labels = torch.tensor([0, 1, 1])
    outcome = evaluate(model, [(inputs[:2], labels[:2]), (inputs[2:], labels[2:])])
    # Cross-entropy of a lead of 1, twice right, and of a lead of 2, wrong.
    right, wrong = math.log(1 + math.exp(-1)), math.log(1 + math.exp(2))
    assert outcome.loss == pytest.approx((2 * right + wrong) / 3, rel=1e-6)
    assert outcome.accuracy == 2 / 3
    assert outcome.num_examples == 3


def test_evaluation_uses_the_sparse_weights() -> None:
    model = sparsify(nn.Sequential(nn.Linear(2, 2, bias=False)), 0.5, masked=["0"])
    dense = torch.tensor([[1.0, 0.5], [-0.5, -2.0]])
    with torch.no_grad():
        model.get_parameter("0.weight").copy_(dense)
    inputs, labels = torch.tensor([[1.0, 3.0]]), torch.tensor([0])
    outcome = evaluate(model, [(inputs, labels)])
    sparse = torch.tensor([[1.0, 0.0], [0.0, -2.0]])
    assert outcome.loss == pytest.approx(float(F.cross_entropy(inputs @ sparse.T, labels)))
    assert outcome.loss != pytest.approx(float(F.cross_entropy(inputs @ dense.T, labels)))


@pytest.mark.parametrize("before", [(False, True), (True, False), (False, False)])
def test_cudnn_is_held_to_repeatable_convolutions_and_let_go(
    before: tuple[bool, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    cudnn = torch.backends.cudnn
    monkeypatch.setattr(cudnn, "deterministic", before[0])
    monkeypatch.setattr(cudnn, "benchmark", before[1])

    def failing() -> None:
        with _repeatable_convolutions():
            assert (cudnn.deterministic, cudnn.benchmark) == (True, False)
            raise ValueError("diverged")

    with pytest.raises(ValueError, match="diverged"):
        failing()
    assert (cudnn.deterministic, cudnn.benchmark) == before
    noted = []

    def noting(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        noted.append((cudnn.deterministic, cudnn.benchmark))
        return F.cross_entropy(outputs, labels)

    train_locally(nn.Linear(4, 3), shuffled(), TrainingSettings(), seed=1, loss_function=noting)
    assert set(noted) == {before}  # there is no cuDNN on a CPU


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("device", ["cuda", "cuda:0"])
def test_training_on_cuda_is_seeded_and_restores_the_generator(device: str) -> None:
    results = []
    for global_seed in (0, 99):
        model = dropout_model().to(device)
        torch.manual_seed(global_seed)
        expected = torch.rand(3, device=device)
        torch.manual_seed(global_seed)
        train_locally(model, shuffled(), TrainingSettings(), seed=1, device=device)
        assert torch.equal(torch.rand(3, device=device), expected)
        results.append(nn.utils.parameters_to_vector(model.parameters()).detach().cpu())
    assert torch.equal(*results)


def test_without_a_seed_shuffles_follow_the_global_generator() -> None:
    model = nn.Linear(1, 2)
    orders: list[list[float]] = []

    class Noting(nn.Module):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            orders[-1] += inputs.flatten().tolist()
            outputs: torch.Tensor = model(inputs)
            return outputs

    samples = TensorDataset(torch.arange(32.0).reshape(-1, 1), torch.zeros(32, dtype=torch.long))
    loader = DataLoader(samples, batch_size=4, shuffle=True)
    noting = Noting()
    noting.add_module("model", model)
    for seed in (None, None, 3, 3):
        orders.append([])
        train_locally(noting, loader, TrainingSettings(learning_rate=1e-3), seed=seed)
    assert orders[0] != orders[1]
    assert orders[2] == orders[3]
