"""A job that counts while what carries it is killed again and again: ``python -m tests.soak --kills 200 --seed 1``.

``plan`` says who is killed where, from a seed.  ``job`` is the job, which stops at the phase that is asked for
(``stops``) until the kill has happened; ``program`` is its driver, ``soak`` kills, and ``results`` tells what is wrong
with what the job has published.
"""
