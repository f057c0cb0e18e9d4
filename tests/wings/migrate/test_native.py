"""CUDA, C++ and CMake sources: each file once and each kernel by its name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.wings.migrate.catalogue import rule_words
from lockstep.wings.migrate.files import native
from lockstep.wings.migrate.plan import Outcome
from lockstep.wings.migrate.targets import migration_targets

KERNELS = """\
// a __global__ void not_this_one(int) {}
#include <cuda_runtime.h>
#include <ATen/cuda/CUDAContext.h>
/* __global__ void nor_this(int); */
const char* text = "__global__ void nor_that(int)";
template <typename T>
__global__ void __launch_bounds__(256, 2) scale_kernel(T* x, int n) { x[0] *= 2; }
static __global__
void add(float* a);
__device__ float helper(float x) { return x; }
void launch(at::Tensor x) {
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "scale", [&] {
    scale_kernel<<<1, 256, 0, at::cuda::getCurrentCUDAStream()>>>(x.data_ptr<scalar_t>(), 1);
  });
  cudaDeviceSynchronize();
}
"""


def native_mentions(text, name, target):
    return native.native_mentions(text, name, migration_targets()[target])


def mentions(text, name="a.cu", target="npu"):
    return [
        (
            mention.rule.split("/")[1],
            mention.outcome.value,
            text[mention.span.start : mention.span.end],
        )
        for mention in native_mentions(text, name, target)
    ]


def test_a_file_is_listed_once_and_each_kernel_by_its_name():
    assert mentions(KERNELS) == [
        ("file", "listed", "#include <cuda_runtime.h>"),
        ("kernel", "listed", "__global__ void __launch_bounds__(256, 2) scale_kernel"),
        ("kernel", "listed", "__global__\nvoid add"),
    ]


def test_the_file_says_what_it_takes_from_cuda_and_what_to_do():
    summary = native_mentions(KERNELS, "a.cu", "npu")[0]
    for part in (
        "2 kernels (scale_kernel, add)",
        "kernel launches (1)",
        "AT_DISPATCH) (1)",
        "streams and guards",
        "device functions (1)",
        "headers cuda_runtime.h, ATen/cuda/CUDAContext.h",
    ):
        assert part in summary.reason
    assert "Ascend C" in summary.replacement


@pytest.mark.parametrize(
    ("target", "word"), [("neutral", "every device"), ("xpu", "SYCL"), ("mps", "Metal")]
)
def test_each_target_has_its_own_advice(target, word):
    assert all(word in mention.replacement for mention in native_mentions(KERNELS, "a.cu", target))


@pytest.mark.parametrize(
    "text",
    [
        "#include <torch/extension.h>\nvoid f() { TORCH_CHECK(x.is_cuda()); }",
        "x.to(torch::kCUDA);",
        "void forward_cuda(int);",
        '#include "cublas_v2.h"\n',
        "c10::cuda::CUDAGuard guard(x.device());",
        "ncclAllReduce(a, b);",
    ],
)
def test_c_plus_plus_that_uses_cuda_is_listed(text):
    assert [item[:2] for item in mentions(text, "a.cpp")] == [("file", "listed")]


@pytest.mark.parametrize(
    "text", ["", "int main() { return 0; }", "#include <torch/torch.h>\nx << 3;"]
)
def test_plain_c_plus_plus_is_not_mentioned(text):
    assert mentions(text, "a.cpp") == []


def test_a_comment_about_cuda_is_kept():
    assert mentions("// like the CUDA version\nint x;", "a.h") == [("prose", "kept", "CUDA")]


def test_a_cuda_source_is_listed_even_where_it_is_empty():
    assert mentions("") == [("file", "listed", "")]


def test_a_build_file_is_listed_line_by_line():
    text = (
        "project(x LANGUAGES CXX CUDA)\n# find_package(CUDA)\nfind_package(CUDAToolkit REQUIRED)\n"
        "add_library(x a.cpp b.cu)\ntarget_link_libraries(x CUDA::cudart torch)\nadd_executable(y y.cpp)\n"
    )
    found = native_mentions(text, "CMakeLists.txt", "npu")
    assert [text[: mention.span.start].count("\n") for mention in found] == [0, 2, 3, 4]
    assert {mention.outcome for mention in found} == {Outcome.LISTED}


def test_every_rule_is_explained():
    assert {
        mention.rule for mention in native_mentions(KERNELS, "a.cu", "npu")
    } <= rule_words().keys()


@given(
    st.lists(
        st.sampled_from(
            ["__global__ ", "void f(", "{", "/*", "*/", '"', "\\", "<<<", "cuda", "\n", "'"]
        ),
        max_size=30,
    )
)
def test_any_text_is_read(pieces):
    text = "".join(pieces)
    for name in ("a.cu", "a.cpp", "CMakeLists.txt"):
        for mention in native_mentions(text, name, "npu"):
            assert 0 <= mention.span.start <= mention.span.end <= len(text)


@pytest.mark.parametrize(
    "piece", ["/*", '"', '\\"', "__global__ ", "__global__ void f(", "LANGUAGES ", "a", "cuda"]
)
def test_hostile_text_takes_no_square_of_its_length(piece):
    for name in ("a.cu", "CMakeLists.txt"):
        native_mentions("cuda\n" + piece * 20_000, name, "npu")
