"""Finding the JobManager: the one place where connecting waits."""

from __future__ import annotations

import socket
from typing import Any, Callable, Optional, Sequence

from flinkish.errors import AuthenticationError, ConnectionLostError
from flinkish.shell.connections import Address, Connection, address_text, connect
from flinkish.shell.event_loop import EventLoop, TimerHandle


def wait_connected(
    loop: EventLoop,
    addresses: Sequence[Address],
    secret: bytes,
    role: str,
    timeout_ms: int,
    *,
    what: str = "could not connect to the JobManager",
    stagger_ms: int = 300,
    retry_ms: int = 200,
    should_stop: Callable[[], bool] = lambda: False,
    **options: Any,
) -> Connection:
    """Turn the loop until one of the addresses has proved the secret.

    They are tried in order; one that does not answer within `stagger_ms` does not hold up the next.
    Those that fail are tried again until `timeout_ms`, but a peer that lacks the secret is not.
    `options` may hold `on_message` and `on_frame`; `on_close` is for the caller to set on the result,
    before the loop turns again.

    Raises:
        ConnectionLostError: none answered; it lists each address with its last failure.
        AuthenticationError: all that answered lack the secret.
    """
    failures: dict[Address, ConnectionLostError] = {}
    attempts: dict[Address, Connection] = {}
    winner: list[Connection] = []
    hopeless: set[Address] = set()
    expired = [False]
    deadline = loop.call_later(timeout_ms, expired.__setitem__, 0, True)

    def start(address: Address) -> None:
        if winner or expired[0] or address in attempts:
            return

        def on_ready(connection: Connection) -> None:
            if winner:
                connection.close()
            else:
                winner.append(connection)

        def on_close(connection: Connection, error: Optional[ConnectionLostError]) -> None:
            attempts.pop(address, None)
            if error is not None:
                failed(address, error)

        try:
            attempts[address] = connect(
                loop,
                address,
                secret,
                role,
                timeout_ms=timeout_ms,
                on_ready=on_ready,
                on_close=on_close,
                **options,
            )
        except ConnectionLostError as error:
            failed(address, error)

    def failed(address: Address, error: ConnectionLostError) -> None:
        failures[address] = error
        if isinstance(error, AuthenticationError):
            hopeless.add(address)
        else:
            timers.append(loop.call_later(retry_ms, start, address))

    timers: list[TimerHandle] = []
    for index, address in enumerate(addresses):
        timers.append(loop.call_later(index * stagger_ms, start, address))
    try:
        while not winner and not expired[0] and len(hopeless) < len(set(addresses)) and not should_stop():
            loop.run_once(100)
    finally:
        deadline.cancel()
        for timer in timers:
            timer.cancel()
        for connection in list(attempts.values()):
            if not winner or connection is not winner[0]:
                connection.on_close = None
                connection.close()
    if winner:
        connection = winner[0]
        connection.on_ready = connection.on_close = None
        if not connection.closed:
            return connection
        failures[addresses[0]] = ConnectionLostError(what, why="it closed the connection at once")
    tried = ", ".join(
        f"{address_text(address)} ({failures[address].why if address in failures else 'no answer'})"
        for address in addresses
    )
    all_refused = bool(addresses) and len(hopeless) == len(set(addresses))
    raise (AuthenticationError if all_refused else ConnectionLostError)(
        what,
        where=f"this machine is {socket.gethostname()}",
        why=f"tried for {timeout_ms} ms: {tried or 'no address was given'}",
        do="check that this machine can reach the driver on one of these addresses (firewall, container network)",
        addresses=tuple(addresses),
    )
