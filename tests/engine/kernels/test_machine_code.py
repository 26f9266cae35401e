"""The machine code of paths and processors that this machine lacks, made by cross-compiling."""

import re

import llvmlite.binding as llvm
import pytest
from llvmlite import ir

from diskmoe.engine.kernels.blocks import FORMS, emit_multiply
from diskmoe.engine.kernels.dots import Integers
from diskmoe.engine.kernels.emit import I64
from diskmoe.engine.kernels.paths import Path

QUANTISED = [name for name, form in FORMS.items() if isinstance(form, Integers)]


def assembly(fmt: str, path: str, triple: str, cpu: str) -> str:
    """The tile kernel's code for a processor."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    try:
        target = llvm.Target.from_triple(triple)
    except RuntimeError:
        pytest.skip(f"this LLVM does not make code for {triple}")
    module = ir.Module()
    module.triple = triple
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [I64] * 7), "multiply")
    builder = ir.IRBuilder(function.append_basic_block())
    emit_multiply(builder, fmt, Path(path, True), function.args)
    builder.ret_void()
    made = llvm.parse_assembly(str(module))
    made.verify()
    machine = target.create_target_machine(cpu=cpu, opt=3)
    passes = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=3))
    passes.getModulePassManager().run(made, passes)
    return machine.emit_assembly(made)


def instructions(code: str, pattern: str) -> int:
    return len(re.findall(rf"^\s+{pattern}\s", code, re.MULTILINE))


@pytest.mark.parametrize("fmt", QUANTISED)
def test_the_vnni_path_is_made_of_vpdpbusd(fmt: str) -> None:
    code = assembly(fmt, "avx512vnni", "x86_64-linux-gnu", "znver4")
    dots = instructions(code, "vpdpbusd")
    assert dots >= 8
    assert instructions(code, "vpmaddubsw") == 0
    assert "%zmm" in code
    assert instructions(code, "callq") == 0


@pytest.mark.parametrize("fmt", QUANTISED)
def test_the_avx512bw_path_is_made_of_wide_vpmaddubsw(fmt: str) -> None:
    code = assembly(fmt, "avx512bw", "x86_64-linux-gnu", "skylake-avx512")
    assert re.search(r"vpmaddubsw.*%zmm", code)
    assert instructions(code, "vpdpbusd") == 0
    assert instructions(code, "callq") == 0


@pytest.mark.parametrize("fmt", QUANTISED)
def test_the_avx2_path_is_made_of_vpmaddubsw(fmt: str) -> None:
    code = assembly(fmt, "avx2", "x86_64-linux-gnu", "haswell")
    assert re.search(r"vpmaddubsw.*%ymm", code)
    assert "%zmm" not in code
    assert instructions(code, "callq") == 0


@pytest.mark.parametrize("fmt", QUANTISED)
def test_the_dotprod_path_is_made_of_sdot(fmt: str) -> None:
    code = assembly(fmt, "dotprod", "aarch64-linux-gnu", "apple-m1")
    assert len(re.findall(r"\bsdot(\.4s)?\s+v", code)) >= 8
    assert instructions(code, "bl") == 0


@pytest.mark.parametrize("cpu", ["neoverse-n1", "apple-m1"])
@pytest.mark.parametrize("fmt", QUANTISED)
def test_portable_code_multiplies_whole_vectors_on_arm(fmt: str, cpu: str) -> None:
    code = assembly(fmt, "portable", "aarch64-linux-gnu", cpu)
    whole = instructions(code, r"(smlal2?|smull2?|mla|mul)(\.8h)?") + len(
        re.findall(r"\b(smlal2?|smull2?|mla|mul)(\.8h)?\s+v", code)
    )
    assert whole >= 64
    assert instructions(code, "madd") <= 8  # addresses only
    assert instructions(code, "bl") == 0


def test_portable_code_calls_nothing_on_any_processor_with_fma() -> None:
    code = assembly("q4", "portable", "x86_64-linux-gnu", "haswell")
    assert instructions(code, "callq") == 0
