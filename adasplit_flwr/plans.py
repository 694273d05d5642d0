"""What the server tells a client: the plan of one exchange, and of one test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zerofl_flwr.errors import SettingsError
from zerofl_flwr.plan_config import Scalar, from_config, to_config

_EXCHANGE_PREFIX = "adasplit-"
_TEST_PREFIX = "adasplit-test-"
FRESH = 0
"""Round whose state a client continues from that has none yet."""


@dataclass(frozen=True)
class ExchangePlan:
    """One client's exchange; travels as scalars in the message's config.

    The message's arrays are, one after the other, a payload of client weights and a payload of
    server gradients; each is left out where its number of arrays is 0.

    Parameters
    ----------
    run : str
        Name of the run, which keys the client's saved state.
    server_round : int
        Number of the round, from 1.
    state_round : int
        Round that this client trained in last, whose state it continues from; 0: none, it starts
        from the weights that come.
    iterations : int
        Batches to take; 0: one epoch of the client's own data.
    finish : bool
        Whether to take no batch at all: the client applies the gradients that came, if any, and
        uploads its part, before that is averaged or relayed.
    upload : bool
        Whether to upload activations and labels.
    upload_weights : bool
        Whether to upload the client part and head.
    weight_arrays, gradient_arrays : int
        How many of the message's arrays belong to each payload.
    learning_rate, weight_decay : float
        Of the client's Adam.
    local_loss : bool
        Whether to train on the contrastive loss.
    temperature, activation_penalty : float
        Of the client's loss.
    precision : str
        float32 or float16, of the uploaded activations.

    Raises
    ------
    SettingsError
        If a finishing plan asks for batches or activations, or not for the client part.
    """

    run: str
    server_round: int
    state_round: int
    iterations: int
    finish: bool
    upload: bool
    upload_weights: bool
    weight_arrays: int
    gradient_arrays: int
    learning_rate: float
    weight_decay: float
    local_loss: bool
    temperature: float
    activation_penalty: float
    precision: str

    def __post_init__(self) -> None:
        """Refuse a finishing plan that is none."""
        if self.finish and (self.iterations or self.upload or not self.upload_weights):
            raise SettingsError(
                f"the plan of round {self.server_round} finishes, which takes no batch and uploads "
                f"the client part alone, but has iterations {self.iterations}, upload "
                f"{self.upload} and upload_weights {self.upload_weights}"
            )

    def to_config(self) -> dict[str, Scalar]:
        """Return the plan as Flower config entries, keys ``adasplit-...``."""
        return to_config(self, _EXCHANGE_PREFIX)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> ExchangePlan | None:
        """Read a plan back; None when the config holds none.

        Raises
        ------
        SettingsError
            If only some of the entries are there, one has a wrong type, or they cannot go together.
        """
        return from_config(cls, config, _EXCHANGE_PREFIX)


@dataclass(frozen=True)
class TestPlan:
    """One client's test of its network; travels like :class:`ExchangePlan`.

    Parameters
    ----------
    run : str
        Name of the run.
    server_round : int
        Round after which the test happens, from 0.
    state_round : int
        Round that this client trained in last; 0: never, it tests the weights that come.
    upload : bool
        Whether to upload the test activations instead of testing.
    weight_arrays, server_arrays : int
        How many of the message's arrays are the payload of client weights, and how many that of the
        client's server part.
    """

    __test__ = False  # not a test of pytest's

    run: str
    server_round: int
    state_round: int
    upload: bool
    weight_arrays: int
    server_arrays: int

    def to_config(self) -> dict[str, Scalar]:
        """Return the plan as Flower config entries, keys ``adasplit-test-...``."""
        return to_config(self, _TEST_PREFIX)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> TestPlan | None:
        """Read a plan back; None when the config holds none.

        Raises
        ------
        SettingsError
            If only some of the entries are there, or one has a wrong type.
        """
        return from_config(cls, config, _TEST_PREFIX)
