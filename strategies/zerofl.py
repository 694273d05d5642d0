"""ZeroFL as a Flower strategy: it wraps any other one and puts sparse payloads around it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from flwr.common import EvaluateIns, FitIns, FitRes, Parameters, Scalar
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import FedAvg, Strategy

from strategies.aggregation import Aggregation
from strategies.answers import Refusal, judge, name_missing, sort_replies
from strategies.client_tests import ClientTestReport
from strategies.mask_report import MaskHistory
from strategies.replies import Failure, Reply, ReplyChecker, keep_good
from strategies.reports import RoundReport, client_reports
from strategies.state import State, load_strategy_state, prefixed, strategy_state, unprefixed
from strategies.wrapped import check_can_wrap
from strategies.wrapper import Wrapper
from zerofl_flwr.errors import RoundFailedError, SettingsError
from zerofl_flwr.model_arrays import Array
from zerofl_flwr.naming import unknown_name
from zerofl_flwr.settings import RoundPlan, ZeroFLSettings


class ZeroFL(Wrapper):
    """Federated averaging of sparse uploads, in front of any Flower strategy.

    Each round the global model goes out (as CSR where that is smaller) with the round's sparsity
    and mask ratio; clients reply with a payload of CSR arrays; each is checked, and added to one
    mean, in partition order; the wrapped strategy gets that mean as a single reply with everybody's
    samples and makes the new model of it. Section 3 of the paper; Table 2 runs it under FedAdam.

    Parameters
    ----------
    strategy : flwr.server.strategy.Strategy, optional
        The strategy to wrap; FedAvg with its defaults when left out. It samples, configures and
        evaluates as always. Strategies that look at single replies (Krum, medians, trimmed means,
        Flower's DP wrappers) need ``per_client=True``.
    settings : ZeroFLSettings, optional
        The method's settings; or give its fields as keyword arguments, e.g. ``sparsity=0.95``.
    array_names : sequence of str, optional
        Names of the model's arrays: ``list(model.state_dict())``. Replies are held against them
        from the first round on. Left out, they are learned from the first replies that have names.
    seed : int
        Seeds which clients are sampled, by (seed, round).
    evaluate_every : int
        Clients test in every so many rounds.
    last_round : int, optional
        And in this one.
    on_round : callable, optional
        Called with a :class:`strategies.reports.RoundReport` after each round's aggregation.
    on_test : callable, optional
        Called with a :class:`strategies.client_tests.ClientTestReport` after each evaluation by
        clients.
    **options
        Fields of :class:`zerofl_flwr.ZeroFLSettings`.

    Raises
    ------
    SettingsError
        When built, for settings that cannot work; or as soon as there is a model, if it has another
        number of arrays than `array_names`.

    Notes
    -----
    Clients must be :class:`zerofl_flwr.ZeroFLClient`, or any client with the mod
    :func:`zerofl_flwr.sparse_uplink`. A reply that fails its checks counts as a failure with its
    reason; the round goes on while ``min_replies`` are good (``on_failure="skip"``).

    BatchNorm statistics (arrays named ``running_mean`` and ``running_var``) take the plain mean
    also under a server optimizer, which could drive a variance below zero; integer arrays such as
    ``num_batches_tracked`` keep the server's value. The mod knows arrays by their positions only:
    where all clients use it, give `array_names`, or statistics go through the optimizer like any
    other array.

    A reply whose names are neither positions nor the known ones, in their order, is refused. While
    none are known, those of most of a round's good replies win, and of a tie those of the lowest
    partition id.

    Examples
    --------
    >>> from flwr.server.strategy import FedAvg
    >>> ZeroFL(FedAvg(fraction_fit=0.1), sparsity=0.95, mask_ratio=0.2)
    ZeroFL(FedAvg, sparsity=0.95, mask_ratio=0.2, rule='top-k-weights')
    """

    def __init__(
        self,
        strategy: Strategy | None = None,
        settings: ZeroFLSettings | None = None,
        *,
        array_names: Sequence[str] | None = None,
        seed: int = 0,
        evaluate_every: int = 1,
        last_round: int | None = None,
        on_round: Callable[[RoundReport], None] | None = None,
        on_test: Callable[[ClientTestReport], None] | None = None,
        **options: Any,
    ) -> None:
        if settings is not None and options:
            raise SettingsError(f"give settings or {sorted(options)}, not both")
        _check_known(options)
        self.settings = settings or ZeroFLSettings(**options)
        wrapped = strategy if strategy is not None else FedAvg()
        check_can_wrap(wrapped, per_client=self.settings.per_client)
        super().__init__(
            wrapped,
            array_names=array_names,
            sparse_downlink=self.settings.sparse_downlink,
            seed=seed,
            evaluate_every=evaluate_every,
            last_round=last_round,
            on_test=on_test,
        )
        self.on_round = on_round
        self.masks = MaskHistory()
        initial = getattr(wrapped, "initial_parameters", None)
        if isinstance(initial, Parameters):
            self.model.check_fits(initial)

    def __repr__(self) -> str:
        """Name the wrapped strategy and the settings that matter most."""
        chosen = self.settings
        return (
            f"ZeroFL({type(self.strategy).__name__}, sparsity={chosen.sparsity}, "
            f"mask_ratio={chosen.mask_ratio}, rule={chosen.rule!r})"
        )

    def configure_fit(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, FitIns]]:
        """Let the wrapped strategy choose clients; send them the model and the round's plan.

        Raises
        ------
        RoundFailedError
            If no client could be sampled.
        """
        plan = self.settings.plan(server_round)
        parameters = self.model.load(parameters, plan)
        pairs = self._ask_to_train(server_round, parameters, client_manager)
        return self.model.outgoing(pairs, plan)

    def aggregate_fit(
        self,
        server_round: int,
        results: list[tuple[ClientProxy, FitRes]],
        failures: list[Failure],
    ) -> tuple[Parameters | None, dict[str, Scalar]]:
        """Check, sum and hand over; report what happened.

        Returns
        -------
        tuple
            The new model, dense, in the model's dtypes; and the wrapped strategy's metrics together
            with the round's bytes, seconds, failures, non-zero ratio and mask overlap.

        Raises
        ------
        RoundFailedError
            If fewer than ``min_replies`` replies are good, if any failed under
            ``on_failure="raise"``, or if the new model would not be finite.
        """
        plan = self.settings.plan(server_round)
        replies, refusals = sort_replies(results, failures)
        checker = ReplyChecker(
            self.model.specs, plan, self.model.pattern_sizes, self.model.known_names
        )
        good, refused = keep_good(replies, checker)
        refusals = name_missing(self._asked, good, [*refusals, *refused])
        judge(
            server_round,
            len(good),
            refusals,
            min_replies=self.settings.min_replies,
            on_failure=self.settings.on_failure,
        )
        all_failures = [*failures, *(RoundFailedError(refusal.reason) for refusal in refused)]
        aggregation = Aggregation(self.strategy, self.model, checker, self.settings)
        parameters, metrics = aggregation.run(server_round, good, all_failures)
        report = self._report(plan, good, refusals)
        self._round_is_over()
        if self.on_round is not None:
            self.on_round(report)
        return parameters, {**report.metrics(), **metrics}

    def configure_evaluate(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, EvaluateIns]]:
        """Let the wrapped strategy choose who tests, in the rounds that are tested.

        They are sent the model as for training.
        """
        plan = self.settings.plan(server_round)
        pairs = self._ask_to_test(server_round, parameters, client_manager)
        return self.model.outgoing(pairs, plan)

    def state_arrays(self) -> State:
        """Return what the next round depends on: masks, patterns, and the wrapped strategy's."""
        return {
            **prefixed("wrapped", strategy_state(self.strategy)),
            **prefixed("mask", self.masks.packed),
            **prefixed("model", self.model.state_arrays()),
        }

    def load_state_arrays(self, state: Mapping[str, Array]) -> None:
        """Continue from what :meth:`state_arrays` returned."""
        load_strategy_state(self.strategy, unprefixed("wrapped", state))
        self.masks.packed = unprefixed("mask", state)
        self.model.load_state_arrays(unprefixed("model", state))

    def _report(
        self, plan: RoundPlan, good: Sequence[Reply], refusals: Sequence[Refusal]
    ) -> RoundReport:
        model = self.model
        layers = self.masks.report(model.names, model.arrays, model.masked, plan.sparsity)
        clients = client_reports(good, refusals, self._meter)
        return RoundReport(plan, clients, layers, self.masks.masks(layers))


def _check_known(options: Iterable[str]) -> None:
    known = ZeroFLSettings.__dataclass_fields__
    for name in options:
        if name not in known:
            raise SettingsError(unknown_name("ZeroFL setting", name, known))
