"""Find the Java runtime that Spark would start, and say how to install one where there is none."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Mapping, Optional

from flinkish.errors import JavaNotFoundError

#: Oldest Java by the major version of pyspark.
OLDEST_JAVA = {3: 8, 4: 17}
DEFAULT_OLDEST_JAVA = 17
#: The version that the advice names: it runs Spark 3.5 and Spark 4.
ADVISED_JAVA = 17


@dataclass(frozen=True)
class JavaRuntime:
    path: str
    version: int


def parse_java_version(text: str) -> Optional[int]:
    """Major version in the output of ``java -version``.

    >>> parse_java_version('openjdk version "17.0.15" 2025-04-15')
    17
    >>> parse_java_version('java version "1.8.0_391"')
    8
    >>> parse_java_version('sh: java: not found') is None
    True
    """
    match = re.search(r'version "(\d+)(?:\.(\d+))?', text)
    if match is None:
        return None
    major = int(match.group(1))
    return int(match.group(2)) if major == 1 and match.group(2) else major


def install_line(os_release: str = "", platform: str = sys.platform) -> str:
    """The command that installs Java on this system.

    Args:
        os_release: content of ``/etc/os-release``, empty where there is none.
        platform: ``sys.platform``.

    >>> install_line("ID=ubuntu\\nID_LIKE=debian", "linux")
    'sudo apt-get install -y openjdk-17-jre-headless'
    >>> install_line(platform="darwin")
    'brew install openjdk@17 && export JAVA_HOME="$(brew --prefix openjdk@17)/libexec/openjdk.jdk/Contents/Home"'
    """
    if platform == "darwin":
        home = "libexec/openjdk.jdk/Contents/Home"
        formula = f"openjdk@{ADVISED_JAVA}"
        return f'brew install {formula} && export JAVA_HOME="$(brew --prefix {formula})/{home}"'
    if platform.startswith("win"):
        return f"winget install EclipseAdoptium.Temurin.{ADVISED_JAVA}.JRE"
    words = re.findall(r'^(?:ID|ID_LIKE)="?([^"\n]*)"?', os_release, re.MULTILINE)
    families = set(" ".join(words).split())
    if families & {"debian", "ubuntu"}:
        return f"sudo apt-get install -y openjdk-{ADVISED_JAVA}-jre-headless"
    if families & {"fedora", "rhel", "centos", "amzn", "rocky", "almalinux"}:
        amazon = "amzn" in families
        package = (
            f"java-{ADVISED_JAVA}-amazon-corretto-headless"
            if amazon
            else f"java-{ADVISED_JAVA}-openjdk-headless"
        )
        return f"sudo dnf install -y {package}"
    if "alpine" in families:
        return f"apk add openjdk{ADVISED_JAVA}-jre-headless bash"
    if families & {"suse", "opensuse"}:
        return f"sudo zypper install -y java-{ADVISED_JAVA}-openjdk-headless"
    if "arch" in families:
        return f"sudo pacman -S jre{ADVISED_JAVA}-openjdk-headless"
    return f"install a Java {ADVISED_JAVA} runtime (for example from adoptium.net) and set JAVA_HOME"


def java_advice() -> str:
    """``install_line`` of the machine at hand."""
    release = Path("/etc/os-release")
    return install_line(release.read_text(errors="replace") if release.is_file() else "")


def oldest_java() -> int:
    """The oldest Java that the installed pyspark starts on."""
    import pyspark

    return OLDEST_JAVA.get(int(pyspark.__version__.split(".")[0]), DEFAULT_OLDEST_JAVA)


def find_java(environ: Mapping[str, str] = os.environ) -> JavaRuntime:
    """The Java that Spark's start script would take: that of JAVA_HOME, else the one on PATH.

    Raises:
        JavaNotFoundError: there is none, or it is too old for the installed pyspark.
    """
    home, needed = environ.get("JAVA_HOME"), oldest_java()
    path = str(Path(home) / "bin" / "java") if home else shutil.which("java", path=environ.get("PATH", ""))
    looked = f"JAVA_HOME is {home}" if home else "JAVA_HOME is not set and PATH has no java"
    if path is None or not os.access(path, os.X_OK):
        raise JavaNotFoundError(
            "could not start Spark: Java was not found",
            where=f"this machine, {socket.gethostname()}",
            why=f"{looked}; Spark needs Java {needed} or newer" if not home
            else f"{looked}, but there is no {path}",
            do=java_advice(),
        )
    answer = subprocess.run([path, "-version"], capture_output=True, text=True, timeout=60)
    version = parse_java_version(answer.stderr + answer.stdout)
    if version is None:
        raise JavaNotFoundError(
            "could not start Spark: Java does not run",
            where=path,
            why=(answer.stderr or answer.stdout).strip()[:300] or f"exit code {answer.returncode}",
            do=java_advice(),
        )
    if version < needed:
        raise JavaNotFoundError(
            "could not start Spark: Java is too old",
            where=path,
            why=f"it is Java {version}, this Spark needs {needed} or newer",
            do=java_advice(),
        )
    return JavaRuntime(path, version)
