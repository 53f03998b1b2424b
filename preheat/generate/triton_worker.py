"""The text of one kernel to a cubin, in this process or in one of its own. A door to Triton.

    compiled(job) -> Made(cubin, ...)       here; threads may call at once
    serve(reader, writer)                   a process of its own: jobs come in, what is made goes out

Linking libdevice and reading the kernel's text hold the interpreter's lock, a third to a half of a
kernel's time, so threads hardly win. The process that serves has imported Triton and nothing else,
runs no thread and no GPU, and forks: a job begins with everything warm, and a crash in
LLVM or ptxas is that job's alone. A fork compiles one job after another as long as there are any, for 0.85 of the
processor time that one each takes. It is run as a program by the path of this file, so it needs nothing
of the user's `__main__`, and it imports nothing of Preheat, whose import costs that of torch.

Triton's own `compile` keeps a cache on disk, whose key is a digest of its library of 400 MB: 0.3 to 0.7 s
of a first call, for what our cache has already. So its stages are run one by one where they take what they
took when this was written (triton 3.6); elsewhere its `compile` runs.
"""

import collections
import functools
import gc
import importlib
import inspect
import linecache
import marshal
import os
import re
import select
import signal
import sys
from typing import Any, NamedTuple

SIZE = 4  # bytes of a message's length

# What a process compiles before it takes jobs: after it, all that Triton loads or sets up is there.
_FIRST = """
import triton
import triton.language as tl
from triton.language.extra import libdevice
@triton.jit
def first(p0, p1):
    x = tl.arange(0, 128)
    tl.store(p1 + x, libdevice.exp(tl.load(p0 + x)) / tl.sum(tl.load(p0 + x), 0))
"""


class Job(NamedTuple):
    """A kernel as plain values.

    file        by which Triton finds the text again
    signature   Triton's type of each parameter
    multiples   what each parameter is a multiple of, 1 where that is not known
    stages      loads on their way at a time, 0 for Triton's choice; warp: threads of one
    is_fused    a product and a sum are one instruction, rounded once
    registers   the most that a thread has, 0 for Triton's choice
    """

    name: str
    text: str
    file: str
    signature: tuple[str, ...]
    multiples: tuple[int, ...]
    warps: int
    stages: int
    has_check: bool
    is_fused: bool
    maker: str
    arch: int
    warp: int
    registers: int = 0


class Made(NamedTuple):
    """What a launch needs to know. `parameters`: of the binary, those that Triton adds included."""

    cubin: bytes
    name: str
    parameters: int
    shared_bytes: int
    scratch_bytes: int


def compiled(job: Job) -> Made:
    """The binary of `job`. Raises whatever Triton raises."""
    texts, metadata = lowered(job)
    declared = texts["ptx"].split(".entry", 1)[1].split(")", 1)[0]
    return Made(
        texts["cubin"], metadata["name"], len(re.findall(r"\.param", declared)),
        metadata["shared"], metadata["global_scratch_size"] or 0)


def lowered(job: Job, is_direct: bool = True) -> tuple[dict[str, Any], dict[str, Any]]:
    """The kernel at each of Triton's stages, and what Triton says of it. Both ways give the same binary;
    is_direct: without Triton's own cache, where the stages are known."""
    compiler = importlib.import_module("triton.compiler.compiler")
    function = _function(job)
    multiples = {
        (k,): [["tt.divisibility", number]] for k, number in enumerate(job.multiples) if number > 1}
    signature = dict(zip(function.arg_names, job.signature, strict=True))
    source = compiler.ASTSource(function, signature, {}, multiples)
    target = compiler.GPUTarget(job.maker, job.arch, job.warp)
    options = {
        "num_warps": job.warps, "debug": job.has_check, "sanitize_overflow": False,
        "enable_reflect_ftz": False, "enable_fp_fusion": job.is_fused,
        "ptx_options": "-suppress-debug-info",  # lines of a text in no file: two thirds of a binary
    }
    if job.stages:
        options["num_stages"] = job.stages
    if job.registers:
        options["maxnreg"] = job.registers
    backend = compiler.make_backend(target)
    if not is_direct or not _is_known(type(source), type(backend)):
        made = compiler.compile(source, target=target, options=options)
        text = halved(unpacked(made.asm["ptx"]))
        if text != made.asm["ptx"]:
            made.asm["ptx"] = text
            made.asm["cubin"] = backend.make_cubin(text, {}, backend.parse_options(options), job.arch)
        return made.asm, made.metadata._asdict()
    options = backend.parse_options({**options, **source.parse_options()})
    context = compiler.ir.context()
    compiler.ir.load_dialects(context)
    backend.load_dialects(context)
    stages: dict[str, Any] = {}
    backend.add_stages(stages, options, source.language)
    texts: dict[str, Any] = {}
    metadata = {"target": target, **vars(options)}
    module = source.make_ir(
        target, options, backend.get_codegen_implementation(options), backend.get_module_map(), context)
    for name, run in stages.items():
        module = run(module, metadata)
        if name == "ptx":
            module = halved(unpacked(module))
        texts[name] = module if isinstance(module, (str, bytes)) else str(module)
    return texts, metadata


