"""AdaSplit as a Flower strategy: clients train alone, and some of them teach the server's part."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from flwr.common import (
    EvaluateIns,
    EvaluateRes,
    FitIns,
    FitRes,
    Parameters,
    Scalar,
    ndarrays_to_parameters,
)
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import Strategy

from adasplit_flwr.orchestrator import Orchestrator
from adasplit_flwr.plans import ExchangePlan, TestPlan
from adasplit_flwr.settings import AdaSplitSettings
from adasplit_flwr.split import SplitModel
from strategies.adasplit_aggregation import ExchangeAggregation
from strategies.adasplit_clients import KnownClients
from strategies.adasplit_downlink import Asked, Downlink
from strategies.adasplit_evaluation import ask_to_test, test_report
from strategies.adasplit_masks import MaskSummary, summarise_masks
from strategies.adasplit_options import (
    MAX_UPLOAD_MB,
    Participation,
    check_options,
    cut_shapes,
    settings_of,
)
from strategies.adasplit_report import AdaSplitRoundReport, idle_report
from strategies.adasplit_server import ServerTrainer, build_server
from strategies.adasplit_state import SavedState
from strategies.adasplit_turns import Turn, Turns
from strategies.adasplit_weights import ClientWeights
from strategies.budget import Budget
from strategies.client_tests import AdaSplitTestReport
from strategies.cohort import Cohort
from strategies.exchange_costs import ExchangeCosts
from strategies.state import Resumable, State
from zerofl_flwr.errors import RoundFailedError
from zerofl_flwr.model_arrays import Array
from zerofl_flwr.threads import limit_threads


class AdaSplit(Strategy):
    """Split learning in which clients train their part alone, and adapt who talks to the server.

    The network is cut (AdaSplit, arXiv 2112.01637): a client part with a head that each client
    trains on a contrastive loss of its own, and a server part that lives here, behind a mask for
    each client. In the local phase, the first ``kappa`` of the rounds, nothing is uploaded. In the
    global phase the orchestrator picks a share ``eta`` of the round's clients; these upload the
    activations and labels of their batches, from which the server part learns one batch after the
    other, across the clients in partition order. By default nothing goes back.

    Parameters
    ----------
    split : SplitModel
        The cut network with the weights that everybody starts from; copied.
    settings : AdaSplitSettings, optional
        The method's settings; or give its fields as keyword arguments, e.g. ``eta=0.4``.
    rounds : int
        Rounds of the run. A round is one exchange, or finishes some.
    sample_shape : tuple of int
        Shape of a sample, without the batch.
    num_classes : int
        Labels are below it; the server part has an output for each.
    budget : Budget, optional
        What the training may take, of bytes and multiply-adds; see ``docs/adasplit.md``.
    batch_sizes : mapping of int to sequence of int, optional
        With a budget, by partition id the samples of each batch of an epoch: what exchanges will
        cost follows from them. See :func:`adasplit_flwr.batches.epoch_sizes`.
    fraction_fit, min_fit_clients, min_available_clients
        Who trains in a round, as in Flower's FedAvg; ``eta`` picks among them.
    evaluate_every : int
        Clients test in every so many rounds, and in the last.
    fraction_evaluate : float
        Share of the available clients that test then, whether they have trained or not.
    max_batch_size : int
        Most samples that a client's batches, in training and tests, may have.
    max_upload_mb : float
        Most megabytes (10^6 bytes) that one client's activations of a message, in training and in
        tests, may take once they are dense in float32. More is refused before it is decoded.
    threads : int, optional
        CPUs that the server's training and tests use; None leaves torch's setting alone. The same
        number gives the same bits.
    run : str
        Name of the run, under which clients keep their state.
    folder : Path, optional
        Where masks go that do not fit into ``mask_memory_mb``. Without one, all stay in memory.
    seed : int
        Seeds who is sampled and picked, the masks, and the server's dropout.
    on_round : callable, optional
        Called with an :class:`AdaSplitRoundReport` after each round's training.
    on_test : callable, optional
        Called with an :class:`AdaSplitTestReport` after each test.
    **options
        Fields of :class:`adasplit_flwr.settings.AdaSplitSettings`.

    Raises
    ------
    SettingsError
        When built, for a network or options that cannot work, alone or together.

    Notes
    -----
    Clients must be :class:`adasplit_flwr.client.AdaSplitClient`. Every reply is checked before
    anything is learned; one that fails counts as a failure with its reason. The round goes on while
    a picked client delivered (any client, in the local phase), unless ``on_failure="raise"``.

    With ``client_weights`` averaged or relayed, client parts travel in both phases, in training
    and in tests. Relayed, one client trains in a round; who uploads is picked for a pass through
    all of them. See :class:`strategies.adasplit_sharing.Sharing`.

    Memory: a round's uploads are held together, in float32, while the server learns from them;
    dense float32 ones are views of Flower's replies. A test at the clients holds a server part for
    each of them, as Flower wants all messages at once: ``fraction_evaluate`` bounds that. Gradients
    that wait (``server_gradient="selected"``) are held and saved until their client trains again.

    Flower's parameters copy the whole cut network's state: client part and head (the common start,
    or what is shared), then the server part's W unmasked. What Flower hands back is not read.
    """

    def __init__(
        self,
        split: SplitModel,
        settings: AdaSplitSettings | None = None,
        *,
        rounds: int,
        sample_shape: tuple[int, ...],
        num_classes: int,
        budget: Budget | None = None,
        batch_sizes: Mapping[int, Sequence[int]] | None = None,
        fraction_fit: float = 1.0,
        min_fit_clients: int = 1,
        min_available_clients: int = 1,
        evaluate_every: int = 1,
        fraction_evaluate: float = 1.0,
        max_batch_size: int = 1024,
        max_upload_mb: float = MAX_UPLOAD_MB,
        threads: int | None = None,
        run: str = "run",
        folder: Path | None = None,
        seed: int = 0,
        on_round: Callable[[AdaSplitRoundReport], None] | None = None,
        on_test: Callable[[AdaSplitTestReport], None] | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self.settings = settings_of(settings, options)
        self._participation = Participation(
            rounds,
            fraction_fit,
            min_fit_clients,
            min_available_clients,
            evaluate_every,
            fraction_evaluate,
        )
        check_options(self.settings, self._participation, run)
        self._cut = cut_shapes(split, sample_shape, num_classes, max_batch_size, max_upload_mb)
        self._run, self._threads = run, threads
        self.on_round = on_round
        self.on_test = on_test
        self.orchestrator = Orchestrator(self.settings.gamma, seed=seed)
        self.server = build_server(split.server, self.settings, seed=seed, folder=folder)
        self.weights = ClientWeights(split.client, split.head)
        self.clients = KnownClients()
        self._turns = Turns(self.settings, self._participation, self.orchestrator, seed)
        make_costs = partial(ExchangeCosts, split, self.settings, sample_shape, num_classes, run)
        self._turns.open_ledger(budget, batch_sizes, self.clients, make_costs)
        keep = self.settings.returns_gradients
        trainer = ServerTrainer(self.server, self.orchestrator, seed=seed, keep_gradients=keep)
        self._aggregation = ExchangeAggregation(
            self.settings, self._cut, self.weights, self.clients, self._turns, trainer
        )
        self._cohort = Cohort(seed, max(min_available_clients, min_fit_clients))
        self._turn = Turn("local", [])
        self._asked: Asked[ExchangePlan] = Asked()
        self._asked_to_test: Asked[TestPlan] = Asked()
        others: dict[str, Resumable] = {
            "trainer": trainer,
            "orchestrator": self.orchestrator,
            "clients": self.clients,
            "weights": self.weights,
            **self._turns.parts(),
        }
        self._state = SavedState(self.server, others)

    def __repr__(self) -> str:
        """Name the settings that matter most."""
        chosen = self.settings
        return (
            f"AdaSplit(rounds={self._participation.rounds}, kappa={chosen.kappa}, "
            f"eta={chosen.eta}, selection={chosen.selection!r}, mask={chosen.mask!r})"
        )

    def initialize_parameters(self, client_manager: ClientManager) -> Parameters:
        """Return the state of the whole cut network as it stands."""
        return self._parameters()

    def configure_fit(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, FitIns]]:
        """Choose who trains and who of them uploads; send each its own plan.

        Where the budget holds back everybody, nobody is asked, and Flower goes on to the next
        round: the report comes from here then.

        Raises
        ------
        SettingsError
            If the round is beyond those that the strategy was built for, or there is a budget, and
            a client that `batch_sizes` does not name.
        RoundFailedError
            If not enough clients could be sampled.
        """
        self._participation.check_round(server_round)
        rounds = self._participation.rounds
        asked = self._asked = Asked()
        cohort = self._cohort.at(client_manager, server_round, "fit", asked.meter)
        turn = self._turns.next(cohort, server_round, self.settings.phase_of(server_round, rounds))
        if not turn.members and not turn.held_back:
            raise RoundFailedError(
                f"round {server_round}: not enough clients could be sampled from "
                f"{cohort.num_available()} available"
            )
        self._turn = turn
        if not turn.members and self.on_round is not None:
            self.on_round(idle_report(server_round, turn))
        rate = self.settings.learning_rate_at(server_round, rounds)
        return turn.write_all(self._downlink(server_round), rate, asked)

    def aggregate_fit(
        self,
        server_round: int,
        results: list[tuple[ClientProxy, FitRes]],
        failures: list[tuple[ClientProxy, FitRes] | BaseException],
    ) -> tuple[Parameters | None, dict[str, Scalar]]:
        """Check every reply, let the server learn, share client parts, report.

        Returns
        -------
        tuple
            The state of the whole cut network, and the round's figures.

        Raises
        ------
        RoundFailedError
            If no client that the round needs delivered, if any failed under ``on_failure="raise"``,
            or if the shared client parts are not finite.
        """
        rounds = self._participation.rounds
        self._use_threads()
        self.server.learning_rate = self.settings.learning_rate_at(server_round, rounds)
        report = self._aggregation.run(server_round, self._turn, self._asked, results, failures)
        self._asked = Asked()  # its meter holds the messages that went down
        if self.on_round is not None:
            self.on_round(report)
        return self._parameters(), report.metrics()

    def configure_evaluate(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, EvaluateIns]]:
        """Choose who tests; send each its own server part, or ask for its activations."""
        if not self._participation.tests_in(server_round):
            return []
        asked = self._asked_to_test = Asked()
        cohort = self._cohort.at(client_manager, server_round, "evaluate", asked.meter)
        downlink = self._downlink(server_round)
        return ask_to_test(asked, cohort, self._participation, downlink, self.server)

    def aggregate_evaluate(
        self,
        server_round: int,
        results: list[tuple[ClientProxy, EvaluateRes]],
        failures: list[tuple[ClientProxy, EvaluateRes] | BaseException],
    ) -> tuple[float | None, dict[str, Scalar]]:
        """Average over the clients; where nobody's test succeeded there is no loss.

        Returns
        -------
        tuple
            Mean loss over clients; and mean accuracy over clients, over those that have trained,
            bytes and failures. A test that failed is logged, and ends nothing.
        """
        self._use_threads()
        report = test_report(
            server_round, self._asked_to_test, results, failures, self._cut, self.server
        )
        self._asked_to_test = Asked()  # its meter holds the messages that went down
        if self.on_test is not None:
            self.on_test(report)
        return (report.loss if report.good else None), report.metrics()

    def evaluate(
        self, server_round: int, parameters: Parameters
    ) -> tuple[float, dict[str, Scalar]] | None:
        """Return None: nobody but a client has its part of the network."""
        return None

    def mask_summary(self) -> MaskSummary:
        """Describe the masks that have been trained so far, for pictures."""
        return summarise_masks(self.server)

    def state_arrays(self) -> State:
        """Return all that the next round depends on, for a checkpoint.

        A call says that what the call before returned is on disk: a mask store's file then drops
        what only older checkpoints needed.

        Raises
        ------
        DataError
            If the mask store's file cannot be written.
        """
        return self._state.arrays()

    def load_state_arrays(self, state: Mapping[str, Array]) -> None:
        """Continue bit for bit from what :meth:`state_arrays` returned.

        Raises
        ------
        SettingsError, DataError
            If it is another strategy's or network's, or the mask store's file is not its own.
        """
        self._state.load(state)

    def _use_threads(self) -> None:
        if self._threads is not None:  # per call, as clients of this process have their own limit
            limit_threads(self._threads)

    def _parameters(self) -> Parameters:
        shared = self.server.shared_state().values()
        return ndarrays_to_parameters([*self.weights.arrays.values(), *shared])

    def _downlink(self, server_round: int) -> Downlink:
        return Downlink(self.settings, self._run, server_round, self.clients, self.weights)
