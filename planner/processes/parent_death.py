"""A process that dies when its parent does, however the parent dies.

On Linux the kernel sees to it (prctl(2), PR_SET_PDEATHSIG); elsewhere a thread looks once a
second whether the process has another parent by now. Imports nothing but the standard library: it
runs in every rank, in processes that plan, and between fork and exec.
"""

import ctypes
import os
import signal
import sys
import threading
import time

PR_SET_PDEATHSIG = 1
LOOK_S = 1.0


def die_with_parent(number: int = signal.SIGKILL, parent: int | None = None) -> None:
    """Have this process get signal `number` when its parent has died, or at once if it has. Where
    `parent`'s number is not known, it is who it is now.
    """
    parent = parent or os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, int(number), 0, 0, 0)
        if os.getppid() != parent:  # it died in between
            os.kill(os.getpid(), number)
        return
    threading.Thread(target=_look, args=(parent, number), daemon=True).start()


def _look(parent: int, number: int) -> None:
    while os.getppid() == parent:
        time.sleep(LOOK_S)
    os.kill(os.getpid(), number)
