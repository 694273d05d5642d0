"""Something other than the default for every setting, such that they work together."""

from __future__ import annotations

from typing import Any

from simulations.setting_groups import fields_of

OTHERS: dict[str, Any] = {
    "algorithm": "zerofl",
    "rounds": 40,
    "clients-per-round": 5,
    "model": "resnet18",
    "masked": "conv2,fc1",
    "strategy": "fedadam",
    "server-learning-rate": 0.02,
    "server-momentum": 0.5,
    "server-tau": 0.01,
    "proximal-mu": 0.1,
    "evaluate-every": 2,
    "fraction-evaluate": 0.25,
    "backend": "in-process",
    "cpus-per-client": 2,
    "gpus-per-client": 0.5,
    "ray-address": "127.0.0.1:6379",
    "device": "cuda:1",
    "checkpoint-every": 3,
    "slow": "0:2,3:1.5",
    "tensorboard": True,
    "dataset": "uoft-cs/cifar10",
    "dataset-config": "plain_text",
    "classes": 5,
    "image-size": 32,
    "image-channels": 3,
    "standardise": "client",
    "partitioner": "shards",
    "alpha": 0.3,
    "num-clients": 20,
    "samples-per-client": 300,
    "partition-by": "label",
    "shards-per-client": 3,
    "classes-per-client": 1,
    "validation-from": "test",
    "validation-fraction": 0.2,
    "validation-samples": 50,
    "test-samples": 100,
    "audio-features": "mfcc",
    "image-column": "img",
    "audio-column": "audio",
    "label-column": "label",
    "seed": 7,
    "optimizer": "adam",
    "learning-rate": 0.05,
    "learning-rate-end": 0.01,
    "momentum": 0.9,
    "weight-decay": 0.0005,
    "batch-size": 16,
    "local-epochs": 2,
    "sparsity": 0.9,
    "sparsity-schedule": "cubic",
    "sparsity-start": 0.3,
    "sparsity-rounds": 20,
    "mask-ratio": 0.1,
    "mask-ratio-schedule": "linear",
    "mask-ratio-start": 0.4,
    "mask-ratio-rounds": 10,
    "activation-sparsity": 0.8,
    "gradient-sparsity": 0.1,
    "topk-period": 4,
    "rule": "top-k-diff",
    "aggregation": "senders",
    "freeze-mask-after-round": 30,
    "sparse-downlink": False,
    "on-failure": "raise",
    "min-replies": 2,
    "per-client": True,
}
ADASPLIT: dict[str, Any] = {
    "algorithm": "adasplit",
    "cut": "layer2",
    "projection-dim": 32,
    "full-batches": True,
    "server-threads": 3,
    "state-dir": "/states",
    "kappa": 0.5,
    "eta": 0.4,
    "selection": "random",
    "gamma": 0.9,
    "iterations-per-round": 3,
    "mask": "hard",
    "mask-penalty": 0.01,
    "mask-memory-mb": 64,
    "client-weights": "averaged",
    "share-every": 4,
    "local-loss": False,
    "temperature": 0.1,
    "activation-penalty": 0.01,
    "server-gradient": "selected",
    "precision": "float16",
    "inference": "server",
    "adam-learning-rate": 0.01,
    "adam-weight-decay": 0.001,
    "adam-schedule": "cosine",
    "on-failure": "raise",
    "bytes-budget": 5e7,
    "multiply-adds-budget": 1e12,
    "client-bytes-budget": "4e6",
    "client-multiply-adds-budget": "1e9",
}
BASELINE: dict[str, Any] = {
    "algorithm": "baseline",
    "strategy": "fedyogi",
    "on-failure": "raise",
    "min-replies": 3,
    "state-dir": "/states",
}
# These cannot be set together with others above.
EXCLUDED = {
    "audio-column": "image-column",
    "optimizer": "momentum",
    "per-client": "aggregation",
    "activation-penalty": "local-loss",
    "kappa": "local-loss",
    "projection-dim": "local-loss",
    "temperature": "local-loss",
    "gamma": "selection",
}
COMBINED = {
    "zerofl": OTHERS,
    "adasplit": {key: OTHERS[key] for _, key, _ in fields_of("adasplit") if key in OTHERS}
    | ADASPLIT,
    "baseline": {key: OTHERS[key] for _, key, _ in fields_of("baseline") if key in OTHERS}
    | BASELINE,
}
CASES = [(algorithm, key) for algorithm, mapping in COMBINED.items() for key in mapping]


def combined(algorithm: str, key: str) -> dict[str, Any]:
    mapping = dict(COMBINED[algorithm])
    for one, other in EXCLUDED.items():
        mapping.pop(other if key == one else one, None)
    if algorithm == "adasplit" and "local-loss" in mapping:
        mapping["kappa"] = 0.0  # a client without a loss of its own has no local phase
    return mapping
