"""How much a round computed: multiply-adds of clients and server, for ``rounds.csv``."""

from __future__ import annotations

from functools import cached_property

from adasplit_flwr.costs import SplitStepCosts, split_step_costs
from simulations.data import load_data
from simulations.round_rows import Report
from simulations.run_models import plain_model, split_model
from simulations.settings import RunSettings
from simulations.zerofl_parts import sparse_layer_names
from strategies import AdaSplitRoundReport, RoundReport
from zerofl_flwr.costs import StepCosts, step_costs

NO_COMPUTE: dict[str, int] = {
    "client_forward_ops": 0,
    "client_ops": 0,
    "server_forward_ops": 0,
    "server_ops": 0,
}
"""Columns of ``rounds.csv``, of a round in which nobody trains."""


class ComputeMeter:
    """Counts the multiply-adds of a run's rounds: samples times what one costs.

    Costs are counted once, when they are first asked for; see :func:`zerofl_flwr.costs.step_costs`
    for what counts. Tests are left out, and so are clients whose reply was refused.

    Parameters
    ----------
    settings : RunSettings
        The run's.
    """

    def __init__(self, settings: RunSettings) -> None:
        self._settings = settings

    def columns(self, report: Report) -> dict[str, int]:
        """Return a round's multiply-adds, summed over clients.

        Parameters
        ----------
        report : RoundReport, AdaSplitRoundReport or BaselineRoundReport
            What the strategy told.

        Returns
        -------
        dict of str to int
            Of forward passes alone in ``client_forward_ops`` and ``server_forward_ops``, with the
            backward passes in ``client_ops`` and ``server_ops``. A server that trains no network
            has 0. AdaSplit's clients run a batch forward twice, and backward once more, if the
            server's gradients of it come; its server counts the samples that it learned from.
            ZeroFL's masked layers count by the non-zeros of the round's sparsities.

        Raises
        ------
        SettingsError
            If the run's model cannot take a training step.
        """
        if isinstance(report, AdaSplitRoundReport):
            return self._of_split(report)
        samples = sum(client.num_examples for client in report.good)
        samples *= self._settings.training.local_epochs
        forward: float = self._whole.forward
        total: float = self._whole.total
        if isinstance(report, RoundReport):
            plan = report.plan
            forward, total = self._whole.sparse(plan.sparsity, plan.activation_sparsity)
        return NO_COMPUTE | {
            "client_forward_ops": round(samples * forward),
            "client_ops": round(samples * total),
        }

    def _of_split(self, report: AdaSplitRoundReport) -> dict[str, int]:
        own, again, server = self._parts.own, self._parts.again, self._parts.server
        trained = sum(client.num_examples for client in report.clients)
        returned = sum(client.gradient_samples for client in report.clients)
        learned = sum(client.server_samples for client in report.clients)
        return {
            "client_forward_ops": trained * own.forward + returned * again.forward,
            "client_ops": trained * own.total + returned * again.total,
            "server_forward_ops": learned * server.forward,
            "server_ops": learned * server.total,
        }

    @cached_property
    def _whole(self) -> StepCosts:
        """Costs of the whole network, which a client trains."""
        is_zerofl = self._settings.algorithm == "zerofl"
        return step_costs(
            plain_model(self._settings),
            load_data(self._settings.data).sample_shape,
            layers=sparse_layer_names(self._settings) if is_zerofl else (),
        )

    @cached_property
    def _parts(self) -> SplitStepCosts:
        """Costs of AdaSplit's steps."""
        shape = load_data(self._settings.data).sample_shape
        return split_step_costs(split_model(self._settings), shape, self._settings.adasplit)
