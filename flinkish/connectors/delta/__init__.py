"""Delta tables as sinks.  See ``delta_sink``; needs the extra ``delta``."""
