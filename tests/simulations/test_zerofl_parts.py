"""The Flower parts of a run, as its settings want them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from flwr.common import FitIns, Parameters, Scalar, ndarrays_to_parameters
from flwr.server.client_manager import SimpleClientManager
from flwr.server.strategy import (
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedProx,
    FedYogi,
)
from torch.utils.data import DataLoader, TensorDataset

from simulations.batches import LazyBatches, batches
from simulations.data import FederatedData, Partition, load_data
from simulations.devices import server_device
from simulations.models import build_model
from simulations.settings import RunSettings
from simulations.simulation_settings import SimulationSettings
from simulations.zerofl_parts import initial_arrays, make_client, make_strategy
from strategies import ZeroFL
from tests.simulations.small_runs import small
from zerofl_flwr.errors import ClientFailedError, DataError, SettingsError
from zerofl_flwr.model_arrays import get_arrays
from zerofl_flwr.sparsify import masked_weight_names, sparsify
from zerofl_flwr.swat import sparse_layers
from zerofl_flwr.threads import available_cpus
from zerofl_flwr.training import evaluate


def wrapped(settings: RunSettings) -> Any:
    strategy = make_strategy(settings)
    assert isinstance(strategy, ZeroFL)
    return strategy.strategy


def samples_of(lazy: Any) -> TensorDataset:
    assert isinstance(lazy, LazyBatches)
    assert isinstance(lazy.made, DataLoader)
    assert isinstance(lazy.made.dataset, TensorDataset)
    return lazy.made.dataset


def test_a_client_holds_its_partition_and_nothing_else() -> None:
    settings = small(cpus_per_client=1)
    client = make_client(settings, 5)
    partition = load_data(settings.data).partition(5)
    assert samples_of(client.train_batches) is partition.train
    assert samples_of(client.validation_batches) is partition.validation
    assert sum(len(labels) for _, labels in client.train_batches) == len(partition.train)
    assert (client.partition_id, client.seed, client.device) == (5, 3, "cpu")
    assert client.training == settings.training
    assert torch.get_num_threads() == 1


def test_a_client_without_validation_samples_cannot_evaluate() -> None:
    assert make_client(small(validation_fraction=0.0), 0).validation_batches is None


def test_a_client_loads_its_samples_when_it_needs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[int] = []
    whole = FederatedData.partition

    def partition(data: FederatedData, partition_id: int) -> Partition:
        loaded.append(partition_id)
        return whole(data, partition_id)

    monkeypatch.setattr(FederatedData, "partition", partition)
    settings = small(seed=6)  # the other tests' models are left as they are
    client = make_client(settings, 6)
    assert client.get_properties({}) == {"partition-id": 6}
    assert loaded == []
    plan = settings.zerofl.plan(1).to_config()
    client.fit(initial_arrays(settings), {**plan, "local-epochs": 2})
    assert loaded == [6]
    client.evaluate(initial_arrays(settings), {**plan})
    assert loaded == [6, 6]
    with pytest.raises(DataError, match="there is no partition 8"):
        make_client(settings, 8)


def test_clients_of_a_process_share_one_model() -> None:
    settings = small()
    assert make_client(settings, 0).model is make_client(settings, 1).model
    assert make_client(small(sparsity=0.8), 0).model is not make_client(settings, 0).model


@pytest.mark.parametrize(
    "changes",
    [
        {"sparsity": 0.9},
        {"sparsity": 0.0, "activation_sparsity": 0.5},
        {"sparsity": 0.0, "gradient_sparsity": 0.5},
        {
            "sparsity": 0.0,
            "sparsity_schedule": "linear",
            "sparsity_start": 0.9,
            "sparsity_rounds": 2,
        },
    ],
    ids=["weights", "activations", "gradients", "a ramp down to dense"],
)
def test_a_model_that_is_ever_sparse_is_sparsified(changes: dict[str, Any]) -> None:
    model = make_client(small(**changes), 0).model
    assert masked_weight_names(model) == ["conv2.weight", "fc1.weight"]
    layer = sparse_layers(model)["fc1"]
    assert float(layer.swat.weights.sparsity) == changes["sparsity"]
    assert float(layer.swat.gradients.sparsity) == changes.get("gradient_sparsity", 0.0)


def test_a_model_that_never_is_stays_plain() -> None:
    model = make_client(small(sparsity=0.0, mask_ratio=0.0), 0).model
    assert masked_weight_names(model) == []
    assert not sparse_layers(model)


def test_initial_weights_depend_on_the_seed_alone() -> None:
    def text(**changes: Any) -> list[bytes]:
        torch.manual_seed(np.random.default_rng().integers(1000))
        return [array.tobytes() for array in initial_arrays(small(**changes))]

    assert text() == text(sparsity=0.0, backend="ray", clients_per_round=2)
    assert text() != text(seed=4)


@pytest.mark.parametrize(
    ("name", "kind", "expected"),
    [
        ("fedavg", FedAvg, {}),
        ("fedprox", FedProx, {"proximal_mu": 0.25}),
        ("fedavgm", FedAvgM, {"server_learning_rate": 0.5, "server_momentum": 0.75}),
        ("fedadam", FedAdam, {"eta": 0.5, "tau": 0.125}),
        ("fedyogi", FedYogi, {"eta": 0.5, "tau": 0.125}),
        ("fedadagrad", FedAdagrad, {"eta": 0.5, "tau": 0.125}),
    ],
)
def test_each_strategy_gets_its_settings(name: str, kind: Any, expected: dict[str, float]) -> None:
    strategy = wrapped(
        small(
            strategy=name,
            server_learning_rate=0.5,
            server_momentum=0.75,
            server_tau=0.125,
            proximal_mu=0.25,
        )
    )
    assert type(strategy) is kind
    for attribute, value in expected.items():
        assert getattr(strategy, attribute) == value
    assert strategy.min_fit_clients == 4
    assert strategy.min_available_clients == 8
    assert strategy.num_fit_clients(8) == (4, 8)


@pytest.mark.parametrize(("fraction", "clients"), [(0.0, 0), (0.01, 1), (0.25, 2), (1.0, 8)])
def test_a_share_of_the_clients_evaluates_and_never_none_by_rounding(
    fraction: float, clients: int
) -> None:
    strategy = wrapped(small(fraction_evaluate=fraction))
    assert strategy.fraction_evaluate == fraction
    assert strategy.num_evaluation_clients(8)[0] == clients


def test_clients_accuracy_is_a_mean_over_samples() -> None:
    function = wrapped(small()).evaluate_metrics_aggregation_fn
    metrics = [(10, {"accuracy": 0.5}), (30, {"accuracy": 1.0})]
    assert function(metrics) == {"client_accuracy": 35 / 40}


def test_a_rounds_config_has_its_learning_rate() -> None:
    strategy = wrapped(small(learning_rate=0.4, learning_rate_end=0.1, local_epochs=2))
    configs: list[dict[str, Scalar]] = [strategy.on_fit_config_fn(t) for t in (1, 2, 3)]
    assert [config["learning-rate"] for config in configs] == pytest.approx([0.4, 0.2, 0.1])
    assert {config["local-epochs"] for config in configs} == {2}


def test_the_global_model_is_tested_with_the_rounds_sparse_weights() -> None:
    ramp = {"sparsity_schedule": "linear", "sparsity_start": 0.1, "sparsity_rounds": 2}
    settings = small(sparsity=0.9, mask_ratio=0.0, **ramp)
    arrays = initial_arrays(settings)
    found = [wrapped(settings).evaluate_fn(t, arrays, {}) for t in (0, 1, 2, 3)]
    for server_round, sparsity in ((0, 0.5), (1, 0.5), (2, 0.9), (3, 0.9)):
        model = build_model("digits_cnn", 10, (1, 8, 8), seed=settings.seed)
        assert all(map(np.array_equal, get_arrays(model), arrays))
        sparsify(model, sparsity)
        outcome = evaluate(model, batches(load_data(settings.data).test, 256))
        loss, metrics = found[server_round]
        assert loss == pytest.approx(outcome.loss, rel=1e-6)
        assert metrics == {"accuracy": outcome.accuracy}
    assert found[1][0] != found[2][0]


def test_a_test_uses_every_core_and_leaves_the_clients_model_alone() -> None:
    settings = small(cpus_per_client=1)
    client = make_client(settings, 0)
    before = get_arrays(client.model)
    wrapped(settings).evaluate_fn(0, [array + 1 for array in initial_arrays(settings)], {})
    assert torch.get_num_threads() == available_cpus()
    assert all(map(np.array_equal, get_arrays(client.model), before))


@pytest.mark.parametrize(
    ("every", "tested"), [(1, [0, 1, 2, 3]), (2, [0, 2, 3]), (3, [0, 3]), (5, [0, 3])]
)
def test_tests_come_every_so_many_rounds_and_at_the_end(every: int, tested: list[int]) -> None:
    settings = small(evaluate_every=every)
    strategy, arrays = wrapped(settings), initial_arrays(settings)
    found = [t for t in range(4) if strategy.evaluate_fn(t, arrays, {}) is not None]
    assert found == tested


def test_gradients_alone_may_be_sparse() -> None:
    settings = small(sparsity=0.0, mask_ratio=0.0, gradient_sparsity=0.5)
    outcome = wrapped(settings).evaluate_fn(1, initial_arrays(settings), {})
    assert math.isfinite(outcome[0])


def test_the_parts_fit_together_for_one_client() -> None:
    settings = small(strategy="fedprox", proximal_mu=0.1)
    strategy = wrapped(settings)
    parameters: Parameters = ndarrays_to_parameters(initial_arrays(settings))
    [(_, instructions)] = FedProx.configure_fit(
        strategy,
        1,
        parameters,
        OneClientManager(),
    )
    assert isinstance(instructions, FitIns)
    assert instructions.config["proximal_mu"] == 0.1
    client = make_client(settings, 0)
    plan = settings.zerofl.plan(1).to_config()
    config = {**instructions.config, **plan}
    _, samples, metrics = client.fit(initial_arrays(settings), config)
    assert samples == len(samples_of(client.train_batches))
    assert math.isfinite(float(metrics["train_loss"]))
    with pytest.raises(ClientFailedError, match="diverged"):
        client.fit(initial_arrays(settings), {**plan, "learning-rate": 1e30})


class OneClientManager(SimpleClientManager):
    """Samples nobody in particular."""

    def sample(self, *arguments: Any, **options: Any) -> list[Any]:
        return ["a client"]

    def num_available(self) -> int:
        return 1


def test_clients_may_train_with_adam() -> None:
    plan = small().zerofl.plan(1).to_config()
    steps = {}
    for name in ("sgd", "adam"):
        settings = small(optimizer=name, learning_rate=1e-6, sparsity=0.0, mask_ratio=0.0, seed=8)
        client = make_client(settings, 0)
        before = initial_arrays(settings)
        client.fit(before, {**plan, "local-epochs": 1})
        pairs = zip(get_arrays(client.model), before, strict=True)
        steps[name] = max(abs(after - array).max() for after, array in pairs)
    # Adam's steps are of the learning rate's size whatever the gradients are.
    assert steps["sgd"] < 2e-6 < 3e-6 < steps["adam"]


def test_masked_layers_can_be_chosen_by_name() -> None:
    # Another seed than the other tests': models are kept per settings within a process.
    model = make_client(small(masked="conv2, fc1"), 0).model
    assert masked_weight_names(model) == ["conv2.weight", "fc1.weight"]
    with pytest.raises(SettingsError, match=r"conv9.*did you mean 'conv[12]'|conv9.*nearest"):
        make_client(small(masked="conv9"), 0)


@pytest.mark.parametrize(
    ("strategy", "given", "used"),
    [("fedadam", None, 0.01), ("fedyogi", None, 0.01), ("fedadagrad", 0.3, 0.3)],
)
def test_server_learning_rates_suit_their_strategy(
    strategy: str, given: float | None, used: float
) -> None:
    assert wrapped(small(strategy=strategy, server_learning_rate=given)).eta == used


def test_fedavgm_steps_fully_by_default() -> None:
    assert wrapped(small(strategy="fedavgm")).server_learning_rate == 1.0


def test_batch_norm_over_single_pixels_trains_on_any_number_of_samples() -> None:
    settings = small(model="resnet18", num_clients=10, samples_per_client=143, rounds=1)
    client = make_client(settings, 0)
    assert len(load_data(settings.data).partition(0).train) % 32 == 1
    plan = settings.zerofl.plan(1).to_config()
    _, count, _ = client.fit(initial_arrays(settings), {**plan, "local-epochs": 1})
    assert count == 129


def test_the_server_tests_where_clients_train_or_on_the_cpu_of_a_clusters_driver(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)

    def device(name: str, address: str | None) -> str:
        return server_device(SimulationSettings(device=name, ray_address=address))

    assert [device(name, None) for name in ("cpu", "cuda", "cuda:1")] == ["cpu", "cuda", "cuda:1"]
    assert [device(name, "auto") for name in ("cpu", "cuda", "cuda:1")] == ["cpu", "cuda", "cpu"]
