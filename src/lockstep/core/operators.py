"""Which family an operator belongs to: what is known of how it moves, adds and multiplies
numbers."""

from __future__ import annotations

import re
from enum import Enum
from functools import cache

BY_HAND = "update"
"""What an update of a parameter is called that is no call of an optimizer."""


class Family(str, Enum):
    """Operators that share one error model; see `lockstep.judge.error_model`."""

    MOVEMENT = "moves data"
    GATHER = "gathers by index"
    SMOOTH = "smooth, element by element"
    KINKED = "piecewise linear, element by element"
    ADDITIVE = "adds"
    PRODUCT = "multiplies element by element"
    BILINEAR = "sums products"
    SUM = "sums"
    MEAN = "averages"
    SOFTMAX = "softmax"
    CROSS_ENTROPY = "cross entropy"
    SQUARED_ERROR = "mean squared error"
    NORMALISATION = "normalises"
    ATTENTION = "attention"
    DROPOUT = "dropout"
    RANDOM = "draws random numbers"
    UNINITIALISED = "returns memory as it is"
    UNKNOWN = "unknown"


_NAMES: dict[Family, str] = {
    Family.MOVEMENT: """
        view viewas reshape reshapeas flatten unflatten squeeze unsqueeze transpose swapaxes
        swapdims permute movedim moveaxis t mt h mh contiguous clone detach getitem setitem cat
        concat concatenate stack hstack vstack dstack split splitwithsizes chunk tensorsplit unbind
        narrow select slice expand expandas broadcastto broadcasttensors repeat repeatinterleave
        tile flip fliplr flipud roll rot90 pad where maskedfill maskedselect maskedscatter fill zero
        zeros zeroslike ones oneslike full fulllike newzeros newones newfull newtensor to type
        typeas float half double bfloat16 cpu cuda npu copy asstrided diagonal diag diagembed tril
        triu unfold pixelshuffle pixelunshuffle identity alias liftfresh detachcopy unsafeview
        reshapealias tocopy data real imag neg negative positive arange tensor astensor fromnumpy
        eye linspace onehot meshgrid requiresgrad requiresgradset zerograd channelshuffle atleast1d
        atleast2d atleast3d ravel selectscatter slicescatter zeropad2d constantpad2d reflectionpad2d
        replicationpad2d constantpadnd packpaddedsequence padpackedsequence sort topk
    """,
    Family.GATHER: """
        embedding gather takealongdim indexselect index take scatter indexput indexcopy embeddingbag
    """,
    Family.SMOOTH: """
        gelu newgelu newgeluactivation fastgelu quickgelu pytorchgelutanh geluactivation tanh
        sigmoid silu swish siluactivation softplus mish elu selu celu logsigmoid softsign sin cos
        atan erf logaddexp hardsigmoid
    """,
    Family.KINKED: """
        relu leakyrelu relu6 hardtanh hardswish clamp clip clampmin clampmax abs absolute maxpool1d
        maxpool2d maxpool3d maxpool2dwithindices adaptivemaxpool1d adaptivemaxpool2d prelu threshold
        maximum minimum amax amin max min fmax fmin cummax rrelu
    """,
    Family.ADDITIVE: "add sub subtract rsub lerp",
    Family.PRODUCT: "mul multiply",
    Family.BILINEAR: """
        linear matmul mm bmm mv dot vdot inner outer ger einsum addmm baddbmm addbmm addmv addr
        conv1d conv2d conv3d convtranspose1d convtranspose2d convtranspose3d convolution
        convdepthwise3d mkldnnconvolution bilinear tensordot chainmatmul scaledmm
    """,
    Family.SUM: "sum nansum cumsum indexadd scatteradd scatterreduce trace sumtosize",
    Family.MEAN: """
        mean nanmean avgpool1d avgpool2d avgpool3d adaptiveavgpool1d adaptiveavgpool2d
        adaptiveavgpool3d l1loss nllloss interpolate upsample upsamplebilinear2d upsamplenearest2d
    """,
    Family.SOFTMAX: "softmax logsoftmax safesoftmax softmin",
    Family.CROSS_ENTROPY: """
        crossentropy crossentropyloss binarycrossentropywithlogits bcewithlogitsloss forcausallmloss
    """,
    Family.SQUARED_ERROR: "mseloss",
    Family.NORMALISATION: """
        layernorm nativelayernorm batchnorm batchnorm1d batchnorm2d batchnorm3d nativebatchnorm
        groupnorm nativegroupnorm instancenorm instancenorm1d instancenorm2d rmsnorm fusedrmsnorm
        localresponsenorm normalize syncbatchnorm llamarmsnorm t5layernorm
    """,
    Family.ATTENTION: """
        scaleddotproductattention scaleddotproductflashattention
        scaleddotproductflashattentionforcpu scaleddotproductefficientattention
        scaleddotproductfusedattentionoverrideable flexattention
    """,
    Family.DROPOUT: """
        dropout dropout1d dropout2d dropout3d nativedropout alphadropout featuredropout
        featurealphadropout
    """,
    Family.RANDOM: """
        rand randn randint randperm randlike randnlike randintlike bernoulli normal uniform
        multinomial poisson exponential geometric lognormal cauchy random truncnormal gumbelsoftmax
    """,
    Family.UNINITIALISED: """
        empty emptylike emptystrided newempty newemptystrided emptypermuted resize resizeas
    """,
}
_FAMILIES = {name: family for family, names in _NAMES.items() for name in names.split()}
_ARITHMETIC = frozenset(
    {"add", "sub", "mul", "matmul", "truediv", "floordiv", "pow", "mod", "and", "or", "xor"}
)
_SPELLINGS = {"truediv": "div", "floordiv": "floordivide", "mod": "remainder", "mse": "mseloss"}
_DUNDER = re.compile(r"__(\w+)__")


