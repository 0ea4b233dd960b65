"""Files as sources and sinks.  See ``file_source`` and ``file_sink``."""
