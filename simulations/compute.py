"""How much a round computed: multiply-adds of clients and server, for a run's tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property

from adasplit_flwr.costs import SplitStepCosts, split_step_costs
from simulations.data import load_data
from simulations.round_rows import Report
from simulations.run_models import plain_model, split_model
from simulations.settings import RunSettings
from simulations.zerofl_parts import sparse_layer_names
from strategies import AdaSplitRoundReport, RoundReport
from strategies.adasplit_report import AdaSplitClientReport
from zerofl_flwr.costs import StepCosts, step_costs

NO_COMPUTE: dict[str, int] = {
    "client_forward_ops": 0,
    "client_ops": 0,
    "server_forward_ops": 0,
    "server_ops": 0,
}
"""Columns of ``rounds.csv`` and ``clients.csv``, where nobody trains."""


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

    def of_clients(self, report: Report) -> list[dict[str, int]]:
        """Return what each client of a round computed, and the server on what it uploaded.

        Parameters
        ----------
        report : RoundReport, AdaSplitRoundReport or BaselineRoundReport
            What the strategy told.

        Returns
        -------
        list of dict of str to int
            In the order of ``report.clients``: multiply-adds of forward passes alone in
            ``client_forward_ops`` and ``server_forward_ops``, with the backward passes in
            ``client_ops`` and ``server_ops``. A server that trains no network has 0. AdaSplit's
            clients run a batch forward twice, and backward once more, if the server's gradients of
            it come; its server counts the samples that it learned from. ZeroFL's masked layers
            count by the non-zeros of the round's sparsities.

        Raises
        ------
        SettingsError
            If the run's model cannot take a training step.
        """
        if isinstance(report, AdaSplitRoundReport):
            return [self._of_split(client) for client in report.clients]
        forward: float = self._whole.forward
        total: float = self._whole.total
        if isinstance(report, RoundReport):
            plan = report.plan
            forward, total = self._whole.sparse(plan.sparsity, plan.activation_sparsity)
        epochs = self._settings.training.local_epochs
        samples = [0 if client.failure else client.num_examples for client in report.clients]
        return [
            NO_COMPUTE
            | {
                "client_forward_ops": round(epochs * count * forward),
                "client_ops": round(epochs * count * total),
            }
            for count in samples
        ]

    def _of_split(self, client: AdaSplitClientReport) -> dict[str, int]:
        own, again, server = self._parts.own, self._parts.again, self._parts.server
        trained, returned = client.num_examples, client.gradient_samples
        return {
            "client_forward_ops": trained * own.forward + returned * again.forward,
            "client_ops": trained * own.total + returned * again.total,
            "server_forward_ops": client.server_samples * server.forward,
            "server_ops": client.server_samples * server.total,
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


def summed(clients: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Add up what clients computed: a round's columns of ``rounds.csv``."""
    total = dict(NO_COMPUTE)
    for client in clients:
        for name in total:
            total[name] += client[name]
    return total
