"""The best sparsity and mask ratio of ZeroFL for a budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from flwr.common import Scalar
from torch import nn

from strategies.budget import Budget, Limit
from strategies.planning.exchanges import check_samples
from strategies.planning.plan import Candidate, Plan, choose, overruns
from strategies.planning.zerofl_costs import ZeroFLCosts
from zerofl_flwr.masking_rules import Masked
from zerofl_flwr.settings import ZeroFLSettings

SPARSITIES = (0.0, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98)
MASK_RATIOS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5)


def plan_zerofl(
    model: nn.Module,
    samples: Sequence[int],
    *,
    sample_shape: tuple[int, ...],
    rounds: int,
    bytes_budget: float | None = None,
    flops_budget: float | None = None,
    client_bytes_budget: Limit = None,
    client_flops_budget: Limit = None,
    settings: ZeroFLSettings | Callable[[float, float], ZeroFLSettings] | None = None,
    sparsities: Sequence[float] = SPARSITIES,
    mask_ratios: Sequence[float] = MASK_RATIOS,
    local_epochs: int = 1,
    clients_per_round: int | None = None,
    masked: Masked | None = None,
    config: Mapping[str, Scalar] | None = None,
) -> Plan[ZeroFLSettings]:
    """Choose sparsity and mask ratio of ZeroFL (arXiv 2208.02507) for a budget.

    Every pair is priced whose mask ratio is at most the sparsity; and each sparsity with a mask
    ratio as large, which uploads all. The plan is the one of those that fit with which a client
    uploads the most weights over the run, then trains the least sparse; then it is the one of the
    fewest bytes, then multiply-adds, then the first of the grid.

    Parameters
    ----------
    model : nn.Module
        As for :class:`strategies.planning.zerofl_costs.ZeroFLCosts`.
    samples : sequence of int
        What each client trains on, in partition order.
    sample_shape : tuple of int
        Shape of a sample, without the batch.
    rounds : int
        Of the run.
    bytes_budget, flops_budget, client_bytes_budget, client_flops_budget
        As for :func:`strategies.planning.adasplit_plan.plan_adasplit`; ZeroFL's server trains
        nothing. Multiply-adds of sparse layers count by their non-zeros.
    settings : ZeroFLSettings or callable, optional
        All that is not planned; default: the method's defaults. A schedule of the sparsity goes to
        the planned one. Or a function that makes settings of a sparsity and a mask ratio, where
        more depends on these.
    sparsities, mask_ratios : sequence of float
        The grid.
    local_epochs, clients_per_round, masked, config
        As for :class:`strategies.planning.zerofl_costs.ZeroFLCosts`.

    Returns
    -------
    Plan
        ``settings``, costs, and all candidates.

    Raises
    ------
    SettingsError
        If no candidate fits, naming the cheapest and what it costs; or something cannot be.
    """
    base = ZeroFLSettings() if settings is None else settings

    def settings_with(sparsity: float, ratio: float) -> ZeroFLSettings:
        if isinstance(base, ZeroFLSettings):
            return replace(base, sparsity=sparsity, mask_ratio=ratio)
        return base(sparsity, ratio)

    budget = Budget(bytes_budget, flops_budget, client_bytes_budget, client_flops_budget)
    budget.check_clients(range(len(check_samples(samples))))
    costs = ZeroFLCosts(
        model,
        samples,
        sample_shape=sample_shape,
        local_epochs=local_epochs,
        clients_per_round=clients_per_round,
        masked=masked,
        config=config,
    )
    candidates = []
    for sparsity in sparsities:
        for ratio in sorted({*(r for r in mask_ratios if r < sparsity), sparsity}):
            chosen = settings_with(sparsity, ratio)
            priced = costs.of(chosen, rounds)
            candidates.append(
                Candidate(
                    {"sparsity": sparsity, "mask_ratio": ratio},
                    chosen,
                    priced,
                    (priced.weights_up, -sparsity),
                    overruns(priced, budget),
                )
            )
    return choose(candidates, budget)
