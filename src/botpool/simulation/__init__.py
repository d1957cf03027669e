"""The real pool and reconciler on a real PostgreSQL, with everything else gone wrong on purpose.

`python -m botpool.simulation --help` tells how it is run.
"""
