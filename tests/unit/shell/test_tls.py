"""Where the certificate of a job comes from, and what is said when it cannot be used."""

import datetime
import pickle
import ssl
import sys

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from flinkish.errors import ConfigurationError, ResourceError
from flinkish.messages.launch import SlotLaunch
from flinkish.shell.tls import Tls, create_credentials, credentials_of

NOW = datetime.datetime.now(datetime.timezone.utc)
DAY = datetime.timedelta(days=1)


class Authority:
    """Signs certificates, as a company's would."""

    def __init__(self, name="authority"):
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.certificate = self._sign(self.name, self.key, NOW + DAY, x509.BasicConstraints(True, None))

    def _sign(self, name, key, until, *extensions):
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self.name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(NOW - 2 * DAY)
            .not_valid_after(until)
        )
        for extension in extensions:
            builder = builder.add_extension(extension, critical=True)
        return builder.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def issue(self, folder, until=NOW + DAY, extensions=(), password=None):
        """Configuration with a new certificate of this authority."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "slot")])
        protection = (
            serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
        )
        texts = {
            "certificate": self._sign(name, key, until, *extensions),
            "key": key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, protection
            ),
            "ca": self.certificate,
        }
        configuration = {"security.ssl.internal.enabled": "true"}
        for what, text in texts.items():
            (folder / f"{what}.pem").write_bytes(text)
            configuration[f"security.ssl.internal.{what}"] = str(folder / f"{what}.pem")
        return configuration


def test_without_the_option_there_is_no_tls():
    assert credentials_of({}) is None


def test_each_job_has_a_certificate_of_its_own_that_both_sides_take():
    one, other = (credentials_of({"security.ssl.internal.enabled": True}) for _ in range(2))
    Tls(one).check()
    assert one.certificate != other.certificate and one.key != other.key
    with pytest.raises(ssl.SSLError, match="(?i)verify failed"):
        Tls(type(one)(one.certificate, one.key, other.ca)).check()


def test_the_key_travels_in_the_launch_and_shows_nowhere():
    credentials = create_credentials()
    launch = SlotLaunch("lease", 0, ("a",), (("127.0.0.1", 1),), b"s" * 32, tls=credentials)
    assert pickle.loads(pickle.dumps(launch)).tls == credentials
    assert "PRIVATE" not in repr(launch) and "ssss" not in repr(launch)


def test_certificates_of_an_authority_are_taken(tmp_path):
    Tls(credentials_of(Authority().issue(tmp_path))).check()


def test_without_an_authority_only_the_same_certificate_is_taken(tmp_path):
    authority = Authority()
    configuration = authority.issue(tmp_path)
    del configuration["security.ssl.internal.ca"]
    credentials = credentials_of(configuration)
    (tmp_path / "second").mkdir()
    second = credentials_of(authority.issue(tmp_path / "second"))
    with pytest.raises(ssl.SSLError, match="(?i)verify failed"):
        Tls(type(second)(second.certificate, second.key, credentials.ca)).check()


def refusal(configuration, error=ConfigurationError):
    with pytest.raises(error) as caught:
        credentials_of(configuration)
    assert len(str(caught.value).splitlines()) == 4 and "PRIVATE" not in str(caught.value)
    return str(caught.value)


def test_files_that_cannot_be_used_are_refused_in_the_driver(tmp_path):
    authority = Authority()
    assert "expired" in refusal(authority.issue(tmp_path, until=NOW - DAY))
    assert "password" in refusal(authority.issue(tmp_path, password=b"secret"))
    server_only = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    assert "purpose" in refusal(authority.issue(tmp_path, extensions=[server_only]))
    good = authority.issue(tmp_path)
    stranger = tmp_path / "stranger.pem"
    stranger.write_bytes(Authority("stranger").certificate)
    assert "why: certificate verify failed" in refusal({**good, "security.ssl.internal.ca": str(stranger)})
    assert "No such file" in refusal({**good, "security.ssl.internal.key": str(tmp_path / "none")})
    (tmp_path / "text").write_text("not a certificate")
    for key in ("certificate", "key", "ca"):
        refusal({**good, f"security.ssl.internal.{key}": str(tmp_path / "text")})
    assert "one without the other" in refusal({**good, "security.ssl.internal.key": None})


def test_without_the_package_the_error_says_what_to_install(monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "cryptography"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    text = refusal({"security.ssl.internal.enabled": True}, ResourceError)
    assert "pip install 'flinkish[tls]'" in text
