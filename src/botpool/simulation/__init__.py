"""The real pool and reconciler on a real PostgreSQL, where everything else goes wrong on purpose.

`python -m botpool.simulation --help` says how to run it.
"""
