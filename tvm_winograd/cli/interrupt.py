"""Ctrl-C ends a command within a second, with one line that says what is kept."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading

CODE = 130  # as a shell reports a process that SIGINT ended
_PATIENCE = 0.8  # seconds for Python to notice it; a compiler may not return for minutes
_KEPT = {
    "compile": "an artifact that was there is as it was",
    "tune": "what was measured is in the journal: the same command goes on from there",
    "bench": "the rows written so far are kept",
    "logs": "every table is as it was, or done",
}


def message(command: str) -> str:
    """The line that ends an interrupted command."""
    return f"tvm-winograd {command}: interrupted; {_KEPT.get(command, 'nothing was changed')}"


def watch(command: str) -> None:
    """End the process soon after SIGINT, even inside a library that does not return.

    Call it in the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    done = threading.Event()  # never set: a wait that is a pause

    def end() -> None:
        while reader.recv(1) != bytes([signal.SIGINT]):
            pass
        done.wait(_PATIENCE)
        print(message(command), file=sys.stderr)
        leave()

    _open.append(writer)
    threading.Thread(target=end, daemon=True).start()


_open: list[socket.socket] = []  # a socket that nobody holds is closed


def leave() -> None:
    """End the process now, threads and all."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(CODE)
