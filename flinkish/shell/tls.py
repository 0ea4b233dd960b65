"""TLS on the TCP connections of a job, when ``security.ssl.internal.enabled`` says so.

The JobManager gets one certificate with its key (made for this job, or the user's PEM files) and hands both
to the slots with the secret, so that the other machines need no files.  Each end shows that certificate and
takes only one that the same authority has signed; the handshake with the secret comes after it, inside.
Host names are not compared: the certificate stands for the job, not for a machine.

TLS 1.3 only.  It never renegotiates, so that sending never waits for something to read.

Unix sockets carry none: what they carry stays in the kernel of one machine, and only processes of the same
user are let in.
"""

from __future__ import annotations

import datetime
import os
import socket
import ssl
from typing import Any, Mapping, NoReturn, Optional, Sequence

from flinkish.common import options
from flinkish.errors import ConfigurationError, ResourceError
from flinkish.messages.launch import TlsCredentials
from flinkish.shell.process import anonymous_file

# What one record of TLS carries at most.
_RECORD_BYTES = 16 * 1024
_READ_BYTES = 1024 * 1024
_PEM_BYTES_MAX = 1024 * 1024

# The clocks of a cluster's machines differ; a job may run for years.
_VALID_BEFORE = datetime.timedelta(days=1)
_VALID_FOR = datetime.timedelta(days=3650)


class TlsRefused(OSError):
    """The peer does not speak TLS, or has no certificate of this job."""


class Tls:
    """Both roles of TLS with one certificate.

    Raises:
        ssl.SSLError, ValueError: certificate, key or authorities cannot be used.
    """

    def __init__(self, credentials: TlsCredentials):
        self._server = _context(ssl.PROTOCOL_TLS_SERVER, credentials)
        self._client = _context(ssl.PROTOCOL_TLS_CLIENT, credentials)
        # A ticket would wait unread at a client that only sends, and whose close then resets the
        # connection under the last records.
        self._server.num_tickets = 0

    def wrap(self, sock: socket.socket, initiator: bool) -> "TlsSocket":
        """Take over a connected non-blocking socket."""
        context = self._client if initiator else self._server
        return TlsSocket(
            context.wrap_socket(sock, server_side=not initiator, do_handshake_on_connect=False)
        )

    def check(self) -> None:
        """Shake hands with itself, in memory: whether peers with this certificate take each other.

        Raises:
            ssl.SSLError: they do not.
        """
        to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        sides = [
            self._client.wrap_bio(to_client, to_server),
            self._server.wrap_bio(to_server, to_client, server_side=True),
        ]
        for side in sides * 2:
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue


class TlsSocket:
    """A TLS socket that behaves like a plain non-blocking one, as far as a `Connection` uses it."""

    def __init__(self, sock: ssl.SSLSocket):
        self._sock = sock
        self.close = sock.close
        self.getsockname = sock.getsockname
        #: Bytes that have left the system's buffer and wait to be received: no poller tells of them.
        self.pending = sock.pending

    def do_handshake(self) -> str:
        """Go on as far as possible; "r" or "w": what to wait for; "": done.

        Raises:
            TlsRefused: see there.
        """
        try:
            self._sock.do_handshake()
        except ssl.SSLWantReadError:
            return "r"
        except ssl.SSLWantWriteError:
            return "w"
        except ssl.SSLError as error:
            _raise(error)
        return ""

    def recv_into(self, buffer: memoryview) -> int:
        """Fill ``buffer`` as far as there is something, but no more than a turn's share."""
        count, size = 0, min(len(buffer), _READ_BYTES)
        try:
            while count < size:
                part = self._sock.recv_into(buffer[count:size])
                if not part:
                    break
                count += part
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            if not count:
                raise BlockingIOError from None
        except ssl.SSLError as error:
            if not count:  # else what has come goes first
                _raise(error)
        return count

    def send(self, data: Any) -> int:
        """One record.  After one that would have blocked, the next must begin with the same bytes and have no
        fewer (OpenSSL has encrypted them): what a connection queues only grows at its end, so it does."""
        try:
            return self._sock.send(memoryview(data)[:_RECORD_BYTES])
        except ssl.SSLWantWriteError:
            raise BlockingIOError from None
        except ssl.SSLError as error:
            _raise(error)

    def sendmsg(self, buffers: Sequence[Any]) -> int:
        """One record of the first buffers, as many as go in."""
        parts, size = [], 0
        for buffer in buffers:
            part = memoryview(buffer)[: _RECORD_BYTES - size]
            parts.append(part)
            size += len(part)
            if size == _RECORD_BYTES:
                break
        return self.send(b"".join(parts))


