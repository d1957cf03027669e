"""A network apart from the machine's, for container engines and all that talks with them.

A Docker without a bridge deletes `docker0` from the network that it is in, which may be that of a
contributor's own Docker. So engines, and what is tested on them, are in a network namespace of
their own. It has a loopback address and nothing else, and is gone with the last process in it.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import sys

_NEW_NETWORK = 0x40000000  # CLONE_NEWNET in <sched.h>
_SET_FLAGS = 0x8914  # SIOCSIFFLAGS in <linux/sockios.h>
_UP = 0x1  # IFF_UP in <linux/if.h>

_left = False


def leave_machine_network() -> None:
    """Move this process into a network of its own, unless it has one or isn't allowed to.

    Call this before there are threads and sockets: they stay where they are. Processes that are
    started later are there, too.
    """
    global _left  # noqa: PLW0603 - as the network, it is the process's
    if _left or sys.platform != "linux" or os.geteuid() != 0:
        return
    if ctypes.CDLL(None).unshare(_NEW_NETWORK) != 0:
        return
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, _SET_FLAGS, struct.pack("16sh14x", b"lo", _UP))
    _left = True


def has_left_machine_network() -> bool:
    """Whether this process is in a network of its own."""
    return _left
