"""Kernels to machine code: LLVM IR text, object file, flat image.

    build((softmax_0, gelu_1), host_target()) -> Image(code, (("softmax_0", 0), ("gelu_1", 1280)))

All kernels of a plan are one module (a module costs 3-4 ms however small). Kernels arrive as
explicit-vector code, so of LLVM's optimiser only instcombine runs: it compiles three times as fast
as O3 for 0.88-0.99x of its run time (research/cpu.md, K1). The runtime's text says which of its
functions join their callers; with that, a call takes as long as after O2, for a sixth of the time
to compile. The only door to llvmlite.
"""

import functools
import platform
from collections.abc import Sequence
from dataclasses import replace

import llvmlite
import llvmlite.binding as llvm

from preheat.base.errors import InternalError, UserError
from preheat.base.events import emit, wants
from preheat.generate.emit import module_text
from preheat.generate.link import Linked, link
from preheat.ir.features import BASELINE, FEATURES, vector_bytes
from preheat.ir.loop import Kernel
from preheat.ir.pack import digest
from preheat.ir.plan import Image, Target

__all__ = ["Linked", "build", "compile_text", "cpu_target", "host_target", "image", "link"]

_ARCH = {"x86_64": "x86_64", "AMD64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}


@functools.cache
def host_target() -> Target:
    """The CPU of this process. Raises UserError on an architecture without a generator."""
    arch = _ARCH.get(platform.machine())
    if arch is None:
        raise UserError(f"no code generator for {platform.machine()}; known: {', '.join(FEATURES)}")
    present = llvm.get_host_cpu_features()
    return cpu_target(arch, [name for name in FEATURES[arch] if present.get(name)])


def cpu_target(arch: str, features) -> Target:
    """A CPU that has `features` (rows of `ir.features.FEATURES`); it need not be this one."""
    unknown = set(features) - set(FEATURES[arch])
    if unknown:
        known = ", ".join(FEATURES[arch])
        raise UserError(f"unknown {arch} features {sorted(unknown)}; known: {known}")
    wanted = {*features, *BASELINE[arch]}
    ordered = tuple(name for name in FEATURES[arch] if name in wanted)
    compiler = f"llvmlite {llvmlite.__version__} llvm {'.'.join(map(str, llvm.llvm_version_info))}"
    return Target("cpu", arch, ordered, vector_bytes(ordered), compiler)


def build(kernels: Sequence[Kernel], target: Target) -> Image:
    """The machine code of `kernels`, one entry a name; kernels equal but for the name share code.

    Raises InternalError for a kernel that has no native form.
    """
    first: dict[str, str] = {}  # by digest: kernels that differ in the sign of a zero are equal
    aliases = {k.name: first.setdefault(digest(replace(k, name="")), k.name) for k in kernels}
    distinct = [k for k in kernels if aliases[k.name] == k.name]
    text = module_text(distinct, target)
    if wants("stage"):
        emit("stage", name="llvm", text=text)
    made = image(text, target)
    offsets = dict(made.entries)
    return replace(made, entries=tuple((name, offsets[same]) for name, same in aliases.items()))


def image(text: str, target: Target) -> Image:
    """The functions of an LLVM IR module as a flat image. Raises as `compile_text` and `link`."""
    linked = link(compile_text(text, target))
    return Image(linked.code, linked.entries, target)


def compile_text(text: str, target: Target) -> bytes:
    """The ELF object of an LLVM IR module. Raises InternalError for text that LLVM refuses."""
    machine = _target_machine(target)
    try:
        module = llvm.parse_assembly(text, llvm.create_context())
    except RuntimeError as error:
        raise InternalError(f"LLVM refused generated code: {error}") from error
    module.triple = _triple(target)
    module.data_layout = str(machine.target_data)
    _optimise(module, machine)
    return machine.emit_object(module)


def _optimise(module, machine) -> None:
    options = llvm.create_pipeline_tuning_options(speed_level=0)
    passes = llvm.create_new_module_pass_manager()
    passes.add_always_inliner_pass()
    passes.add_instruction_combine_pass()
    passes.run(module, llvm.create_pass_builder(machine, options))


@functools.lru_cache(maxsize=8)
def _target_machine(target: Target):
    if target.arch not in FEATURES:
        raise InternalError(f"target {target.arch} is no CPU that LLVM code is generated for")
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    # "generic" plus features: a CPU's name would add features and costs of its own
    return llvm.Target.from_triple(_triple(target)).create_target_machine(
        cpu="x86-64" if target.arch == "x86_64" else "generic",
        features=",".join("+" + name for name in target.features),
        opt=2, reloc="pic", codemodel="small",
    )


def _triple(target: Target) -> str:
    return f"{target.arch}-unknown-linux-gnu"