@cache
def canonical_name(op: str) -> str:
    """The bare name that all spellings of an operator share.

    Examples
    --------
    >>> canonical_name("torch.nn.functional.layer_norm"), canonical_name("torch.nn.LayerNorm")
    ('layernorm', 'layernorm')
    >>> canonical_name("torch.Tensor.__iadd__"), canonical_name("aten.add_.Tensor")
    ('add', 'add')
    """
    for prefix in ("torch.ops.aten.", "aten.", "aten::"):
        if op.startswith(prefix):
            op = op[len(prefix) :].split(".")[0]
            break
    name = op.rsplit(".", 1)[-1]
    name = op.split(".")[-2] if name in ("__get__", "__set__") and op.count(".") else name
    dunder = _DUNDER.fullmatch(name)
    name = dunder[1] if dunder else name
    if dunder and name[:1] in "ri" and name[1:] in _ARITHMETIC:
        name = name[1:]
    bare = name.replace("_foreach", "").replace("_", "").lower()
    return _SPELLINGS.get(bare, bare)


@cache
def family_of(op: str) -> Family:
    """Family of an operator or of a module class, by its name alone.

    Examples
    --------
    >>> family_of("torch.Tensor.transpose").value
    'moves data'
    """
    return _FAMILIES.get(canonical_name(op), Family.UNKNOWN)


_CHAINS = frozenset(
    [
        "lstm",
        "gru",
        "rnntanh",
        "rnnrelu",
        "rnn",
        "mkldnnrnnlayer",
        "multiheadattentionforward",
        "multiheadattention",
        "nativemultiheadattention",
    ]
)


@cache
def chains_matmuls(op: str) -> bool:
    """Whether an operator chains matmuls inside: recurrent layers and cells, whole attention blocks.

    Examples
    --------
    >>> chains_matmuls("torch.nn.GRUCell"), chains_matmuls("torch.nn.GELU")
    (True, False)
    """
    return canonical_name(op).removesuffix("cell") in _CHAINS


def agreed_name(reference: str, candidate: str) -> str:
    """One name for what the two runs spell differently, whichever is the reference."""
    if reference == candidate or not candidate:
        return reference
    if not reference:
        return candidate
    return min((reference, candidate), key=lambda name: (not name.startswith("torch."), name))
