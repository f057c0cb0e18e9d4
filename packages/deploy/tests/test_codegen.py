"""`lockstep codegen`: C of a model, its static memory, and its results beside the runtime's."""

import functools
import json
import re
import shutil
import subprocess

import jinja2
import numpy as np
import onnx_models
import pytest
from click.testing import CliRunner
from emx_onnx_cgen.codegen import c_emitter
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

from lockstep.cli.main import main as command_line
from lockstep_deploy.codegen.arena import Buffer, placed, with_arena
from lockstep_deploy.codegen_command import codegen
from lockstep_deploy.quantize_command import quantize


class _Kept(jinja2.BytecodeCache):
    """What the engine's 169 templates compile to, which it does anew for each program."""

    def __init__(self):
        self._kept = {}

    def load_bytecode(self, bucket):
        if bucket.key in self._kept:
            bucket.bytecode_from_string(self._kept[bucket.key])

    def dump_bytecode(self, bucket):
        self._kept[bucket.key] = bucket.bytecode_to_string()


@pytest.fixture(scope="module", autouse=True)
def templates():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            c_emitter, "Environment", functools.partial(jinja2.Environment, bytecode_cache=_Kept())
        )
        yield


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model with samples, in a folder."""
    folder = tmp_path_factory.mktemp("codegen")
    np.savez(
        folder / "x.npz", x=np.random.default_rng(0).standard_normal((16, 3, 8, 8)).astype("f4")
    )
    return onnx_models.written(onnx_models.convolution(), folder / "model.onnx")


def generate(model, output, *options):
    command = [
        str(model),
        "-o",
        str(output),
        "--json",
        "--inputs",
        str(model.parent / "x.npz"),
        *options,
    ]
    result = CliRunner().invoke(codegen, command, standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return result.return_value, json.loads(result.stdout)


@pytest.fixture(scope="module")
def sources(model):
    """The C of the model."""
    folder = model.parent / "src"
    code, found = generate(model, folder, "--name", "net")
    assert code == 0, found["headline"]
    return folder, found


def test_the_program_gives_what_the_runtime_gives(sources):
    folder, found = sources
    assert found["headline"].startswith("AGREES")
    (result,) = found["results"]
    assert result["name"] == "logits"
    assert result["max_abs"] <= result["allowed"] < 1e-3
    assert {one.name for one in folder.iterdir()} == {
        "Makefile", "net.c", "net.h", "test.c", "test_data.h", "weights.c"
    }  # fmt: skip


def test_all_memory_is_static_and_values_share_it(sources):
    folder, found = sources
    code = (folder / "net.c").read_text()
    assert not re.search(r"\b(malloc|calloc|realloc|free)\s*\(", code)
    assert f"unsigned char bytes[{found['arena_bytes']}]" in code
    assert found["largest_buffer"]["bytes"] == 8 * 8 * 8 * 4
    assert found["largest_buffer"]["bytes"] <= found["arena_bytes"] < found["unshared_bytes"]


def test_its_makefile_builds_and_tests_it_and_a_wrong_weight_fails_the_test(sources, tmp_path):
    folder = shutil.copytree(sources[0], tmp_path / "src")
    passed = subprocess.run(
        ["make", "-s", "test"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert (passed.returncode, passed.stdout, passed.stderr) == (0, "all results agree\n", "")
    weights = (folder / "weights.c").read_text()
    wrong = re.sub(r"-?0x1\.[0-9a-f]+p[+-]\d+f(?!.*0x1)", "99.5f", weights, flags=re.DOTALL)
    assert wrong != weights
    (folder / "weights.c").write_text(wrong)
    failed = subprocess.run(
        ["make", "-s", "test"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert failed.returncode != 0
    assert "elements are off by more than is allowed" in failed.stdout


@pytest.mark.parametrize("options", [["--bits", "8"], ["--bits", "5", "--weight-only"]])
def test_quantised_models_are_generated_too(model, tmp_path, options):
    samples = [] if "--weight-only" in options else ["--ranges-from", str(model.parent / "x.npz")]
    quantised = model.parent / f"int{options[1]}.onnx"
    CliRunner().invoke(
        quantize, [str(model), "-o", str(quantised), *options, *samples], standalone_mode=False
    )
    code, found = generate(quantised, tmp_path / "src", "--samples", "3")
    assert code == 0, found["headline"]
    assert found["samples"] == 3
    if samples:
        assert "bit by bit" in found["headline"]


VECTORS = """\
extern void _start(void);
__attribute__((section(".vectors"), used)) void *const vectors[] = {(void *)0x20400000, _start};
"""


def on_cortex_m(folder, name):
    """What the test program says on a Cortex-M4, which QEMU emulates with the C library's own file access."""
    (folder / "vectors.c").write_text(VECTORS)
    flags = (
        "-std=gnu99 -mcpu=cortex-m4 -mthumb -Os -ffp-contract=off -fno-strict-aliasing --specs=rdimon.specs"
        " -Wl,--section-start=.vectors=0 -Wl,-Tdata=0x20000000"
    )
    files = ["vectors.c", "test.c", f"{name}.c", "weights.c", "-lm", "-o", "check.elf"]
    subprocess.run(["arm-none-eabi-gcc", *flags.split(), *files], cwd=folder, check=True)
    machine = "qemu-system-arm -M mps2-an386 -nographic -semihosting-config enable=on,target=native"
    done = subprocess.run(
        [*machine.split(), "-kernel", "check.elf"], cwd=folder, capture_output=True, text=True, check=False, timeout=120
    )  # fmt: skip
    return done.returncode, done.stdout


