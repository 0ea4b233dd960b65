"""Credits of one channel: how many frames may still travel.

A channel has a window of ``window`` frames.  Each end keeps a ledger of its own (a channel inside
one slot shares one): the sender calls ``take`` for each frame that it sends and ``give_back`` for
the credits that return; the receiver calls ``take`` for each frame that arrives and ``give_back``
for those that it has taken out of its queue.

Invariants, between any two moves::

    0 <= available <= window
    available + held == window

The receiver's ``available`` is never below the sender's, because credits travel: so a frame that
finds the receiver's ledger empty was sent without credit, which is a broken peer.
"""

from __future__ import annotations


class CreditLedger:
    """Counts frames.

    >>> ledger = CreditLedger(window=2)
    >>> ledger.take(); ledger.take(); ledger.available
    0
    >>> ledger.give_back(1); ledger.available
    1
    """

    __slots__ = ("window", "available", "held")

    def __init__(self, window: int):
        assert window >= 1, f"a channel without credits never moves: window={window}"
        self.window = window
        self.available = window
        self.held = 0

    def take(self) -> None:
        """One frame is on its way (sender) or in the queue (receiver)."""
        assert self.available > 0, f"frame without credit: window={self.window} held={self.held}"
        self.available -= 1
        self.held += 1

    def give_back(self, count: int) -> None:
        """``count`` frames have left the receiver's queue."""
        assert 0 < count <= self.held, f"credit returned twice: count={count} held={self.held}"
        self.held -= count
        self.available += count

    def check(self) -> None:
        """Assert what holds between any two moves."""
        assert 0 <= self.available <= self.window, (self.available, self.window)
        assert self.available + self.held == self.window, (self.available, self.held, self.window)
