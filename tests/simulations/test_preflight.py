"""What is refused before anything starts."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from simulations import runner
from simulations.preflight import check
from tests.simulations.small_runs import small
from zerofl_flwr.errors import DataError, LeanFlwrError, SettingsError


def no_sparse_layer(num_classes: int, in_channels: int) -> nn.Module:
    """Give a model in which nothing is masked by default: its two layers are the first and last."""
    return nn.Sequential(
        nn.Conv2d(in_channels, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 10)
    )


@pytest.fixture(autouse=True)
def a_machine_of_two_cpus_and_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1}, raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"backend": "ray"},
        {"cpus_per_client": 2},
        {"fraction_evaluate": 0.5},
        {"freeze_mask_after_round": 2},
        {"mask_ratio_schedule": "linear", "mask_ratio_start": 0.5, "mask_ratio_rounds": 3},
        {"sparsity": 0.0, "model": f"{__name__}:no_sparse_layer"},
    ],
    ids=str,
)
def test_what_can_run_passes(changes: dict[str, Any]) -> None:
    check(small(**changes))


REFUSED: list[tuple[dict[str, Any], type[LeanFlwrError], str]] = [
    ({"cpus_per_client": 3}, SettingsError, "cpus-per-client is 3, but this machine offers 2"),
    ({"gpus_per_client": 0.5}, SettingsError, r"gpus-per-client is 0\.5, but this machine has 0"),
    ({"device": "cuda"}, SettingsError, "device is 'cuda', but torch finds no CUDA device"),
    (
        {"ray_address": "127.0.0.1:6379"},
        SettingsError,
        "ray-address goes with backend ray, not in-process",
    ),
    (
        {"backend": "ray", "ray_address": "my cluster"},
        SettingsError,
        "ray-address is 'my cluster'; expected HOST:PORT",
    ),
    (
        {"mask_ratio_schedule": "linear", "mask_ratio_start": 0.5, "mask_ratio_rounds": 4},
        SettingsError,
        "mask-ratio-rounds is 4, but the run has only 3 rounds",
    ),
    (
        {"sparsity_schedule": "cubic", "sparsity_start": 0.5, "sparsity_rounds": 4},
        SettingsError,
        "sparsity-rounds is 4, but the run has only 3 rounds: the final value would never be",
    ),
    (
        {"freeze_mask_after_round": 3},
        SettingsError,
        "freeze-mask-after-round is 3, but the run has only 3 rounds: no mask would ever be",
    ),
    (
        {"fraction_evaluate": 0.5, "validation_fraction": 0.0},
        SettingsError,
        "fraction-evaluate is 0.5, but 8 of 8 clients would hold no validation samples",
    ),
    (
        {"fraction_evaluate": 0.5, "samples_per_client": 9},
        SettingsError,
        r"8 of 8 clients .* \(the first is client 0\): raise validation-fraction, now 0\.1",
    ),
    ({"num_clients": 2000, "clients_per_round": 10}, DataError, "1438"),
    ({"samples_per_client": 500}, DataError, "500"),
    ({"test_samples": 10_000}, DataError, "test_samples is 10000, but the test split has 359"),
    ({"dataset": "./no/such/folder"}, DataError, "no/such/folder"),
    ({"model": "resnet"}, SettingsError, "did you mean 'resnet18'"),
    ({"model": "no_such_package:model"}, SettingsError, "cannot import 'no_such_package'"),
    ({"model": f"{__name__}:no_sparse_layer"}, SettingsError, "no layer would be masked"),
]


@pytest.mark.parametrize(("changes", "error", "message"), REFUSED, ids=lambda value: str(value))
def test_what_cannot_run_is_refused_before_a_folder_is_made(
    tmp_path: Path, changes: dict[str, Any], error: type[LeanFlwrError], message: str
) -> None:
    folder = tmp_path / "run"
    with pytest.raises(error, match=message):
        runner.run(small(**changes), folder)
    assert not folder.exists()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_a_cluster_that_does_not_answer_is_refused(scheme: str) -> None:
    address = f"{scheme}127.0.0.1:{free_port()}"
    with pytest.raises(SettingsError, match=f"ray-address {address}: nothing answers there"):
        check(small(backend="ray", ray_address=address))


@pytest.mark.parametrize("device", ["cpu", "cuda", "cuda:1"])
def test_a_cluster_elsewhere_may_have_more_than_this_machine(device: str) -> None:
    with socket.socket() as cluster:
        cluster.bind(("127.0.0.1", 0))
        cluster.listen()
        address = f"127.0.0.1:{cluster.getsockname()[1]}"
        more: dict[str, Any] = {"cpus_per_client": 64, "gpus_per_client": 2, "device": device}
        check(small(backend="ray", ray_address=address, **more))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"device": "cuda"}, "gpus-per-client is 0, which hides every GPU"),
        (
            {"device": "cuda:1", "gpus_per_client": 0.5},
            r"Ray shows a client of gpus-per-client 0\.5 no more than 1, numbered from cuda:0",
        ),
        ({"device": "cuda:2", "gpus_per_client": 2}, "gpus-per-client 2 no more than 2"),
        ({"device": "cuda:4", "gpus_per_client": 1}, "that torch finds is cuda:3"),
        ({"device": "cuda:4", "backend": "in-process"}, "that torch finds is cuda:3"),
    ],
)
def test_a_gpu_that_clients_would_not_see_is_refused(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], message: str
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    with pytest.raises(SettingsError, match=message):
        check(small(**{"backend": "ray"} | changes))
