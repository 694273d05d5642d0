"""The model that a run starts from, which a strategy has or a client tells."""

from __future__ import annotations

from flwr.common import Code, GetParametersIns, Parameters
from flwr.server.strategy import Strategy

from strategies.cohort import Cohort
from strategies.identity import ANSWER_SECONDS
from zerofl_flwr.errors import ClientFailedError


def initial_model(strategy: Strategy, cohort: Cohort) -> Parameters:
    """Return a strategy's initial model, or the first partition's where it has none.

    Raises
    ------
    ClientFailedError
        If neither has one.
    """
    parameters = strategy.initialize_parameters(cohort)
    if parameters is not None:
        return parameters
    first = cohort.members()[0]
    answer = first.get_parameters(GetParametersIns({}), ANSWER_SECONDS, None)
    if answer.status.code != Code.OK:
        raise ClientFailedError(
            f"{first} did not tell the initial model: {answer.status.message}; "
            "give the wrapped strategy initial_parameters"
        )
    return answer.parameters
