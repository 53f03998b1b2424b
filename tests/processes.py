"""Programs in processes of their own that find torch imported: importing it takes most of their time.

    run("-c", "print(torch.ones(2))").stdout        as subprocess.run([sys.executable, ...])

One process imports torch and nothing else, and forks for each program; another one for each module that is
asked for in torch's place. The program is `__main__` there, with its arguments, environment and folder, and
ends as any other.
"""

import functools
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import types
from pathlib import Path


def run(
    *arguments: str, environment: dict[str, str] | None = None, folder: Path | None = None,
    limit_s: int = 200, loaded: str = "torch",
) -> subprocess.CompletedProcess:
    """What `python ARGUMENTS...` gave back and printed; the first is a script, or `-c` and a text, or `-m` and a
    module. loaded: what is imported already."""
    with tempfile.TemporaryDirectory() as prints:
        parent, out, err = _parent(loaded), Path(prints, "out"), Path(prints, "err")
        print(json.dumps({
            "arguments": arguments, "environment": environment or dict(os.environ),
            "folder": str(folder or Path.cwd()), "out": str(out), "err": str(err),
            "limit_s": limit_s}), file=parent.stdin, flush=True)
        status = int(parent.stdout.readline())
        return subprocess.CompletedProcess(arguments, status, out.read_text(), err.read_text())


def printed(*arguments: str, **choices) -> str:
    """What a program printed that must not fail."""
    done = run(*arguments, **choices)
    assert done.returncode == 0, done.stderr
    return done.stdout


@functools.cache
def _parent(loaded: str) -> subprocess.Popen:
    """It ends with us, who hold its input."""
    return subprocess.Popen(
        [sys.executable, __file__, loaded], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))})


def _serve() -> None:
    """Forks for each line of the input and says how the child ended; a child returns as the program."""
    importlib.import_module(sys.argv[1])
    for line in sys.stdin:
        child = os.fork()
        if not child:
            return _become(**json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def _become(arguments, environment, folder, out, err, limit_s) -> object:
    signal.alarm(limit_s)
    for number, path, flags in (
        (0, os.devnull, os.O_RDONLY), (1, out, os.O_CREAT | os.O_WRONLY),
        (2, err, os.O_CREAT | os.O_WRONLY),
    ):
        os.dup2(os.open(path, flags), number)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    name, *rest = arguments
    paths = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    if name == "-m":
        sys.argv, sys.path = list(arguments[1:]), [folder, *paths, *sys.path[1:]]
        return runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    if name == "-c":
        text, name, place = rest.pop(0), "<string>", ""
    else:
        text, main.__file__, place = Path(name).read_text(), name, str(Path(name).parent.absolute())
    sys.argv, sys.path = [arguments[0], *rest], [place, *paths, *sys.path[1:]]
    exec(compile(text, name, "exec"), main.__dict__)


if __name__ == "__main__":
    _serve()
