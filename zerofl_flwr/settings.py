"""ZeroFL's settings: one frozen record for the method, and the part of it that one round sends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zerofl_flwr.errors import SettingsError
from zerofl_flwr.naming import unknown_name
from zerofl_flwr.plan_config import Scalar, from_config, to_config
from zerofl_flwr.schedule import Schedule
from zerofl_flwr.topk import exact_fraction
from zerofl_flwr.uplink import canonical_rule

AGGREGATIONS = ("all-clients", "senders")
FAILURE_POLICIES = ("skip", "raise")
_PREFIX = "zerofl-"
_DEFAULT_MASK_RATIO = 0.2


@dataclass(frozen=True)
class ZeroFLSettings:
    """Everything that ZeroFL lets its user choose; checked when it is built.

    The same names, in kebab-case, are run-config keys and command-line options. Sparsity and mask
    ratio are fractions in [0, 1] and may follow a schedule over rounds; ``mask_ratio`` equal to
    ``sparsity`` uploads every weight (plain SWAT in federated learning), ``sparsity`` 0 is FedAvg.

    Parameters
    ----------
    sparsity : float
        Share of each masked layer's weights that is left out (sp).
    sparsity_schedule : str
        constant, linear, cosine or cubic over rounds.
    sparsity_start : float, optional
        Sparsity the schedule starts from.
    sparsity_rounds : int
        Rounds the sparsity schedule takes to its final value.
    mask_ratio : float, optional
        Extra share of weights uploaded, r_mask; at most the sparsity. Default: 0.2, or the sparsity
        where that is less.
    mask_ratio_schedule : str
        constant, linear, cosine or cubic over rounds.
    mask_ratio_start : float, optional
        Mask ratio the schedule starts from.
    mask_ratio_rounds : int
        Rounds the mask-ratio schedule takes to its final value.
    activation_sparsity : float, optional
        Sparsity of activations in the weight gradient; default: the weights'.
    gradient_sparsity : float
        Sparsity of output gradients in the backward pass.
    topk_period : int
        Batches between two recomputations of a top-K threshold.
    rule : str
        Uplink rule: top-k-weights, diff-on-top-k-weights or top-k-diff.
    aggregation : str
        Denominator of the mean: all-clients (the paper) or senders.
    freeze_mask_after_round : int, optional
        Round after which zero positions stay where they are.
    sparse_downlink : bool
        Send the global model as CSR where that is smaller.
    on_failure : str
        What a refused reply does to the round: skip or raise.
    min_replies : int
        Good replies that a round needs; with fewer it raises.
    per_client : bool
        Hand every client's densified reply to the wrapped strategy.

    Raises
    ------
    SettingsError
        If a value is out of range or two values contradict each other.
    """

    sparsity: float = 0.95
    sparsity_schedule: str = "constant"
    sparsity_start: float | None = None
    sparsity_rounds: int = 0
    mask_ratio: float | None = None
    mask_ratio_schedule: str = "constant"
    mask_ratio_start: float | None = None
    mask_ratio_rounds: int = 0
    activation_sparsity: float | None = None
    gradient_sparsity: float = 0.0
    topk_period: int = 10
    rule: str = "top-k-weights"
    aggregation: str = "all-clients"
    freeze_mask_after_round: int | None = None
    sparse_downlink: bool = True
    on_failure: str = "skip"
    min_replies: int = 1
    per_client: bool = False

    def __post_init__(self) -> None:
        """Validate every field and put the rule's name in its canonical form."""
        for name in ("sparsity", "mask_ratio", "activation_sparsity", "gradient_sparsity"):
            value = getattr(self, name)
            if value is not None:
                exact_fraction(value, name, numbers_only=True)
        object.__setattr__(self, "rule", canonical_rule(self.rule))
        self._check_choices()
        sparsity, mask_ratio = self._schedules()
        if mask_ratio.final > sparsity.final > 0:
            raise SettingsError(
                f"mask_ratio {self.mask_ratio} is larger than sparsity {self.sparsity}; "
                "equal values already upload every weight"
            )

    def _check_choices(self) -> None:
        if self.aggregation not in AGGREGATIONS:
            raise SettingsError(unknown_name("aggregation", self.aggregation, AGGREGATIONS))
        if self.on_failure not in FAILURE_POLICIES:
            raise SettingsError(unknown_name("on_failure", self.on_failure, FAILURE_POLICIES))
        for name, least in (("topk_period", 1), ("min_replies", 1)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise SettingsError(f"{name} is {value!r}; it must be a whole number from {least}")
        self._check_freezing()
        if self.per_client and self.aggregation == "senders":
            raise SettingsError(
                "per_client=True hands whole replies to the wrapped strategy, which averages them "
                "itself: aggregation must stay 'all-clients'"
            )

    def _check_freezing(self) -> None:
        after = self.freeze_mask_after_round
        if after is None:
            return
        if type(after) is not int or after < 1:
            raise SettingsError(
                f"freeze_mask_after_round is {after!r}; the first round that a mask can be frozen "
                "after is 1, when the clients have named their masked layers"
            )
        if after + 1 < self.sparsity_rounds:
            raise SettingsError(
                f"freeze_mask_after_round is {after}, but the sparsity changes until round "
                f"{self.sparsity_rounds}: a mask frozen earlier would keep an earlier sparsity"
            )

    def _schedules(self) -> tuple[Schedule, Schedule]:
        sparsity = Schedule(
            self.sparsity, self.sparsity_start, self.sparsity_rounds, self.sparsity_schedule
        )
        ratio = self.mask_ratio
        mask_ratio = Schedule(
            min(_DEFAULT_MASK_RATIO, self.sparsity) if ratio is None else ratio,
            self.mask_ratio_start,
            self.mask_ratio_rounds,
            self.mask_ratio_schedule,
        )
        return sparsity, mask_ratio

    def plan(self, server_round: int) -> RoundPlan:
        """Give the settings of one round.

        Parameters
        ----------
        server_round : int
            Round number, from 1.

        Returns
        -------
        RoundPlan
            Sparsity and mask ratio of that round; a mask ratio above the round's sparsity (early
            in a ramp) is lowered to it, which uploads every weight.
        """
        sparsity_schedule, ratio_schedule = self._schedules()
        sparsity = sparsity_schedule.value(server_round)
        activations = sparsity if self.activation_sparsity is None else self.activation_sparsity
        frozen_after = self.freeze_mask_after_round
        return RoundPlan(
            server_round=server_round,
            sparsity=sparsity,
            mask_ratio=min(ratio_schedule.value(server_round), sparsity),
            activation_sparsity=activations,
            gradient_sparsity=self.gradient_sparsity,
            topk_period=self.topk_period,
            rule=self.rule,
            frozen=frozen_after is not None and server_round > frozen_after,
        )


@dataclass(frozen=True)
class RoundPlan:
    """What a client must know of one round; travels as scalars in the message's config."""

    server_round: int
    sparsity: float
    mask_ratio: float
    activation_sparsity: float
    gradient_sparsity: float
    topk_period: int
    rule: str
    frozen: bool

    def to_config(self) -> dict[str, Scalar]:
        """Return the plan as Flower config entries, keys ``zerofl-...``."""
        return to_config(self, _PREFIX)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> RoundPlan | None:
        """Read a plan back from a Flower config.

        Returns
        -------
        RoundPlan or None
            None when the config holds no ZeroFL entries: the server's strategy is another one.

        Raises
        ------
        SettingsError
            If only some of the entries are there, or one has a wrong type.
        """
        return from_config(cls, config, _PREFIX)
