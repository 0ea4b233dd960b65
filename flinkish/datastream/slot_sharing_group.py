"""SlotSharingGroup and MemorySize: which operators may share a slot."""

from __future__ import annotations

from functools import total_ordering
from typing import Any, Optional, Union

from flinkish.common.config_options import parse_memory_size
from flinkish.errors import InvalidJobError

__all__ = ["MemorySize", "SlotSharingGroup"]


@total_ordering
class MemorySize:
    """A number of bytes."""

    def __init__(self, bytes_size: Union[int, str]):
        self._bytes = parse_memory_size(bytes_size)
        if self._bytes < 0:
            raise InvalidJobError(f"a memory size must be at least 0 bytes, not {self._bytes}")

    @staticmethod
    def of_mebi_bytes(mebi_bytes: int) -> "MemorySize":
        return MemorySize(mebi_bytes << 20)

    def get_bytes(self) -> int:
        return self._bytes

    def get_kibi_bytes(self) -> int:
        return self._bytes >> 10

    def get_mebi_bytes(self) -> int:
        return self._bytes >> 20

    def get_gibi_bytes(self) -> int:
        return self._bytes >> 30

    def get_tebi_bytes(self) -> int:
        return self._bytes >> 40

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MemorySize) and self._bytes == other._bytes

    def __lt__(self, other: "MemorySize") -> bool:
        return self._bytes < other._bytes if isinstance(other, MemorySize) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._bytes)

    def __repr__(self) -> str:
        return f"MemorySize({self._bytes})"


class SlotSharingGroup:
    """Operators of one group may share slots; those of different groups never do.

    Made by ``SlotSharingGroup.builder(name)...build()``; a plain name does as well.  Slots are all
    alike, so resources asked for here are kept but give no larger slot.
    """

    def __init__(self, name: str, resources: Optional[dict[str, Any]] = None):
        if not isinstance(name, str) or not name:
            raise InvalidJobError(f"a slot sharing group needs a name, got {name!r}")
        self._name = name
        self._resources = dict(resources or {})

    def get_name(self) -> str:
        return self._name

    def get_managed_memory(self) -> Optional[MemorySize]:
        return self._resources.get("managed_memory")

    def get_task_heap_memory(self) -> Optional[MemorySize]:
        return self._resources.get("task_heap_memory")

    def get_task_off_heap_memory(self) -> Optional[MemorySize]:
        return self._resources.get("task_off_heap_memory")

    def get_cpu_cores(self) -> Optional[float]:
        return self._resources.get("cpu_cores")

    def get_external_resources(self) -> dict[str, float]:
        return dict(self._resources.get("external", {}))

    @staticmethod
    def builder(name: str) -> "SlotSharingGroup.Builder":
        return SlotSharingGroup.Builder(name)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, SlotSharingGroup)
            and self._name == other._name
            and self._resources == other._resources
        )

    def __hash__(self) -> int:
        return hash(self._name)

    def __repr__(self) -> str:
        return f"SlotSharingGroup({self._name!r})"

    class Builder:
        def __init__(self, name: str):
            self._name = name
            self._resources: dict[str, Any] = {}

        def _set(self, name: str, value: Any) -> "SlotSharingGroup.Builder":
            self._resources[name] = value
            return self

        def set_cpu_cores(self, cpu_cores: float):
            return self._set("cpu_cores", float(cpu_cores))

        def set_task_heap_memory(self, task_heap_memory: Union[MemorySize, str]):
            return self._set("task_heap_memory", _memory(task_heap_memory))

        def set_task_heap_memory_mb(self, task_heap_memory_mb: int):
            return self._set("task_heap_memory", MemorySize.of_mebi_bytes(task_heap_memory_mb))

        def set_task_off_heap_memory(self, task_off_heap_memory: Union[MemorySize, str]):
            return self._set("task_off_heap_memory", _memory(task_off_heap_memory))

        def set_task_off_heap_memory_mb(self, task_off_heap_memory_mb: int):
            return self._set("task_off_heap_memory", MemorySize.of_mebi_bytes(task_off_heap_memory_mb))

        def set_managed_memory(self, managed_memory: Union[MemorySize, str]):
            return self._set("managed_memory", _memory(managed_memory))

        def set_managed_memory_mb(self, managed_memory_mb: int):
            return self._set("managed_memory", MemorySize.of_mebi_bytes(managed_memory_mb))

        def set_external_resource(self, name: str, value: float):
            self._resources.setdefault("external", {})[name] = value
            return self

        def build(self) -> "SlotSharingGroup":
            """Raises: InvalidJobError: resources without CPU cores and heap memory above 0, as in Flink."""
            cores, heap = self._resources.get("cpu_cores"), self._resources.get("task_heap_memory")
            if self._resources and not (cores and cores > 0 and heap and heap.get_bytes()):
                raise InvalidJobError(
                    f"could not build the slot sharing group {self._name!r}",
                    why="whoever asks for resources must give CPU cores and task heap memory, both above 0",
                    do="add set_cpu_cores(...) and set_task_heap_memory_mb(...), or leave the resources out",
                )
            return SlotSharingGroup(self._name, self._resources)


def _memory(value: Union[MemorySize, str, int]) -> MemorySize:
    return value if isinstance(value, MemorySize) else MemorySize(value)
