"""`botpool serve`, as far as it needs no server."""

from __future__ import annotations

import resource

from botpool.cli.serve import allow_many_files


def test_a_process_may_have_as_many_files_open_as_the_machine_allows_it() -> None:
    usual = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (usual[0] - 1, usual[1]))
        allow_many_files()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (usual[1], usual[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, usual)
