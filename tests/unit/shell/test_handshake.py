"""The handshake as a pure machine: only two holders of the secret, in the right roles, pass."""

import pytest

from flinkish.shell.handshake import KIND_HELLO, KIND_PROOF, Handshake, HandshakeRefused

SECRET = bytes(range(32))


def side(initiator, secret=SECRET, role="slot", nonce=None):
    return Handshake(secret, initiator, role, nonce or (b"i" if initiator else b"a") * 32)


def run(one, other):
    proof = other.receive(KIND_HELLO, one.hello())
    answer = one.receive(KIND_HELLO, other.hello())
    other.receive(KIND_PROOF, answer)
    one.receive(KIND_PROOF, proof)
    return one.authenticated and other.authenticated


def test_two_holders_of_the_secret_pass():
    assert run(side(True), side(False))


def test_another_secret_is_refused_by_both_sides():
    one, other = side(True), side(False, secret=b"x" * 32)
    proof = other.receive(KIND_HELLO, one.hello())
    answer = one.receive(KIND_HELLO, other.hello())
    with pytest.raises(HandshakeRefused, match="secret"):
        other.receive(KIND_PROOF, answer)
    with pytest.raises(HandshakeRefused, match="secret"):
        one.receive(KIND_PROOF, proof)


def test_a_proof_for_one_service_is_worth_nothing_at_another():
    with pytest.raises(HandshakeRefused, match="secret"):
        run(side(True, role="slot"), side(False, role="job-manager"))


def test_two_initiators_refuse_each_other():
    with pytest.raises(HandshakeRefused, match="secret"):
        run(side(True), side(True, nonce=b"b" * 32))


def test_a_peer_that_mirrors_what_it_gets_is_refused():
    one = side(True)
    with pytest.raises(HandshakeRefused, match="own nonce"):
        one.receive(KIND_HELLO, one.hello())


def test_our_own_proof_sent_back_is_refused():
    one, other = side(True), side(False)
    proof = one.receive(KIND_HELLO, other.hello())
    with pytest.raises(HandshakeRefused, match="secret"):
        one.receive(KIND_PROOF, proof)


def test_a_recorded_handshake_is_refused_because_the_nonce_is_fresh():
    recorded, acceptor = side(True), side(False)
    acceptor.receive(KIND_HELLO, recorded.hello())
    proof = recorded.receive(KIND_HELLO, acceptor.hello())
    later = side(False, nonce=b"n" * 32)
    later.receive(KIND_HELLO, recorded.hello())
    with pytest.raises(HandshakeRefused, match="secret"):
        later.receive(KIND_PROOF, proof)


@pytest.mark.parametrize("kind", [0, 1, 3, KIND_PROOF])
def test_any_other_frame_before_the_greeting_is_refused(kind):
    with pytest.raises(HandshakeRefused, match="before it proved"):
        side(False).receive(kind, b"x" * 32)


def test_a_second_greeting_is_refused():
    one, other = side(True), side(False)
    other.receive(KIND_HELLO, one.hello())
    with pytest.raises(HandshakeRefused):
        other.receive(KIND_HELLO, one.hello())


@pytest.mark.parametrize("payload", [b"", b"x" * 41, b"x" * 42, b"x" * 4096])
def test_a_greeting_that_is_none_is_refused(payload):
    with pytest.raises(HandshakeRefused):
        side(False).receive(KIND_HELLO, payload)


def test_another_protocol_version_is_named():
    hello = bytearray(side(True).hello())
    hello[8:10] = (77).to_bytes(2, "little")
    with pytest.raises(HandshakeRefused, match="version 77"):
        side(False).receive(KIND_HELLO, bytes(hello))
