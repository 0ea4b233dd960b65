"""Benchmarks: throughput and latency of flinkish against what this machine can do bare.

    python -m tests.benchmarks [NAME ...] [--json FILE] [--records N] [--repeats R] ...

Not tests of speed: nothing here asserts one.  ``flinkish/docs/benchmarks.md`` has rules and figures.
"""
