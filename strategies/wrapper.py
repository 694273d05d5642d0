"""What strategies of ours that run another one share: sampling by seed, meters, clients' tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flwr.common import EvaluateIns, EvaluateRes, FitIns, Parameters, Scalar
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import Strategy

from strategies.client_tests import ClientTestReport, read_tests
from strategies.cohort import Cohort
from strategies.downlink import GlobalModel
from strategies.initial_model import initial_model
from strategies.member import Member
from strategies.metering import Meter
from zerofl_flwr.errors import RoundFailedError, SettingsError


class Wrapper(Strategy):
    """Runs another strategy with clients that are sampled by seed, and known by partition.

    Subclasses say what of a round: how messages are made and replies read.

    Parameters
    ----------
    strategy : flwr.server.strategy.Strategy
        The one that is run. It samples, configures and evaluates as always.
    array_names : sequence of str, optional
        Names of the model's arrays.
    sparse_downlink : bool
        Whether the model goes out as CSR where that is smaller.
    seed : int
        Seeds which clients are sampled, by (seed, round).
    evaluate_every : int
        Clients test in every so many rounds.
    last_round : int or None
        And in this one.
    on_test : callable, optional
        Called with a :class:`strategies.ClientTestReport` after each test by clients.

    Raises
    ------
    SettingsError
        If `evaluate_every` is no whole number from 1.
    """

    def __init__(
        self,
        strategy: Strategy,
        *,
        array_names: Sequence[str] | None,
        sparse_downlink: bool,
        seed: int,
        evaluate_every: int,
        last_round: int | None,
        on_test: Callable[[ClientTestReport], None] | None,
    ) -> None:
        super().__init__()
        check_count("evaluate_every", evaluate_every)
        self.strategy = strategy
        self.on_test = on_test
        self.model = GlobalModel(sparse_downlink=sparse_downlink, array_names=array_names)
        self._cohort = Cohort(seed, getattr(strategy, "min_available_clients", 1))
        self._evaluate_every, self._last_round = evaluate_every, last_round
        # Of the round that is under way, and let go after it: they hold the messages that went out.
        self._meter, self._test_meter = Meter(), Meter()
        self._asked: list[Member] = []
        self._asked_to_test: list[Member] = []

    def initialize_parameters(self, client_manager: ClientManager) -> Parameters | None:
        """Take the wrapped strategy's initial model, or the first partition's.

        Raises
        ------
        ClientFailedError
            If neither has one.
        SettingsError
            If it has another number of arrays than `array_names`.
        """
        cohort = self._cohort.at(client_manager, 0, "initialize")
        parameters = initial_model(self.strategy, cohort)
        self.model.check_fits(parameters)
        return parameters

    def aggregate_evaluate(
        self,
        server_round: int,
        results: list[tuple[ClientProxy, EvaluateRes]],
        failures: list[tuple[ClientProxy, EvaluateRes] | BaseException],
    ) -> tuple[float | None, dict[str, Scalar]]:
        """Let the wrapped strategy average the clients' tests, over good ones in partition order.

        A reply whose number of samples, loss or accuracy cannot be is left out, with a warning; it
        ends nothing.

        Returns
        -------
        tuple
            The strategy's loss and metrics; and with them accuracies as means over clients, failed
            tests, and the bytes of the test's messages, which no round's report counts.
        """
        meter, self._test_meter = self._test_meter, Meter()
        asked, self._asked_to_test = self._asked_to_test, []
        report, good = read_tests(server_round, asked, meter, results, failures, self._has_trained)
        if self.on_test is not None:
            self.on_test(report)
        ordered: list[tuple[ClientProxy, EvaluateRes]] = [(a.member, a.result) for a in good]
        loss, metrics = self.strategy.aggregate_evaluate(server_round, ordered, failures)
        return loss, {**report.metrics(), **metrics}

    def evaluate(
        self, server_round: int, parameters: Parameters
    ) -> tuple[float, dict[str, Scalar]] | None:
        """Evaluate on the server, as the wrapped strategy does."""
        return self.strategy.evaluate(server_round, parameters)

    def _ask_to_train(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, FitIns]]:
        """Let the wrapped strategy choose clients and write their messages.

        Raises
        ------
        RoundFailedError
            If no client could be sampled.
        """
        self._meter = Meter()
        cohort = self._cohort.at(client_manager, server_round, "fit", self._meter)
        pairs = self.strategy.configure_fit(server_round, parameters, cohort)
        if not pairs:
            raise RoundFailedError(
                f"round {server_round}: no clients could be sampled from "
                f"{cohort.num_available()} available"
            )
        self._asked = [client for client, _ in pairs if isinstance(client, Member)]
        return pairs

    def _ask_to_test(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, EvaluateIns]]:
        """Let the wrapped strategy choose who tests; nobody does in a round that is not tested."""
        if server_round % self._evaluate_every and server_round != self._last_round:
            return []
        self._test_meter = Meter()
        cohort = self._cohort.at(client_manager, server_round, "evaluate", self._test_meter)
        pairs = self.strategy.configure_evaluate(server_round, parameters, cohort)
        self._asked_to_test = [client for client, _ in pairs if isinstance(client, Member)]
        return pairs

    def _round_is_over(self) -> None:
        self._meter, self._asked = Meter(), []

    def _has_trained(self, client: int) -> bool:
        """Say whether the network that a client tests has been trained."""
        return True


def check_count(name: str, value: object) -> None:
    """Refuse what is no whole number from 1.

    Raises
    ------
    SettingsError
        With the name of the option.
    """
    if type(value) is not int or value < 1:
        raise SettingsError(f"{name} is {value!r}; it must be a whole number from 1")
