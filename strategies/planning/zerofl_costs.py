"""What a whole ZeroFL run costs, told from its model, settings and the sizes of its data."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from flwr.common import Scalar
from torch import nn

from strategies.planning.bill import Bill, RunCosts
from strategies.planning.exchanges import check_samples, drawn_clients
from strategies.planning.vectors import Row, most, number_size, row_of, spent
from strategies.planning.zerofl_messages import Model
from strategies.traffic import NO_BYTES, Breakdown
from zerofl_flwr.costs import step_costs
from zerofl_flwr.errors import SettingsError
from zerofl_flwr.masking_rules import Masked
from zerofl_flwr.model_arrays import array_names, get_specs
from zerofl_flwr.settings import RoundPlan, ZeroFLSettings
from zerofl_flwr.sparsify import masked_weight_names, sparsify
from zerofl_flwr.swat import sparse_layers

_FRACTIONS = ("sparsity", "mask_ratio", "activation_sparsity", "gradient_sparsity")


class ZeroFLCosts:
    """Foretells what ZeroFL runs of one model and one division of data cost.

    Parameters
    ----------
    model : nn.Module
        A plain model, or one that went through :func:`zerofl_flwr.sparsify`; copied.
    samples : sequence of int
        What each client trains on, in partition order.
    sample_shape : tuple of int
        Shape of a sample, without the batch.
    local_epochs : int
        Of a round.
    clients_per_round : int, optional
        How many clients train in a round; default: all.
    masked : callable or collection of str, optional
        Which layers train sparse, as for ``sparsify``; default: those of a model that is sparse
        already, or else as by default there.
    config : mapping of str to scalar, optional
        What the wrapped strategy puts into its messages.

    Raises
    ------
    SettingsError
        If the model fails on such samples, there is no client, or one has no samples.
    """

    def __init__(
        self,
        model: nn.Module,
        samples: Sequence[int],
        *,
        sample_shape: tuple[int, ...],
        local_epochs: int = 1,
        clients_per_round: int | None = None,
        masked: Masked | None = None,
        config: Mapping[str, Scalar] | None = None,
    ) -> None:
        self._samples = check_samples(samples)
        self._drawn = drawn_clients(clients_per_round, len(samples))
        self._epochs, self._config = local_epochs, dict(config or {})
        sparse = copy.deepcopy(model)
        if masked is not None or not sparse_layers(sparse):
            sparsify(sparse, 0.0, masked=masked)
        names, specs = array_names(sparse), get_specs(sparse)
        weights = masked_weight_names(sparse)
        self._sparse = Model(names, specs, [names.index(name) for name in weights])
        self._dense = Model(names, specs, [])
        self._downlinks: dict[object, Breakdown] = {}
        self._step = step_costs(sparse, sample_shape, layers=list(sparse_layers(sparse)))

    def of(self, settings: ZeroFLSettings, rounds: int) -> RunCosts:
        """Foretell a run.

        Parameters
        ----------
        settings : ZeroFLSettings
            The method's.
        rounds : int
            Of the run.

        Raises
        ------
        SettingsError
            If there is no round.
        """
        if type(rounds) is not int or rounds < 1:
            raise SettingsError(f"rounds is {rounds!r}; it must be a whole number from 1")
        ever_sparse = (
            *(settings.sparsity, settings.sparsity_start, settings.activation_sparsity),
            settings.gradient_sparsity,
        )
        model = self._sparse if any(ever_sparse) else self._dense
        plans: dict[object, RoundPlan] = {}
        times: Counter[object] = Counter()
        for plan in map(settings.plan, range(1, rounds + 1)):
            alike = (replace(plan, server_round=0), number_size(plan.server_round))
            plans.setdefault(alike, plan)
            times[alike] += 1
        bill = Bill(len(self._samples))
        weights_up = 0
        for key, plan in plans.items():
            weights_up += self._sparse.kept(plan) * times[key]
            self._add(bill, model, plan, times[key], sparse_downlink=settings.sparse_downlink)
        return replace(bill.costs(), weights_up=weights_up)

    def _add(
        self, bill: Bill, model: Model, plan: RoundPlan, times: int, *, sparse_downlink: bool
    ) -> None:
        """Add rounds of a plan to a bill."""
        down = self._downlink(model, plan, sparse=sparse_downlink)
        ups = {own: model.uplink(plan, own) for own in {*map(_alike, self._samples)}}
        rows = np.stack([row_of(down, ups[_alike(own)], trained=own) for own in self._samples])
        row, exact = most(rows, self._drawn)
        bill.total += self._with_work(row, plan) * times
        bill.clients += np.stack([self._with_work(own, plan) for own in rows]) * times
        bill.is_exact &= exact

    def _downlink(self, model: Model, plan: RoundPlan, *, sparse: bool) -> Breakdown:
        """Return the message to a client; how sparse it trains is said in as many bytes always."""
        alike = plan
        if not plan.frozen:
            zero = {name: 0 * getattr(plan, name) for name in _FRACTIONS}
            alike = replace(plan, server_round=0, **zero)
        key = (number_size(plan.server_round), sparse, repr(alike))
        if key not in self._downlinks:
            self._downlinks[key] = model.downlink(plan, self._config, sparse=sparse)
        return self._downlinks[key]

    def _with_work(self, row: Row, plan: RoundPlan) -> Row:
        """Return a row together with the multiply-adds that its samples take."""
        samples = spent(row).trained * self._epochs
        forward, total = self._step.sparse(plan.sparsity, plan.activation_sparsity)
        work = {
            "client_forward_ops": round(samples * forward),
            "client_ops": round(samples * total),
        }
        return row + row_of(NO_BYTES, NO_BYTES, **work)


def _alike(number: int) -> int:
    """Return the least number that is as long in a message."""
    return 1 << (number.bit_length() - 1)
