"""Debian's ZooKeeper, one server in a process of this machine.

Its jars come from the packages; where they are not installed they are downloaded and unpacked into a folder of the
test, which needs no root.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from pathlib import Path

from tests.integration.waiting import wait_until

PACKAGES = ("libzookeeper-java", "libslf4j-java", "libdropwizard-metrics-java", "libsnappy-java")
JARS = ("zookeeper.jar", "zookeeper-jute.jar", "slf4j-api.jar", "slf4j-nop.jar", "metrics-core.jar", "snappy-java.jar")
INSTALLED = Path("/usr/share/java")


def find_jars(folder: Path) -> list[Path]:
    """The class path of a server; ``folder`` gets what has to be downloaded."""
    jars = INSTALLED
    if not all((jars / name).exists() for name in JARS):
        jars = _download(folder) / "usr/share/java"
    return [jars / name for name in JARS]


def _download(folder: Path) -> Path:
    own = [f"-oDir::State={folder / 'state'}", f"-oDir::Cache={folder / 'cache'}"]
    attempts = (
        [["apt-get", "download", *PACKAGES]],
        [["apt-get", *own, "update"], ["apt-get", *own, "download", *PACKAGES]],  # with lists of one's own
    )
    for path in ("state/lists/partial", "cache/archives/partial", "unpacked"):
        (folder / path).mkdir(parents=True)
    said = ""
    for commands in attempts:
        results = [subprocess.run(command, cwd=folder, capture_output=True, text=True) for command in commands]
        said += "".join(result.stdout + result.stderr for result in results)
        if results[-1].returncode == 0:
            break
    else:
        raise AssertionError(f"could not download {' '.join(PACKAGES)}:\n{said}")
    for package in folder.glob("*.deb"):
        subprocess.run(["dpkg-deb", "-x", package, folder / "unpacked"], check=True)
    return folder / "unpacked"


class ZooKeeperServer:
    """``with ZooKeeperServer(jars, folder) as server``: listens at ``server.quorum``; the port and the data stay the
    same over ``kill`` and ``start``."""

    def __init__(self, jars: list[Path], folder: Path):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.quorum = f"127.0.0.1:{self.port}"
        self._jars, self._folder = jars, folder
        (folder / "zoo.cfg").write_text(
            f"tickTime=300\ndataDir={folder / 'data'}\nclientPort={self.port}\nclientPortAddress=127.0.0.1\n"
            "minSessionTimeout=600\nmaxSessionTimeout=60000\nadmin.enableServer=false\n4lw.commands.whitelist=srvr\nmaxClientCnxns=0\n"
        )
        self.process: "subprocess.Popen | None" = None

    def start(self) -> None:
        with open(self._folder / "log", "ab") as log:
            self.process = subprocess.Popen(
                ["java", "-Xmx128m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp",
                 os.pathsep.join(map(str, self._jars)),
                 "org.apache.zookeeper.server.ZooKeeperServerMain", self._folder / "zoo.cfg"],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        wait_until(self._serves, f"a ZooKeeper server, {self._folder / 'log'}", 120)

    def _serves(self) -> bool:
        """The port is open before the server serves."""
        assert self.process is not None and self.process.poll() is None, (self._folder / "log").read_text()
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as connection:
                connection.sendall(b"srvr")
                return b"Mode:" in connection.recv(4096)
        except OSError:
            return False

    def kill(self) -> None:
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(10)
        self.process = None

    def __enter__(self) -> "ZooKeeperServer":
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self.process is not None:
            self.kill()
