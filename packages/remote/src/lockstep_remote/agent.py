"""Runs on the other machine, by its Python and standard library alone: takes files, starts a command, sends what comes.

`lockstep_remote.link` sends this text and runs it there, so nothing has to be installed, and it imports nothing
of Lockstep. A verb's question is one line of JSON on standard input; answers are lines of JSON on standard output, each
followed by as many bytes as its `size` says.

A job is a folder: `tree` is where the command runs, `in` and `out` hold files that it reads and writes, `output` and
`errors` are the command's streams, `supervisor` is locked while the supervisor lives, `code` is the exit code.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

PIECE_BYTES = 1 << 20
LOOKS_EVERY_S = 0.2
ALIVE_EVERY_S = 10.0
MANIFEST = "manifest.json"
LOGS = ("output", "errors")
MASK = os.umask(0o077)

Asked = dict[str, Any]


def tell(values: dict[str, Any], data: bytes = b"") -> None:
    """Write one answer, with bytes after it."""
    line = json.dumps({**values, "size": len(data)}).encode()
    sys.stdout.buffer.write(line + b"\n" + data)
    sys.stdout.buffer.flush()


# --- what is here -----------------------------------------------------------------------------


def hello(asked: Asked) -> None:
    """Tell which Python this is, what it has of what Lockstep needs, and how much room there is."""
    place = Path(asked["workdir"]).expanduser()
    place.mkdir(parents=True, exist_ok=True)
    tell(
        {
            "workdir": str(place.absolute()),
            "python": list(sys.version_info[:3]),
            "executable": sys.executable,
            "packages": {name: version_of(name) for name in asked["packages"]},
            "free_bytes": shutil.disk_usage(place).free,
            "processors": os.cpu_count(),
        }
    )


def version_of(name: str) -> str:
    """Return the version of a package that is installed here, "" of none."""
    from importlib import metadata  # takes as long to load as all else

    try:
        return metadata.version(name) or ""
    except metadata.PackageNotFoundError:
        return ""


# --- files that are sent here -----------------------------------------------------------------


def object_of(place: str, digest: str) -> Path:
    """Return where a file lies by its content."""
    return Path(place, "objects", digest[:2], digest)


def missing(asked: Asked) -> None:
    """Tell which files are not here yet, by their digests."""
    place = asked["place"]
    tell({"missing": [one for one in asked["digests"] if not object_of(place, one).exists()]})


def take(asked: Asked) -> None:
    """Take files as a stream of tar whose names are digests; each counts once its content is checked."""
    import tarfile  # the other verbs begin sooner without

    with tarfile.open(fileobj=sys.stdin.buffer, mode="r|") as archive:
        for member in archive:
            content = archive.extractfile(member)
            if content is not None:
                copy(content, object_of(asked["place"], member.name), member.name, 0o600)
    tell({"taken": True})


def lay(asked: Asked) -> None:
    """Put files where they belong in folders; a folder that is whole already stays as it is."""
    for folder, files in asked["folders"].items():
        if not whole_of(folder).exists():
            Path(folder).mkdir(parents=True, exist_ok=True)
            for name, digest, mode in files:
                lay_one(object_of(asked["place"], digest), Path(folder, name), digest, mode)
            write_whole(whole_of(folder), json.dumps([name for name, _, _ in files]))
    tell({"laid": True})


def whole_of(folder: str) -> Path:
    """Return the file that says that a folder is whole: the names of what was laid there."""
    return Path(folder + ".whole")


def lay_one(source: Path, target: Path, digest: str, mode: int) -> None:
    """Put one file where it belongs; a damaged one is removed, so that it is sent again."""
    with source.open("rb") as file:
        whole = copy(file, target, digest, mode)
    if not whole:
        source.unlink()
        raise OSError(errno.EIO, "is damaged, and was removed; run the same again", str(source))


def copy(source: IO[bytes], target: Path, digest: str, mode: int) -> bool:
    """Copy a file aside and give it its name if its content has the digest; returns whether it has."""
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = target.with_name(f"{target.name[:200]}.{os.getpid()}")
    found = hashlib.sha256()
    try:
        with aside.open("wb") as file:
            while piece := source.read(PIECE_BYTES):
                found.update(piece)
                file.write(piece)
        aside.chmod(mode)
        if found.hexdigest() == digest:
            aside.replace(target)
            return True
        return False
    finally:
        aside.unlink(missing_ok=True)


# --- the command ------------------------------------------------------------------------------


def start(asked: Asked) -> None:
    """Start the command under a supervisor with a session of its own; one that was started is not started again."""
    job = Path(asked["job"])
    for folder in (asked["folder"], *(Path(one).parent for one in asked["outputs"])):
        Path(folder).mkdir(parents=True, exist_ok=True)
    for name, target in asked["links"].items():
        with suppress(FileExistsError):
            Path(asked["folder"], name).symlink_to(target)
    lock = os.open(job / "supervisor", os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        (job / "started").touch(exist_ok=False)
    except FileExistsError:
        tell({"started": False})
        return
    if os.fork():
        tell({"started": True})
        return
    try:
        os.setsid()
        if not os.fork():
            supervise(job, asked, lock)
    finally:
        os._exit(0)


def supervise(job: Path, asked: Asked, lock: int) -> None:
    """Run the command to its end, away from whoever started it."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nowhere, number)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    environment = dict(os.environ)
    for name, value in asked["in_front"].items():
        environment[name] = os.pathsep.join(filter(None, (value, environment.get(name, ""))))
    environment |= asked["environment"]
    with (job / LOGS[0]).open("ab", 0) as output, (job / LOGS[1]).open("ab", 0) as errors:
        try:
            process = subprocess.Popen(
                asked["words"], cwd=asked["folder"], env=environment, stdin=nowhere, stdout=output, stderr=errors,
                start_new_session=True, preexec_fn=as_before,
            )  # fmt: skip
        except OSError as error:
            errors.write(f"{asked['words'][0]}: cannot be started ({error.strerror})\n".encode())
            code = 2
        else:
            write_whole(job / "process", str(process.pid))
            code = process.wait()
    write_whole(job / "code", str(code if code >= 0 else 128 - code))
    os.close(lock)


