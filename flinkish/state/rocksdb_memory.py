"""One memory budget a slot for RocksDB: all operators of the slot share a block cache, which write buffers are charged
to, and the object caches.

The slot has ``taskmanager.memory.managed.size`` divided by its task's slots, or ``state.backend.rocksdb.memory.fixed-per-slot``.
A part of it (``flinkish.rocksdb.object-cache-ratio``) is for Python objects; of the rest write buffers take up to
``state.backend.rocksdb.memory.write-buffer-ratio``.

Options are made from the configuration at every opening, for each column family, so what a database was closed with
does not count.  Rdict keeps no reference to cache and manager, so this object does.
"""

from __future__ import annotations

import os
from typing import Any, Mapping, Optional

import rocksdict

from flinkish.common import options as config

#: Python objects of an entry, its place in the dicts and its key: a multiple of its bytes, and a constant.
OBJECT_FACTOR, OBJECT_BYTES = 3, 300
_WRITE_BUFFER_MAX = 64 << 20
_MIB = 1 << 20


class RocksDBMemory:
    """Of one slot process."""

    def __init__(self, total_bytes: int, object_ratio: float, write_buffer_ratio: float):
        self.total_bytes = total_bytes
        self.object_cache_bytes = int(total_bytes * min(1.0, object_ratio))
        self.block_cache_bytes = max(_MIB, total_bytes - self.object_cache_bytes)
        self.write_buffer_bytes = max(_MIB // 2, int(self.block_cache_bytes * min(1.0, write_buffer_ratio)))
        # Compactions give way to records and checkpoints, which wait for little of what they do.  It counts for all
        # databases of the process.
        rocksdict.Env().lower_thread_pool_cpu_priority()
        self.cache = rocksdict.Cache(self.block_cache_bytes)
        self.write_buffers = rocksdict.WriteBufferManager.new_write_buffer_manager_with_cache(
            self.write_buffer_bytes, False, self.cache
        )
        self.tables = 0  # object caches that share ``object_cache_bytes``

    def objects_of_table(self) -> int:
        """Bytes that one table's objects may take."""
        return self.object_cache_bytes // max(1, self.tables)

    def options(self, configuration: Mapping[str, Any]) -> rocksdict.Options:
        """Of a database or column family.  A database copies them, so each gets its own."""
        made = rocksdict.Options(raw_mode=True)
        made.create_if_missing(True)
        made.create_missing_column_families(True)
        blocks = rocksdict.BlockBasedOptions()
        blocks.set_block_cache(self.cache)
        blocks.set_cache_index_and_filter_blocks(True)
        blocks.set_pin_l0_filter_and_index_blocks_in_cache(True)
        blocks.set_bloom_filter(10.0, False)
        predefined = config.read(configuration, config.ROCKSDB_PREDEFINED_OPTIONS)
        if predefined == "SPINNING_DISK_OPTIMIZED_HIGH_MEM":
            blocks.set_block_size(128 * 1024)
        else:
            blocks.set_block_size(16 * 1024)
        made.set_block_based_table_factory(blocks)
        made.set_write_buffer_manager(self.write_buffers)
        made.set_write_buffer_size(min(_WRITE_BUFFER_MAX, max(_MIB, self.write_buffer_bytes // 2)))
        made.set_compression_type(rocksdict.DBCompressionType.lz4())
        if config.read(configuration, config.ROCKSDB_COMPACTION_STYLE) == "UNIVERSAL":
            made.set_compaction_style(rocksdict.DBCompactionStyle.universal())
            made.set_level_zero_file_num_compaction_trigger(8)
        made.set_level_zero_slowdown_writes_trigger(40)
        made.set_level_zero_stop_writes_trigger(80)
        made.set_max_background_jobs(2 if predefined == "DEFAULT" else 4)
        made.set_bytes_per_sync(_MIB)  # else a sync of somebody else's file waits for what a compaction has written
        made.set_keep_log_file_num(1)
        made.set_max_log_file_size(_MIB)
        made.set_stats_dump_period_sec(0)
        made.set_stats_persist_period_sec(0)
        made.set_is_fd_close_on_exec(True)
        return made


_memory: Optional[tuple[int, tuple, RocksDBMemory]] = None


def slot_memory(configuration: Mapping[str, Any]) -> RocksDBMemory:
    """The budget of this process; made anew when a job with other sizes comes."""
    global _memory
    fixed = config.read(configuration, config.ROCKSDB_MEMORY_FIXED_PER_SLOT)
    managed = config.read(configuration, config.MANAGED_MEMORY_SIZE)
    slots = config.read(configuration, config.NUM_TASK_SLOTS)
    sizes = (
        fixed if fixed is not None else managed // slots,
        config.read(configuration, config.ROCKSDB_OBJECT_CACHE_RATIO),
        config.read(configuration, config.ROCKSDB_WRITE_BUFFER_RATIO),
    )
    if _memory is None or _memory[:2] != (os.getpid(), sizes):
        _memory = os.getpid(), sizes, RocksDBMemory(*sizes)
    return _memory[2]