@pytest.mark.exhaustive
@pytest.mark.skipif(
    not all(map(shutil.which, ("arm-none-eabi-gcc", "qemu-system-arm"))),
    reason="needs Debian's gcc-arm-none-eabi and qemu-system-arm",
)
@pytest.mark.parametrize("bits", [32, 8])
def test_the_program_gives_the_same_on_a_cortex_m(model, bits, tmp_path):
    # given the C of a model in float32, and in 8 bits
    source = model
    if bits == 8:
        source = model.parent / "cortex8.onnx"
        samples = str(model.parent / "x.npz")
        given = [str(model), "-o", str(source), "--ranges-from", samples, "--force"]
        CliRunner().invoke(quantize, given, standalone_mode=False)
    folder = tmp_path / "src"
    assert generate(source, folder, "--name", "net")[0] == 0
    # when it is cross-compiled and run
    # then its results are the recorded ones, and a wrong weight fails
    assert on_cortex_m(folder, "net") == (0, "all results agree\n")
    data = (folder / "test_data.h").read_text()
    (folder / "test_data.h").write_text(re.sub(r"0x1\.[0-9a-f]+p\+0f", "99.5f", data))
    code, said = on_cortex_m(folder, "net")
    assert code == 1
    assert "elements are off by more than is allowed" in said


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 9), st.integers(0, 9)), max_size=12))
def test_buffers_that_live_at_once_never_overlap(drawn):
    buffers = [
        Buffer(f"b{at}", "float", (extent,), min(one, two), max(one, two))
        for at, (extent, one, two) in enumerate(drawn)
    ]
    arena = placed(buffers)
    assert set(arena.offsets) == set(buffers)
    for one, at in arena.offsets.items():
        assert at % 8 == 0
        assert at + one.size_bytes <= arena.size_bytes
        for other, place in arena.offsets.items():
            if one is not other and one.first <= other.last and other.first <= one.last:
                assert at + one.size_bytes <= place or place + other.size_bytes <= at
    assert (
        max((one.size_bytes for one in buffers), default=0)
        <= arena.size_bytes
        <= sum(one.size_bytes + 8 for one in buffers)
    )


def test_a_form_that_is_not_known_is_refused():
    from lockstep.core.errors import UsageError

    with pytest.raises(UsageError, match="no arena can be planned"):
        with_arena("void net(float x[1]) {\n    float t[1];\n    while (1) {}\n}\n", "net")


def test_what_cannot_be_generated_is_said_in_a_sentence_and_nothing_is_written(
    model, tmp_path, capsys, monkeypatch
):
    node = helper.make_node("NoSuchOperator", ["x"], ["y"], domain="com.microsoft")
    odd = onnx_models.made([node], [("x", [1, 3])], [("y", [1, 3])])
    odd.opset_import.add(domain="com.microsoft", version=1)
    path = onnx_models.written(odd, tmp_path / "odd.onnx")
    output = tmp_path / "src"
    assert command_line(["codegen", str(path), "-o", str(output)]) == 2
    assert "NoSuchOperator" in capsys.readouterr().err
    assert command_line(["codegen", str(model), "-o", str(output), "--name", "int main"]) == 2
    assert "not a name for the C function" in capsys.readouterr().err
    output.mkdir()
    (output / "mine.txt").write_text("mine")
    assert command_line(["codegen", str(model), "-o", str(output), "--force"]) == 2
    assert "holds files that codegen did not write" in capsys.readouterr().err
    assert (output / "mine.txt").read_text() == "mine"


def test_without_a_compiler_the_answer_says_that_nothing_was_compared(model, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    code, found = generate(model, tmp_path / "src")
    assert code == 2
    assert found["headline"].startswith("NOT COMPARED")
    assert found["agrees"] is None
    assert (tmp_path / "src" / "Makefile").exists()
