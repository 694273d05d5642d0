"""The best kappa, eta and cut layer of AdaSplit for a budget."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal

from torch import nn

from adasplit_flwr.settings import AdaSplitSettings
from adasplit_flwr.split import SplitModel, split_sequential
from strategies.budget import Budget, Limit
from strategies.planning.adasplit_costs import AdaSplitCosts
from strategies.planning.exchanges import check_samples, drawn_clients
from strategies.planning.plan import Candidate, Plan, choose, overruns
from zerofl_flwr.errors import SettingsError

KAPPAS = tuple(float(Decimal(number) / 20) for number in range(20))
"""From 0 to 0.95, in steps of 0.05."""
_MOST_ETAS = 20

Cuts = nn.Sequential | SplitModel | Mapping[str, SplitModel]


def plan_adasplit(
    model: Cuts,
    samples: Sequence[int],
    *,
    sample_shape: tuple[int, ...],
    num_classes: int,
    rounds: int,
    bytes_budget: float | None = None,
    flops_budget: float | None = None,
    client_bytes_budget: Limit = None,
    client_flops_budget: Limit = None,
    settings: AdaSplitSettings | None = None,
    kappas: Sequence[float] | None = None,
    etas: Sequence[float] | None = None,
    cuts: Sequence[int | str] | None = None,
    projection_dim: int = 64,
    batch_size: int = 32,
    full_batches: bool = False,
    clients_per_round: int | None = None,
    run: str = "run",
) -> Plan[AdaSplitSettings]:
    """Choose kappa, eta and the cut layer of AdaSplit (arXiv 2112.01637) for a budget.

    Every combination is priced, as :class:`strategies.planning.adasplit_costs.AdaSplitCosts` does.
    The plan is the one of those that fit with which the server learns from the most samples, then
    clients take the most steps; then it is the one of the fewest bytes, then multiply-adds, then
    the first of the grid. Where both numbers depend on who is drawn and picked, they are the least
    that they can be.

    Parameters
    ----------
    model : nn.Sequential, SplitModel, or mapping of str to SplitModel
        A whole network, to be cut where `cuts` say; or networks that are cut already, by the name
        of the cut.
    samples : sequence of int
        What each client trains on, in partition order.
    sample_shape : tuple of int
        Shape of a sample, without the batch.
    num_classes : int
        Of the labels.
    rounds : int
        Of the run.
    bytes_budget : float, optional
        Bytes of all messages of training, both ways; None: no limit. This and what follows are the
        limits of :class:`strategies.budget.Budget`.
    flops_budget : float, optional
        Multiply-adds of all clients and the server together, with the backward passes. Two
        floating-point operations are one of them.
    client_bytes_budget, client_flops_budget : float or mapping of int to float, optional
        Of each client, and of its own work.
    settings : AdaSplitSettings, optional
        All that is not planned; default: the method's defaults.
    kappas : sequence of float, optional
        Default: 0 to 0.95 in steps of 0.05, and of those with as many local rounds the first; 0
        alone where there is no local loss.
    etas : sequence of float, optional
        Default: one for each number of clients that may upload, 20 at most; where all upload, none.
    cuts : sequence of int or str, optional
        As for ``split_sequential``; default: wherever that can cut the network and both parts have
        something to train.
    projection_dim : int
        Of the heads that a whole network is given.
    batch_size, full_batches, clients_per_round, run
        As for :class:`strategies.planning.adasplit_costs.AdaSplitCosts`.

    Returns
    -------
    Plan
        ``settings``, with ``chosen.choice["cut"]``; costs; and all candidates.

    Raises
    ------
    SettingsError
        If no candidate fits, naming the cheapest and what it costs; or something cannot be.

    Examples
    --------
    >>> net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    >>> plan = plan_adasplit(
    ...     net, [64] * 4, sample_shape=(8,), num_classes=3, rounds=10, bytes_budget=200_000
    ... )
    >>> plan.settings.kappa, plan.settings.eta, plan.chosen.choice["cut"]
    (0.0, 1.0, 1)
    """
    base = AdaSplitSettings() if settings is None else settings
    budget = Budget(bytes_budget, flops_budget, client_bytes_budget, client_flops_budget)
    budget.check_clients(range(len(check_samples(samples))))
    drawn = drawn_clients(clients_per_round, len(samples))
    if base.client_weights == "relayed":
        drawn = len(samples)  # who uploads is picked for a pass through all
    known = tuple(kappas) if kappas is not None else _kappas(base, rounds)
    shares = tuple(etas) if etas is not None else _etas(base, drawn)
    candidates = []
    for cut, split in _splits(model, cuts, projection_dim, sample_shape):
        costs = AdaSplitCosts(
            split,
            base,
            samples,
            sample_shape=sample_shape,
            num_classes=num_classes,
            batch_size=batch_size,
            full_batches=full_batches,
            clients_per_round=clients_per_round,
            run=run,
        )
        for kappa in known:
            for eta in shares:
                chosen = replace(base, kappa=kappa, eta=eta)
                priced = costs.of(rounds, kappa=kappa, eta=eta)
                choice = {"kappa": kappa, "eta": eta, "cut": cut}
                if base.selection == "all":
                    del choice["eta"]  # which has no effect
                candidates.append(
                    Candidate(
                        choice,
                        chosen,
                        priced,
                        (priced.least_learned, priced.least_steps),
                        overruns(priced, budget),
                    )
                )
    return choose(candidates, budget)


def _kappas(settings: AdaSplitSettings, rounds: int) -> tuple[float, ...]:
    if not settings.local_loss:
        return (0.0,)
    first: dict[int, float] = {}
    for kappa in KAPPAS:
        first.setdefault(replace(settings, kappa=kappa).local_rounds(rounds), kappa)
    return tuple(first.values())


def _etas(settings: AdaSplitSettings, drawn: int) -> tuple[float, ...]:
    if settings.selection == "all":
        return (settings.eta,)
    steps = min(drawn, _MOST_ETAS)
    return tuple(_eta(settings, round(drawn * step / steps), drawn) for step in range(1, steps + 1))


def _eta(settings: AdaSplitSettings, uploads: int, drawn: int) -> float:
    """Return the shortest number that lets just so many of the drawn clients upload."""
    exact = uploads / drawn
    for places in range(1, 16):
        eta = round(exact, places)
        if 0 < eta <= 1 and replace(settings, eta=eta).uploads(drawn) == uploads:
            return eta
    return exact


def _splits(
    model: Cuts,
    cuts: Sequence[int | str] | None,
    projection_dim: int,
    sample_shape: tuple[int, ...],
) -> Iterator[tuple[int | str, SplitModel]]:
    if not isinstance(model, nn.Sequential):
        if cuts is not None:
            raise SettingsError("cuts are for a whole network; this one is cut already")
        yield from model.items() if isinstance(model, Mapping) else [("as given", model)]
        return

    def cut_at(cut: int | str) -> SplitModel:
        return split_sequential(
            model, cut, projection_dim=projection_dim, sample_shape=sample_shape
        )

    if cuts is not None:
        yield from ((cut, cut_at(cut)) for cut in cuts)
        return
    found = False
    for number, name in enumerate(list(model._modules)[:-1], start=1):
        cut = number if name.isdecimal() else name  # a name of digits is that of a place
        try:
            split = cut_at(cut)
        except SettingsError:
            continue
        if _can_train(split.client) and _can_train(split.server):
            found = True
            yield cut, split
    if not found:
        raise SettingsError("the network can be cut nowhere so that both parts have weights")


def _can_train(part: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in part.parameters())
