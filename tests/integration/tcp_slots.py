"""A MiniCluster whose slots talk as if each was on a host of its own: by TCP, never by Unix sockets."""

from __future__ import annotations

import dataclasses

from flinkish.shell.local_launcher import LocalLauncher
from flinkish.testing.mini_cluster import MiniCluster


class _TcpLauncher(LocalLauncher):
    def launch(self, launches):
        super().launch([dataclasses.replace(launch, unix_sockets=False) for launch in launches])


class TcpMiniCluster(MiniCluster):
    def create_launcher(self):
        return _TcpLauncher(self.slots)
