"""Run a Flower app without Ray: its messages are answered in this process, one by one."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from uuid import uuid4

from flwr.app import Context, Error, Message, RecordDict
from flwr.client import ClientApp
from flwr.common.constant import ErrorCode
from flwr.server import ServerApp
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

_RUN_ID = 1
_TASK_ID = 1
_SERVER_NODE_ID = 1
_FIRST_CLIENT_NODE_ID = 1000


def run_in_process(server_app: ServerApp, client_app: ClientApp, num_clients: int) -> None:
    """Run a ServerApp against one ClientApp that plays all clients.

    Messages, records, mods and client state are Flower's own; only the transport is a function
    call. An error in a client becomes an error reply, as everywhere in Flower. Clients run one at
    a time, so that a debugger or a notebook can follow.

    Parameters
    ----------
    server_app : ServerApp
        Classic or Message API.
    client_app : ClientApp
        Called once a message.
    num_clients : int
        Number of virtual nodes, with partition ids from 0.
    """
    # Flower keeps the identity of the process here, and makes no message without one.
    TaskIdentity.task_id, TaskIdentity.run_id = _TASK_ID, _RUN_ID
    TaskIdentity.node_id = _SERVER_NODE_ID
    grid = InProcessGrid(client_app, num_clients)
    context = Context(
        run_id=_RUN_ID, node_id=_SERVER_NODE_ID, node_config={}, state=RecordDict(), run_config={}
    )
    server_app(grid, context)


class InProcessGrid(Grid):
    """A Flower grid whose nodes live in this process.

    Parameters
    ----------
    client_app : ClientApp
        Answers every message.
    num_clients : int
        Number of nodes.
    """

    def __init__(self, client_app: ClientApp, num_clients: int) -> None:
        self._client_app = client_app
        self._run = Run.create_empty(_RUN_ID)
        # Flower's classic server sends from many threads; torch's settings are per process.
        self._one_at_a_time = threading.Lock()
        self._replies: dict[str, Message] = {}
        self._contexts = {
            _FIRST_CLIENT_NODE_ID + partition_id: Context(
                run_id=_RUN_ID,
                node_id=_FIRST_CLIENT_NODE_ID + partition_id,
                node_config={"partition-id": partition_id, "num-partitions": num_clients},
                state=RecordDict(),
                run_config={},
            )
            for partition_id in range(num_clients)
        }

    def set_run(self, run: Run) -> None:
        """Take the run's description."""
        self._run = run

    @property
    def run(self) -> Run:
        """The run's description."""
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Build a message; kept because the interface has it."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of all nodes."""
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Answer the messages at once, and keep the replies until they are pulled."""
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = str(uuid4())
            with self._one_at_a_time:
                self._replies[message.metadata.message_id] = self._answer(message)
            ids.append(message.metadata.message_id)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Hand out the replies to the given messages, each once."""
        return [self._replies.pop(key) for key in message_ids if key in self._replies]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Answer the messages and return the replies."""
        return self.pull_messages(self.push_messages(messages))

    def _answer(self, message: Message) -> Message:
        context = self._contexts[message.metadata.dst_node_id]
        try:
            return self._client_app(message, context)
        except Exception as error:  # a client's error is a reply, not the end of the run
            reason = f"{type(error).__name__}: {error}"
            return Message(
                Error(code=ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason=reason), reply_to=message
            )
