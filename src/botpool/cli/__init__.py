"""The command line. It holds no logic: it opens the database, calls the pool and prints."""

import signal


def main() -> None:
    """Run the command line. Ctrl-C ends it quietly, from the first moment on."""
    # The imports take a second. Meanwhile Ctrl-C does what it does to a program that isn't Python.
    interrupts = signal.getsignal(signal.SIGINT)
    if interrupts is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from botpool.cli.app import run  # noqa: PLC0415

    signal.signal(signal.SIGINT, interrupts)
    run()