def as_before() -> None:
    """Give the command the mask and the signals that a process has here."""
    os.umask(MASK)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def write_whole(path: Path, text: str) -> None:
    """Write a short file so that nobody meets half of it."""
    aside = path.with_name(path.name + ".new")
    aside.write_text(text, encoding="utf-8")
    aside.replace(path)


def number_in(path: Path) -> int | None:
    """Return the number that stands in a file, None where there is no such file."""
    try:
        return int(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None


def lives(job: Path) -> bool:
    """Return whether the supervisor of a job is alive."""
    try:
        lock = os.open(job / "supervisor", os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def send_signal(asked: Asked) -> None:
    """Send a signal to the command; a killing one to all that it started too."""
    job = Path(asked["job"])
    process = number_in(job / "process")
    runs = process is not None and number_in(job / "code") is None and lives(job)
    if process is not None and runs:
        with suppress(ProcessLookupError):
            if asked["signal"] == signal.SIGKILL:
                os.killpg(process, signal.SIGKILL)
            else:  # Lockstep passes it on to what it runs
                os.kill(process, asked["signal"])
    tell({"sent": runs})


def remove(asked: Asked) -> None:
    """Take a job away."""
    shutil.rmtree(asked["job"], ignore_errors=True)
    tell({"removed": True})


# --- what comes back --------------------------------------------------------------------------


def follow(asked: Asked) -> None:
    """Send what the command prints and writes, from where the other side has it, until it has ended."""
    job, sender = Path(asked["job"]), Sender(asked)
    if not job.is_dir():
        raise FileNotFoundError(
            errno.ENOENT, "is gone, and with it what was not brought back", str(job)
        )
    while True:
        lived = lives(job)
        code = number_in(job / "code")  # asked before: what is there by then is all
        sender.send_all()
        if code is not None or not lived:
            kind = "gone" if code is None else "end"
            tell({"kind": kind, "code": code, "outputs": sender.listings(), "left": left(job)})
            return
        sender.say_alive()
        time.sleep(LOOKS_EVERY_S)


def measure(asked: Asked) -> None:
    """Tell where a recording lies and how large it is; a path begins at the home of the user."""
    path = Path(asked["path"]).expanduser().absolute()
    if not (path / MANIFEST).is_file():
        raise FileNotFoundError(errno.ENOENT, "there is no such recording", str(path))
    sizes = [(path / name).stat().st_size for name in names_below(path)]
    tell({"path": str(path), "bytes": sum(sizes)})


def fetch(asked: Asked) -> None:
    """Send all files of what lies here, from where the other side has them."""
    sender = Sender(asked)
    sender.send_all()
    tell({"outputs": sender.listings(), "kind": "end"})


class Sender:
    """Sends pieces of files, each from where the other side has it."""

    def __init__(self, asked: Asked) -> None:
        self.job, self.outputs = Path(asked["job"]), [Path(one) for one in asked["outputs"]]
        self.logs = list(asked["logs"])
        self.sent = {key: tuple(value) for key, value in asked["have"].items()}
        self.said = time.monotonic()

    def say_alive(self) -> None:
        """Write something now and then, so that the end of the connection is noticed here."""
        if time.monotonic() - self.said > ALIVE_EVERY_S:
            self.say({"kind": "alive"})

    def say(self, values: dict[str, Any], data: bytes = b"") -> None:
        """Answer, and remember when."""
        tell(values, data)
        self.said = time.monotonic()

    def send_logs(self) -> None:
        """Send what the command has printed since."""
        for number, name in enumerate(LOGS):
            with suppress(FileNotFoundError), (self.job / name).open("rb") as file:
                file.seek(self.logs[number])
                while data := file.read(PIECE_BYTES):
                    self.logs[number] += len(data)
                    self.say({"kind": name, "at": self.logs[number]}, data)

    def send_all(self) -> None:
        """Send every file that has changed; manifests are read first and sent last: what they list is there by then."""
        self.send_logs()
        for number, output in enumerate(self.outputs):
            manifests = [name for name in names_below(output) if Path(name).name == MANIFEST]
            held = [(name, opened(output / name)) for name in manifests]
            for name in names_below(output):
                if Path(name).name != MANIFEST:
                    self.send_file(number, name, opened(output / name))
            for name, file in sorted(held, key=lambda one: -len(Path(one[0]).parts)):
                self.send_file(number, name, file)

    def send_file(self, number: int, name: str, file: IO[bytes] | None) -> None:
        """Send what the other side lacks of one file."""
        if file is None:
            return
        key = f"{number}/{name}"
        with file:
            about = os.fstat(file.fileno())
            stamp = (about.st_size, about.st_mtime_ns)
            size, changed, at = self.sent.get(key, (0, 0, 0))
            if (size, changed) != stamp:
                at = 0
            elif at == size:
                return
            file.seek(at)
            while True:
                data = file.read(min(PIECE_BYTES, stamp[0] - at))
                head = {"kind": "file", "number": number, "name": name, "at": at, "stamp": stamp}
                at += len(data)
                self.sent[key] = (*stamp, at)
                self.say(head, data)
                if at == stamp[0] or not data:
                    return
                self.send_logs()

    def listings(self) -> list[dict[str, int]]:
        """Return the files of each output, with their sizes in bytes."""
        return [
            {name: (output / name).stat().st_size for name in names_below(output)}
            for output in self.outputs
        ]


def left(job: Path) -> tuple[int, int]:
    """Return how many files the command has put into its folder, beside those that were sent, and their bytes."""
    tree = job / "tree"
    laid = set(json.loads(whole_of(str(tree)).read_text(encoding="utf-8")))
    names = [name for name in names_below(tree) if name not in laid and "__pycache__" not in name]
    return len(names), sum((tree / name).stat().st_size for name in names)


def opened(path: Path) -> IO[bytes] | None:
    """Open a file to read, None where it is gone: a recorder takes some away."""
    try:
        return path.open("rb")
    except FileNotFoundError:
        return None


def names_below(output: Path) -> list[str]:
    """Return the names of the files of an output, hidden ones left out; an output that is a file is named ""."""
    if output.is_file():
        return [""]
    found = []
    for folder, folders, names in os.walk(output):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        paths = (Path(folder, name) for name in sorted(names) if not name.startswith("."))
        found += [
            str(one.relative_to(output)) for one in paths if one.is_file() and not one.is_symlink()
        ]
    return found


VERBS: dict[str, Callable[[Asked], None]] = {
    "hello": hello,
    "missing": missing,
    "take": take,
    "lay": lay,
    "start": start,
    "signal": send_signal,
    "follow": follow,
    "measure": measure,
    "fetch": fetch,
    "remove": remove,
}


def main(verb: str) -> None:
    """Do what the first line of standard input asks for; an error of the system becomes an answer."""
    try:
        VERBS[verb](json.loads(sys.stdin.buffer.readline()))
    except BrokenPipeError:  # the connection is gone: nobody hears it
        os._exit(0)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        path = str(error.filename or Path.home())
        tell({"error": error.strerror or str(error), "full": full, "path": path})


if __name__ == "__main__":
    main(sys.argv[2])