def unpacked(ptx: str) -> str:
    """`ptx` with sums of two 16-bit integers in a word as two sums.

    ptxas (12.8) takes 0 for a constant one of `add.s16x2` if nothing reads the upper half of the result: a
    mask that LLVM computes for two positions at once is off then.
    """
    return _PACKED.sub(_apart, ptx)


_PACKED = re.compile(r"\b(add|min|max)\.([su]16)x2\s+(%\w+), (%\w+), (%\w+);")


def _apart(found: re.Match) -> str:
    op, dtype, result, left, right = found.groups()
    return (
        f"{{ .reg .b16 %a<2>, %b<2>; mov.b32 {{%a0, %a1}}, {left}; mov.b32 {{%b0, %b1}}, {right}; "
        f"{op}.{dtype} %a0, %a0, %b0; {op}.{dtype} %a1, %a1, %b1; mov.b32 {result}, {{%a0, %a1}}; }}")


def halved(ptx: str) -> str:
    """`ptx` with two 16-bit floats rounded by one instruction, and each bfloat16 widened by one.

        cvt.rn.bf16.f32 %rs1, %r1;             cvt.rn.bf16x2.f32 %pair0, %r2, %r1;
        cvt.rn.bf16.f32 %rs2, %r2;      ->     mov.b32 {%rs1, %rs2}, %pair0;
        cvt.f32.bf16 %r3, %rs2;                and.b32 %r3, %pair0, -65536;

    ptxas (12.8) moves the upper half of a word down and then up, and rounds one by one what LLVM does. A chain
    of norm, gelu, sigmoid and softmax has 2496 instructions for 32 elements so, not 2560, and 32 fewer of the slowest unit.
    """
    if len(_ENTRIES.findall(ptx)) != 1:  # registers are named anew in each function
        return ptx
    count = 0

    def paired(found: re.Match) -> str:
        nonlocal count
        count += 1
        kind, low, first, high, second = found.groups()
        return (
            f"cvt.rn.{kind}x2.f32 \t%pair{count - 1}, {second}, {first};\n"
            f"\tmov.b32 \t{{{low}, {high}}}, %pair{count - 1};")

    ptx = _NEIGHBOURS.sub(paired, ptx)
    words = _words(ptx)

    def widened(found: re.Match) -> str:
        wide, half = found.groups()
        if half not in words:
            return found[0]
        word, is_upper = words[half]
        how, by = ("and", -65536) if is_upper else ("shl", 16)
        return f"{how}.b32 \t{wide}, {word}, {by};"

    ptx = _WIDENED.sub(widened, ptx)
    return ptx.replace("\t.reg ", f"\t.reg .b32 \t%pair<{count}>;\n\t.reg ", 1) if count else ptx


_ENTRIES = re.compile(r"^\s*(?:\.\w+ )*\.(?:entry|func)\b", re.M)
_NEIGHBOURS = re.compile(
    r"cvt\.rn\.(?P<kind>bf16|f16)\.f32\s+(%\w+), (%\w+);\n\tcvt\.rn\.(?P=kind)\.f32\s+(%\w+), (%\w+);")
_WIDENED = re.compile(r"cvt\.f32\.bf16\s+(%\w+), (%\w+);")
# A label or a branch, where a block ends, or what an instruction gives
_STEPS = re.compile(
    r"^\$?\w+:|\bbra\b|(?:^|[;{])\s*(?:@!?%\w+\s+)?[a-z][\w.:]*\s+(%\w+|\{[^}]*\})\s*,(?:\s*(%\w+);)?", re.M)


def _words(ptx: str) -> dict[str, tuple[str, bool]]:
    """The 16-bit registers that are half of a word wherever they are read: the word, and whether it is the upper
    half. Each is given once, and its word before it in the same block alone."""
    block, halves = 0, []
    given: dict[str, list[int]] = {}  # the blocks
    for step in _STEPS.finditer(ptx):
        made, source = step.groups()
        if made is None:
            block += 1
            continue
        names = re.findall(r"%\w+", made)
        if len(names) == 2 and source and "mov.b32" in step[0] and given.get(source, ()) and (
                set(given[source]) == {block}):
            halves += [(name, source, len(given[source]), k == 1) for k, name in enumerate(names)]
        for name in names:
            given.setdefault(name, []).append(block)
    return {
        half: (word, is_upper) for half, word, times, is_upper in halves
        if len(given[half]) == 1 and len(given[word]) == times}


@functools.cache
def _is_known(source: type, backend: type) -> bool:
    """Whether Triton's stages take what they are given above."""
    return [*inspect.signature(source.make_ir).parameters] == [
        "self", "target", "options", "codegen_fns", "module_map", "context"
    ] and [*inspect.signature(backend.add_stages).parameters] == ["self", "stages", "options", "language"]


def _function(job: Job) -> Any:
    """The kernel as Triton's function object; Triton reads its text by the file name."""
    linecache.cache[job.file] = (len(job.text), None, job.text.splitlines(True), job.file)
    names: dict[str, Any] = {"__name__": "preheat.kernels"}
    exec(compile(job.text, job.file, "exec"), names)  # noqa: S102 - our own text
    return names[job.name]


