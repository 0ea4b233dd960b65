import pytest

from flinkish.taskmanager.credit_ledger import CreditLedger


def test_each_frame_takes_a_credit_and_gives_it_back():
    ledger = CreditLedger(2)
    ledger.take()
    ledger.take()
    assert (ledger.available, ledger.held) == (0, 2)
    ledger.give_back(2)
    ledger.check()
    assert (ledger.available, ledger.held) == (2, 0)


def test_a_frame_without_credit_is_a_broken_invariant():
    ledger = CreditLedger(1)
    ledger.take()
    with pytest.raises(AssertionError, match="frame without credit: window=1 held=1"):
        ledger.take()


def test_a_credit_returned_twice_is_a_broken_invariant():
    ledger = CreditLedger(3)
    ledger.take()
    ledger.give_back(1)
    with pytest.raises(AssertionError, match="credit returned twice: count=1 held=0"):
        ledger.give_back(1)


def test_a_channel_has_at_least_one_credit():
    with pytest.raises(AssertionError):
        CreditLedger(0)
