"""Runs scripts of TensorFlow in forks of one process that has imported it, which takes most of a small training's time.

`forked_trainings.py serve SOCKET` imports and waits. `forked_trainings.py run SOCKET SCRIPT ARGUMENT...` is to a
recorder like `python SCRIPT ARGUMENT...`: same environment, folder, output and exit code.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import socket
import sys


def serve(path: str) -> None:
    """Import TensorFlow, then run a script for each that asks, in a fork; ends with the process that started it."""
    parent = os.getppid()
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import keras  # noqa: F401 - imported for all
    import tensorflow  # noqa: F401 - imported for all

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        print("ready", flush=True)
        server.settimeout(1.0)
        while os.getppid() == parent:
            try:
                asked, _ = server.accept()
            except TimeoutError:
                continue
            if os.fork() == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                server.close()
                _run_for(asked)
            asked.close()


def _run_for(asked: socket.socket) -> None:
    """Run one script in a fork of this fork, and tell its exit code."""
    text, streams, _, _ = socket.recv_fds(asked, 1 << 20, 2)
    training = os.fork()
    if training == 0:
        asked.close()
        for number, stream in enumerate(streams, start=1):
            os.dup2(stream, number)
        _train(**json.loads(text))
    _, status = os.waitpid(training, 0)
    asked.sendall(str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def _train(environment: dict[str, str], folder: str, arguments: list[str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = arguments
    sys.path.insert(0, os.path.dirname(arguments[0]))  # noqa: PTH120
    from lockstep_frameworks.tensorflow.arming import arm_from_environment

    arm_from_environment()
    runpy.run_path(arguments[0], run_name="__main__")
    sys.exit()


def run(path: str, arguments: list[str]) -> int:
    """Have a script run, and return its exit code."""
    asked = {"environment": dict(os.environ), "folder": os.getcwd(), "arguments": arguments}  # noqa: PTH109
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
        socket.send_fds(client, [json.dumps(asked).encode()], [1, 2])
        return int(client.recv(16) or b"1")


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    sys.exit(run(sys.argv[2], sys.argv[3:]))
