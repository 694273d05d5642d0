"""Looks on while AdaSplit's clients apply the server's gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from adasplit_flwr.local_trainer import LocalTrainer, StepOutcome
from strategies import AdaSplit
from zerofl_flwr.model_arrays import Array


class Witness:
    """Sees every gradient that is applied, and compares: the weights that uploaded, and whose."""

    def __init__(self, patch: pytest.MonkeyPatch, strategy: AdaSplit) -> None:
        self.faults: list[str] = []
        self.applied = 0
        self._uploaded: dict[tuple[int, int], bytes] = {}
        self._sent: dict[int, set[bytes]] = {}
        step, apply, learn = (
            LocalTrainer.step,
            LocalTrainer.apply_gradient,
            strategy.server.train_batch,
        )

        def stepped(
            trainer: LocalTrainer, inputs: torch.Tensor, labels: Any, plan: Any, iteration: int
        ) -> StepOutcome:
            outcome = step(trainer, inputs, labels, plan, iteration)
            self._uploaded[trainer._partition_id, iteration] = outcome.activations.numpy().tobytes()
            return outcome

        def applied(
            trainer: LocalTrainer, inputs: torch.Tensor, gradient: Array, plan: Any, iteration: int
        ) -> None:
            client = trainer._partition_id
            with torch.no_grad():
                now = trainer._client(inputs).numpy().tobytes()
            if now != self._uploaded[client, iteration]:
                self.faults.append(f"client {client}, batch {iteration}: other weights")
            if gradient.tobytes() not in self._sent[client]:
                self.faults.append(f"client {client}, batch {iteration}: another's gradient")
            self.applied += 1
            apply(trainer, inputs, gradient, plan, iteration)

        def learned(client: int, *args: Any, **options: Any) -> Any:
            outcome = learn(client, *args, **options)
            assert outcome.gradient is not None
            self._sent.setdefault(client, set()).add(outcome.gradient.numpy().tobytes())
            return outcome

        patch.setattr(LocalTrainer, "step", stepped)
        patch.setattr(LocalTrainer, "apply_gradient", applied)
        patch.setattr(strategy.server, "train_batch", learned)