def credentials_of(configuration: Mapping[str, Any]) -> Optional[TlsCredentials]:
    """What the configuration asks for; None: no TLS.

    Raises:
        ConfigurationError: a file cannot be read, or what is in it cannot be used.
        ResourceError: a certificate is to be made, and the package for it is missing.
    """
    if not options.read(configuration, options.SSL_INTERNAL_ENABLED):
        return None
    certificate, key, ca = (
        _read_file(configuration, option)
        for option in (options.SSL_INTERNAL_CERTIFICATE, options.SSL_INTERNAL_KEY, options.SSL_INTERNAL_CA)
    )
    if certificate is None and key is None and ca is None:
        return create_credentials()
    if certificate is None or key is None:
        raise ConfigurationError(
            "could not set up TLS",
            where="security.ssl.internal.certificate and security.ssl.internal.key",
            why="of certificate and key, one without the other is of no use",
            do="set both, or no file at all: then each job gets a certificate of its own",
        )
    credentials = TlsCredentials(certificate, key, ca or certificate)
    try:
        Tls(credentials).check()
    except (ssl.SSLError, ValueError) as error:
        raise ConfigurationError(
            "could not set up TLS with the given files",
            where=f"{options.SSL_INTERNAL_CERTIFICATE.key} and the files that belong to it",
            why=reason_of(error),
            do="give a certificate that is valid now, may serve as server and as client, and is signed by "
            "security.ssl.internal.ca, and its key without a password",
        ) from error
    return credentials


def create_credentials() -> TlsCredentials:
    """A new certificate that only those have who are given it.

    Raises:
        ResourceError: the package "cryptography" is missing.
    """
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as error:
        raise ResourceError(
            "could not make a certificate for this job",
            where="security.ssl.internal.enabled",
            why=f'the package "cryptography" cannot be imported: {error}',
            do="pip install 'flinkish[tls]' in the driver, or name PEM files by "
            "security.ssl.internal.certificate and security.ssl.internal.key",
        ) from error
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "flinkish job")])
    now = datetime.datetime.now(datetime.timezone.utc)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _VALID_BEFORE)
        .not_valid_after(now + _VALID_FOR)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
        .public_bytes(serialization.Encoding.PEM)
    )
    key_text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return TlsCredentials(certificate, key_text, certificate)


def reason_of(error: BaseException) -> str:
    """OpenSSL's reason without the place in its source.

    >>> reason_of(ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:1006)"))
    'wrong version number'
    """
    text = str(error.args[-1]) if error.args else type(error).__name__
    return text.rpartition("] ")[2].partition(" (_ssl.c")[0]


def _raise(error: ssl.SSLError) -> NoReturn:
    if isinstance(error, ssl.SSLEOFError):
        raise ConnectionResetError("the peer closed the connection") from error
    raise TlsRefused(f"TLS: {reason_of(error)}") from error


def _context(protocol: Any, credentials: TlsCredentials) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    # An authority that is itself signed by another, or a certificate that is nobody's, may be trusted too.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(cadata=credentials.ca.decode("ascii", "replace"))
    # Python loads a key only from a file: from one that has no name, so that none stays on a disk.
    descriptor = anonymous_file("flinkish-tls")
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(credentials.certificate + b"\n" + credentials.key)
        os.lseek(descriptor, 0, os.SEEK_SET)
        context.load_cert_chain(f"/dev/fd/{descriptor}", password=_no_password)
    finally:
        os.close(descriptor)
    return context


def _no_password() -> str:
    """OpenSSL would ask for it on the terminal."""
    raise ValueError("the key is protected by a password")


def _read_file(configuration: Mapping[str, Any], option: Any) -> Optional[bytes]:
    path = options.read(configuration, option)
    if path is None:
        return None
    try:
        with open(path, "rb") as file:
            return file.read(_PEM_BYTES_MAX)
    except OSError as error:
        raise ConfigurationError(
            "could not set up TLS",
            where=f"{option.key}: {path}",
            why=f"the file cannot be read: {error.strerror}",
            do="name a PEM file that the driver can read",
        ) from error
