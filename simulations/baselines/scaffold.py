"""SCAFFOLD's client: steps against its own drift, by control variates that it keeps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from flwr.common import Scalar

from adasplit_flwr.plans import FRESH
from simulations.baselines.client import figures
from simulations.baselines.lasting import LastingClient, plan_in
from strategies.client_rounds import StatePlan
from strategies.dense_replies import ROUND
from strategies.scaffold import CONTROL, controlled
from zerofl_flwr.errors import DataError, PayloadError, SettingsError
from zerofl_flwr.fit_config import training_in
from zerofl_flwr.model_arrays import Array, array_names, get_arrays, get_specs, set_arrays
from zerofl_flwr.payload import TensorSpec

Named = dict[str, Array]


class ScaffoldClient(LastingClient):
    """A client of :class:`strategies.Scaffold`; option II of Algorithm 1 (arXiv 1910.06378).

    It trains with plain SGD on ``g_i(y) - c_i + c``. After K steps from x to y its control variate
    is ``c_i - c + (x - y) / (K learning_rate)``, the mean of the gradients that it met. What is no
    parameter that is trained, such as BatchNorm's statistics, has a control variate of zero.

    Parameters
    ----------
    *arguments, **options
        As for :class:`LastingClient`; the training is SGD without momentum, under which K steps are
        K gradients.

    Raises
    ------
    SettingsError
        If the training is with Adam or with momentum, or there is no such device.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        if self.training.optimizer != "sgd" or self.training.momentum:
            raise SettingsError(
                f"Scaffold's clients train with sgd without momentum, not with "
                f"{self.training.optimizer} and momentum {self.training.momentum:g}"
            )

    def fit(
        self, parameters: list[Array], config: dict[str, Scalar]
    ) -> tuple[list[Array], int, dict[str, Scalar]]:
        """Train for a round, and reply with the model and the change of the control variate.

        Raises
        ------
        PayloadError
            If the arrays are not a model and its control variate.
        ClientFailedError
            If this client's control variate is lost, there is no data, or training diverges.
        SettingsError, DataError
            If the config holds no plan or a bad one; if what was kept is damaged.
        """
        plan = plan_in(config, "Scaffold")
        names = array_names(self.model)
        common = self._control(parameters[len(names) :])
        set_arrays(self.model, parameters[: len(names)])
        own, steps_before = self._own(plan, common)
        rate = training_in(config, self.training).learning_rate
        outcome = self.train(config, plan.server_round, correct=self._correction(common, own))
        trained = get_arrays(self.model)
        after = dict(zip(names, trained, strict=True))
        before = dict(zip(names, parameters[: len(names)], strict=True))
        learned = {n for n, p in self.model.named_parameters() if p.requires_grad}
        distance = outcome.steps * rate
        changes = {
            name: np.asarray((before[name] - after[name]) / distance - control, control.dtype)
            if name in learned
            else np.zeros_like(control)
            for name, control in common.items()
        }
        # The server adds the same numbers to its own, so that with one client both stay the same.
        kept = {name: np.asarray(own[name] + changes[name]) for name in common}
        self.kept.keep(plan, kept, steps_before + outcome.steps)
        metrics = {**figures(outcome), ROUND: plan.server_round}
        return [*trained, *changes.values()], outcome.num_examples, metrics

    def _control(self, arrays: Sequence[Array]) -> Named:
        """Hold the server's control variate against the model."""
        expected = self._specs()
        if len(arrays) != len(expected):
            reason = f"expected {len(expected)} arrays of a control variate, got {len(arrays)}"
            raise PayloadError(reason, sender="server", field=CONTROL)
        for (name, spec), array in zip(expected.items(), arrays, strict=True):
            if (array.shape, array.dtype) != (spec.shape, spec.dtype):
                reason = f"expected {spec.dtype} {spec.shape}, got {array.dtype} {array.shape}"
                raise PayloadError(reason, sender="server", layer=name, field=CONTROL)
        return dict(zip(expected, arrays, strict=True))

    def _own(self, plan: StatePlan, common: Mapping[str, Array]) -> tuple[Named, int]:
        """Return this client's control variate, and how many steps it has taken so far."""
        if plan.state_round == FRESH:
            return {name: np.zeros_like(array) for name, array in common.items()}, 0
        state = self.kept.find(plan)
        kept = {n: TensorSpec(a.shape, a.dtype) for n, a in state.arrays.items()}
        if kept != self._specs():
            raise DataError(f"client {self.partition_id} kept the control variate of another model")
        return dict(state.arrays), state.iterations

    def _correction(self, common: Named, own: Named) -> Callable[[], None]:
        """Return what adds ``c - c_i`` to the gradients."""
        pairs = [
            (parameter, torch.tensor(common[name] - own[name]).to(parameter))
            for name, parameter in self.model.named_parameters()
            if parameter.requires_grad
        ]

        def correct() -> None:
            for parameter, difference in pairs:
                if parameter.grad is not None:
                    parameter.grad.add_(difference)

        return correct

    def _specs(self) -> dict[str, TensorSpec]:
        specs, names = get_specs(self.model), array_names(self.model)
        return {names[position]: specs[position] for position in controlled(specs)}
