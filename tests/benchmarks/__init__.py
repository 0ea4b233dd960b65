"""Benchmarks: throughput of flinkish against what two cores of this machine can do bare.

    python -m tests.benchmarks [NAME ...] [--json FILE] [--records N] [--repeats R]

Not tests: nothing here asserts a speed.  See ``flinkish/docs/benchmarks.md`` for figures and rules.
"""
