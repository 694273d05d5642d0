"""The client that trains by itself: network and optimizer stay with it."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from flwr.common import Scalar

from adasplit_flwr.plans import FRESH
from simulations.baselines.client import figures
from simulations.baselines.lasting import LastingClient, plan_in
from simulations.baselines.optimizer_state import load_optimizer, optimizer_arrays
from strategies.client_rounds import StatePlan
from strategies.dense_replies import ROUND
from zerofl_flwr.errors import DataError, PayloadError
from zerofl_flwr.fit_config import training_in
from zerofl_flwr.model_arrays import Array, array_names, get_arrays, set_arrays
from zerofl_flwr.training import new_optimizer

_MODEL = "model/"


class AloneClient(LastingClient):
    """A client of :class:`strategies.Alone`; see :class:`LastingClient` for what it is given."""

    def fit(
        self, parameters: list[Array], config: dict[str, Scalar]
    ) -> tuple[list[Array], int, dict[str, Scalar]]:
        """Train on for a round, and reply without any array.

        Raises
        ------
        PayloadError
            If this client is to begin, and no model came or another one.
        ClientFailedError
            If its network is lost, there is no data, or training diverges.
        SettingsError, DataError
            If the config holds no plan or a bad one; if what was kept is damaged.
        """
        plan = plan_in(config, "Alone")
        named = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        optimizer = new_optimizer(named.values(), training_in(config, self.training))
        steps = self.resume(plan, parameters, optimizer)
        outcome = self.train(config, plan.server_round, optimizer=optimizer)
        network = dict(zip(array_names(self.model), get_arrays(self.model), strict=True))
        kept = {_MODEL + name: array for name, array in network.items()}
        self.kept.keep(plan, kept | optimizer_arrays(optimizer, named), steps + outcome.steps)
        return [], outcome.num_examples, {**figures(outcome), ROUND: plan.server_round}

    def evaluate(
        self, parameters: list[Array], config: dict[str, Scalar]
    ) -> tuple[float, int, dict[str, Scalar]]:
        """Test this client's own network, or the common start that came; as :meth:`fit`."""
        self.resume(plan_in(config, "Alone"), parameters)
        return self.test()

    def resume(
        self,
        plan: StatePlan,
        parameters: list[Array],
        optimizer: torch.optim.Optimizer | None = None,
    ) -> int:
        """Bring the network, and an optimizer, to where this client's training stands.

        Returns
        -------
        int
            Batches trained so far.
        """
        if plan.state_round == FRESH:
            set_arrays(self.model, parameters)
            return 0
        if parameters:
            reason = f"{len(parameters)} arrays came for a client with a network of its own"
            raise PayloadError(reason, sender="server", field="arrays")
        state = self.kept.find(plan)
        try:
            self._load(state.arrays, optimizer)
        except (KeyError, PayloadError, ValueError) as error:
            raise DataError(
                f"client {self.partition_id} kept another network than this: {error}"
            ) from error
        return state.iterations

    def _load(self, arrays: Mapping[str, Array], optimizer: torch.optim.Optimizer | None) -> None:
        set_arrays(self.model, [arrays[_MODEL + name] for name in array_names(self.model)])
        if optimizer is not None:
            named = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
            load_optimizer(optimizer, named, arrays)
