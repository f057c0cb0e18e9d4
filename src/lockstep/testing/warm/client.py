"""What stands on PATH as `python`: hands its command line to the warm server, and lives and ends as that process does.

Starts with `-IS`: it loads next to nothing. What the server does not do as a Python does (other flags than `-u`, a
standard input to be read as a program, more open files than three) goes to the real Python.
"""

# It loads next to nothing.
# ruff: noqa: PTH109, PTH110, PTH208

import array
import json
import os
import signal
import socket
import struct
import sys

SERVER, REAL, *ARGUMENTS = sys.argv[1:]
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def number_from(server: socket.socket) -> int:
    number: int = struct.unpack("q", server.recv(8, socket.MSG_WAITALL))[0]
    return number


def main() -> None:
    arguments = ARGUMENTS[1:] if ARGUMENTS[:1] == ["-u"] else ARGUMENTS
    files = [int(name) for name in os.listdir("/proc/self/fd")]
    more = any(file > 2 and os.path.exists(f"/proc/self/fd/{file}") for file in files)
    if more or not arguments or (arguments[0][:1] == "-" and arguments[0] not in ("-c", "-m")):
        os.execv(REAL, [REAL, *ARGUMENTS])
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(SERVER)
        wanted = {"arguments": arguments, "environment": dict(os.environ), "folder": os.getcwd()}
        text = json.dumps(wanted).encode()
        streams = array.array("i", [0, 1, 2])
        server.sendmsg(
            [struct.pack("Q", len(text))], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, streams)]
        )
        server.sendall(text)
        process = number_from(server)
        for one in PASSED_ON:
            signal.signal(one, lambda which, _: os.kill(process, which))
        code = number_from(server)
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


main()