# ---------------------------------------------------------------------------- the process
def serve(reader: int, writer: int) -> None:
    """Compiles what comes in at `reader`, as many at a time as the first message says, until that is
    closed or nothing has come for long.

    The first message is (the search path for modules, how many, how long in seconds, and of a Job maker, arch
    and warp), all others (number, fields of a Job). What goes out is (number, what, value): "made" with the fields of a Made, "refused"
    with the reason, "died" with the signal; first, of number -1, "ready", or "failed" with the reason.
    """
    incoming, waiting = Messages(), collections.deque()
    helpers: dict[int, _Helper] = {}  # by the end of the pipe at which their answers come
    most, idle_s = 0, None
    while True:
        while waiting:
            helper = next((one for one in helpers.values() if one.job is None), None)
            if helper is None:
                if len(helpers) >= most:
                    break
                helper = _helper((reader, writer, *(end for one in helpers.values() for end in one.ends)))
                helpers[helper.answers] = helper
            number, fields = waiting.popleft()
            try:
                send(helper.jobs, fields)
                helper.job = number
            except BrokenPipeError:  # the system has ended it
                waiting.appendleft((number, fields))
                _ended(helpers.pop(helper.answers))
        if all(one.job is None for one in helpers.values()):  # they have grown, new ones are made in 2 ms
            while helpers:
                _ended(helpers.popitem()[1])
        ready, _, _ = select.select([reader, *helpers], [], [], None if helpers else idle_s)
        if not ready:
            return
        for end in ready:
            data = os.read(end, 1 << 20)
            if end != reader:
                helper = helpers[end]
                for answer in helper.messages.fed(data):
                    send(writer, (helper.job, *answer))
                    helper.job = None
                if not data:
                    del helpers[end]
                    lost, status = helper.job, _ended(helper)
                    if lost is not None:
                        send(writer, (lost, "died", os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0))
                continue
            if not data:
                return
            for message in incoming.fed(data):
                if most:
                    waiting.append(message)
                    continue
                path, most, idle_s, *target = message
                sys.path[:] = path
                os.environ["TRITON_DISABLE_LINE_INFO"] = "1"  # a text of lines is twice as long to compile
                try:
                    compiled(Job("first", _FIRST, "<first>", ("*fp32",) * 2, (16,) * 2, 4, 0, False, False, *target))
                except BaseException as error:
                    send(writer, (-1, "failed", f"{type(error).__name__}: {error}"))
                    return
                gc.freeze()
                send(writer, (-1, "ready", ""))


class _Helper:
    """A process that compiles one job after another. job: the number of the one that it is at work on."""

    def __init__(self, process: int, jobs: int, answers: int):
        self.process, self.jobs, self.answers = process, jobs, answers
        self.ends = jobs, answers
        self.messages = Messages()
        self.job: int | None = None


def _helper(others: tuple[int, ...]) -> _Helper:
    """A new process. others: ends of pipes that are not its own."""
    (job_reader, jobs), (answers, answer_writer) = os.pipe(), os.pipe()
    process = os.fork()
    if process:
        os.close(job_reader)
        os.close(answer_writer)
        return _Helper(process, jobs, answers)
    try:
        for end in (jobs, answers, *others):
            os.close(end)
        incoming = Messages()
        while data := os.read(job_reader, 1 << 20):
            for fields in incoming.fed(data):
                try:
                    answer: tuple[str, Any] = "made", tuple(compiled(Job(*fields)))
                except Exception as error:
                    answer = "refused", f"{type(error).__name__}: {error}"
                send(answer_writer, answer)
    finally:
        os._exit(0)


def _ended(helper: _Helper) -> int:
    """The status with which a process has ended, or ends when it gets no more jobs."""
    for end in helper.ends:
        os.close(end)
    return os.waitpid(helper.process, 0)[1]


class Messages:
    """Bytes as they come, cut into messages."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def fed(self, data: bytes) -> list[Any]:
        """The messages that `data` completes."""
        self._bytes += data
        found = []
        while len(self._bytes) >= SIZE:
            end = SIZE + int.from_bytes(self._bytes[:SIZE], "little")
            if len(self._bytes) < end:
                break
            found.append(marshal.loads(self._bytes[SIZE:end]))
            del self._bytes[:end]
        return found


def send(writer: int, message: tuple) -> None:
    """`message`, as `Messages` reads it."""
    data = marshal.dumps(message)
    write(writer, len(data).to_bytes(SIZE, "little") + data)


def write(writer: int, data: bytes) -> None:
    """All of `data`."""
    view = memoryview(data)
    while view:
        view = view[os.write(writer, view):]


def _main() -> None:
    """Serves at standard input and output. What Triton prints goes the way of errors; an interrupt from the
    terminal is the user's program's."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    reader, writer, nothing = os.dup(0), os.dup(1), os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    try:
        serve(reader, writer)
    except (BrokenPipeError, EOFError):  # who asked is gone
        pass


if __name__ == "__main__":
    _main()
