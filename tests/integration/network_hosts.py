"""Hosts that talk over a network of their own: network namespaces, each pair joined by a cable (veth).

Root makes them as they are; others inside a user namespace, in which they are root.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys

from tests.integration.spark_servers import Host

_KEEP = """
import socket, sys
socket.sethostname(sys.argv[1])
print("up", flush=True)
sys.stdin.read()
"""

_CONNECT = """
import sys
from pyroute2 import IPRoute
name, other, other_pid = sys.argv[1:]
with IPRoute() as here:
    here.link("add", ifname=other, kind="veth", peer={"ifname": name, "net_ns_pid": int(other_pid)})
"""

_SET_UP = """
import sys
from pyroute2 import IPRoute
address, *cables = sys.argv[1:]
with IPRoute() as here:
    here.link("set", index=here.link_lookup(ifname="lo")[0], state="up")
    for cable in cables:
        name, _, peer = cable.partition("=")
        index = here.link_lookup(ifname=name)[0]
        here.addr("add", index=index, local=address, address=peer, prefixlen=32)
        here.link("set", index=index, state="up")
"""

_CUT = """
from pyroute2 import IPRoute
with IPRoute() as here:
    for link in here.get_links():
        if link.get_attr("IFLA_IFNAME") != "lo":
            here.link("set", index=link["index"], state="down")
"""


class Network:
    """Hosts by name, for ``with``: ``network["left"]`` is a Host.  Nothing of it stays."""

    def __init__(self, *names):
        self.names = names
        self._keepers: dict[str, subprocess.Popen] = {}
        self._hosts: dict[str, Host] = {}

    def __enter__(self):
        as_root = os.getuid() == 0
        try:
            for number, name in enumerate(self.names, start=1):
                inside = self._enter(self._keepers[self.names[0]]) if number > 1 else ()
                own = [] if as_root or number > 1 else ["--user", "--map-root-user"]
                # It ends, and its namespaces with it, when the pipe closes: also when this process is killed.
                keeper = subprocess.Popen(
                    [*inside, "unshare", *own, "--net", "--uts", sys.executable, "-c", _KEEP, name],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                )  # fmt: skip
                self._keepers[name] = keeper
                assert keeper.stdout.readline() == b"up\n", "could not make namespaces"
                self._hosts[name] = Host(f"10.77.0.{number}", self._enter(keeper))
            for name, other in itertools.combinations(self.names, 2):
                self._python(name, _CONNECT, name, other, self._keepers[other].pid)
            for name, host in self._hosts.items():
                cables = [f"{other}={self._hosts[other].address}" for other in self.names if other != name]
                self._python(name, _SET_UP, host.address, *cables)
        except BaseException:
            self.__exit__()
            raise
        return self

    @staticmethod
    def _enter(keeper):
        user = () if os.getuid() == 0 else ("--user", "--preserve-credentials")
        return ("nsenter", "--target", str(keeper.pid), *user, "--net", "--uts")

    def __getitem__(self, name):
        return self._hosts[name]

    def _python(self, name, code, *arguments):
        subprocess.run(
            [*self._hosts[name].enter, sys.executable, "-c", code, *map(str, arguments)], check=True, timeout=60
        )

    def cut_off(self, name):
        """As when somebody pulls the cables of a host: no end hears of it."""
        self._python(name, _CUT)

    def proc_net(self, name):
        """The folder of the kernel's tables as the host sees them."""
        return f"/proc/{self._keepers[name].pid}/net"

    def host_of_process(self, pid):
        """Name of the host that a process runs on."""
        namespace = os.readlink(f"/proc/{pid}/ns/net")
        return next(
            name for name, keeper in self._keepers.items()
            if os.readlink(f"/proc/{keeper.pid}/ns/net") == namespace
        )  # fmt: skip

    def __exit__(self, *exc_info):
        for keeper in self._keepers.values():
            keeper.stdin.close()
            keeper.stdout.close()
            keeper.wait(10)
