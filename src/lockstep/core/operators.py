"""The catalogue of operators: facts about each by its name, stated once for all packages.

`operator_of` gives the record of an operator: its family (which error model it shares), its traits, and where its
factors, its axis and the share that it drops stand among its arguments. A new fact goes into one of the tables here.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

from lockstep.core.records import Call
from lockstep.core.site import CallKind, Role

AUTOGRAD_GRAD = "torch.autograd.grad"
"""The call that gives a script the gradients that it asks for; the engine computes them."""

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
        conv2dchannelslast conv3dchannelslast convgeneral
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
        multinomial poisson exponential geometric lognormal cauchy random truncnormal
    """,
    Family.UNINITIALISED: """
        empty emptylike emptystrided newempty newemptystrided emptypermuted resize resizeas
    """,
}
_FAMILIES = {name: family for family, names in _NAMES.items() for name in names.split()}


class Trait(Enum):
    """A property that several operators share besides their families."""

    VIEWS = "returns the memory that it is given"
    CASTS = "converts to another dtype"
    SHAPES = "its arguments only write an extent: results of one shape have the same elements"
    MAY_BE_IDLE = "the data of a run decide whether it changes anything"
    CLAMPS = "leaves what is within bounds alone"
    SCALES = "multiplies by a factor"
    COMMUTES = "gives the same whichever of its two tensors stands first"
    ADDS_AT_INDEX = "adds up what goes to one index"
    READS_AT_INDEX = "its backward adds up what goes to one index"
    ELEMENTWISE = "of no family, with the extents that its tensors share"
    SELECTS = "the data decide how much it returns, of what goes in at most"
    GROWS = "may make far more than goes in without a number that says so"
    EXPONENTIAL = "makes an absolute error of its input a relative one"
    FEW_ROUNDINGS = "rounded by a library to within a unit in the last place or two"
    STEEP = "its slope is up to 1.76"
    IGNORES_INPUT = "draws numbers whatever its tensors hold"
    CHOOSES = "returns places in its first tensor, after the values there or alone"
    CHAINS_MATMULS = "chains matmuls inside: recurrent layers, whole attention blocks"
    STEPS_THROUGH = (
        "steps through a sequence by tanh and sigmoid, each step on what the last one left"
    )


_TRAITS: dict[Trait, str] = {
    Trait.VIEWS: """
        view viewas reshape reshapeas flatten unflatten squeeze unsqueeze transpose swapaxes permute
        movedim t mh mt detach data getitem narrow select expand asstrided unbind split chunk
        diagonal alias ravel real
    """,
    Trait.CASTS: "to type typeas half bfloat16 float double tocopy",
    Trait.SHAPES: "view reshape expand flatten unflatten",
    Trait.MAY_BE_IDLE: """
        clamp clip clampmin clampmax maximum minimum fmax fmin relu relu6 leakyrelu hardtanh
        threshold add sub mul multiply div divide lerp nantonum where maskedfill pow remainder
        ampnonfinitecheckandunscale zero fill copy addcmul addcdiv
    """,
    Trait.CLAMPS: "clamp clip clampmin clampmax maximum minimum fmax fmin",
    Trait.SCALES: "mul multiply div divide",
    Trait.COMMUTES: """
        add mul multiply maximum minimum fmax fmin eq ne logaddexp hypot dot logicaland logicalor
        logicalxor bitwiseand bitwiseor bitwisexor and or xor
    """,
    Trait.ADDS_AT_INDEX: "indexadd scatteradd scatterreduce",
    Trait.READS_AT_INDEX: "embedding indexselect gather",
    Trait.ELEMENTWISE: """
        pow square sqrt rsqrt reciprocal exp expm1 log log1p eq ne lt le gt ge logicaland logicalor
        logicalnot bitwiseand bitwiseor bitwisenot isnan isinf isfinite
    """,
    Trait.GROWS: """
        outer ger einsum tensordot diagembed diag repeatinterleave repeat tile meshgrid
    """,
    Trait.SELECTS: "nonzero argwhere maskedselect unique uniqueconsecutive ctcloss",
    Trait.EXPONENTIAL: "exp expm1 softmax logsoftmax logsumexp safesoftmax",
    Trait.FEW_ROUNDINGS: "pow square sqrt rsqrt reciprocal log log1p expm1 erfc",
    Trait.STEEP: "elu selu celu",
    Trait.IGNORES_INPUT: "normal uniform exponential random randlike randnlike randintlike",
    Trait.CHOOSES: """
        argmax argmin argsort max min sort topk kthvalue median nanmedian mode cummax cummin
        maxpool1d maxpool2d maxpool3d maxpool2dwithindices adaptivemaxpool1d adaptivemaxpool2d
    """,
    Trait.CHAINS_MATMULS: """
        lstm lstmcell gru grucell rnn rnncell rnntanh rnntanhcell rnnrelu rnnrelucell mkldnnrnnlayer
        multiheadattention multiheadattentionforward nativemultiheadattention
    """,
    Trait.STEPS_THROUGH: """
        lstm lstmcell gru grucell rnn rnncell rnntanh rnntanhcell mkldnnrnnlayer cudnnrnn
    """,
}
_TRAITS_OF: dict[str, set[Trait]] = {}
for _trait, _names in _TRAITS.items():
    for _name in _names.split():
        _TRAITS_OF.setdefault(_name, set()).add(_trait)


@dataclass(frozen=True, slots=True)
class Product:
    """Where the tensors of a sum of products stand.

    left, right: Positions of the two factors among the arguments, and among the tensors.
    added: Position of what is added where that is given, a bias or `out`; None where more tensors are factors too.
    contracted: Axis of the left and of the right factor that the sum goes over; None where none is or a text says
        which.
    filters_last: Whether the right factor of a convolution has its filters on the last axis and channels before them,
        as TensorFlow keeps them, rather than on the first two.
    """

    left: int = 0
    right: int = 1
    added: int | None = 2
    contracted: tuple[int, int] | None = (-1, -2)
    filters_last: bool = False

    def window(self, filters: tuple[int, ...]) -> tuple[int, ...]:
        """Extents of the window that a convolution moves, of the shape of its filters."""
        return filters[:-2] if self.filters_last else filters[2:]

    def terms(self, filters: tuple[int, ...]) -> int:
        """How many products a convolution adds up for each result, of the shape of its filters."""
        return math.prod(filters[:-1] if self.filters_last else filters[1:])


_PRODUCTS: dict[Product, str] = {
    Product(): "matmul mm bmm chainmatmul scaledmm",
    Product(contracted=(-1, -1)): "linear mv dot vdot inner",
    Product(1, 2, 0): "addmm baddbmm addbmm addmmactivation",
    Product(1, 2, 0, (-1, -1)): "addmv",
    Product(1, 2, 0, None): "addr",
    Product(contracted=None): "outer ger",
    Product(added=None, contracted=None): "einsum tensordot bilinear",
    Product(contracted=(1, 1)): """
        conv1d conv2d conv3d convolution convdepthwise3d mkldnnconvolution
    """,
    Product(contracted=(3, 2), filters_last=True): "conv2dchannelslast",
    Product(contracted=(4, 3), filters_last=True): "conv3dchannelslast",
    Product(contracted=(1, 0)): "convtranspose1d convtranspose2d convtranspose3d",
    # Over the keys: the values weighted by what the keys give.
    Product(1, 2, None, (-2, -2)): "scaleddotproductattention",
}
_PRODUCT_OF = {name: product for product, names in _PRODUCTS.items() for name in names.split()}


@dataclass(frozen=True, slots=True)
class Argument:
    """A plain argument of an operator: its name, its position where it has one, and its default."""

    name: str
    position: int | None = None
    default: Any = None

    def of(self, arguments: Mapping[str, Any]) -> Any:
        """Its value among the recorded arguments of a call, or among the settings of a module."""
        for key in (self.name, f"kwargs.{self.name}", f"args.{self.position}"):
            if key in arguments:
                return arguments[key]
        return self.default


ADDEND_FACTOR = Argument("alpha", default=1)
"""What an addition multiplies its second term by."""

QUOTIENT_FACTOR = Argument("value", 3, default=1)
"""What `addcdiv` multiplies its quotient by."""

_AXIS = Argument("dim", 1)
_AXES = {
    "topk": Argument("dim", 2, -1),
    "kthvalue": Argument("dim", 2, -1),
    "sort": Argument("dim", 1, -1),
    "argsort": Argument("dim", 1, -1),
}
_DROPPED = {Family.DROPOUT: Argument("p", 1, 0.5), Family.ATTENTION: Argument("dropout_p", 4, 0.0)}
_NEUTRAL = {"mul": 1, "multiply": 1, "div": 1, "divide": 1, "pow": 1, "add": 0, "sub": 0}


@dataclass(frozen=True, slots=True)
class Operator:
    """The facts about an operator, however it is spelled.

    name: As `canonical_name` gives it.
    family: The error model that it shares.
    traits: What it has in common with others.
    product: Where the tensors of its sum of products stand; None where it is none.
    axis: The argument that says along which axis it works.
    dropped: The argument that says which share it drops at random; None where it drops nothing.
    neutral: The number that leaves any tensor alone as its other operand; None where there is none.
    """

    name: str
    family: Family
    traits: frozenset[Trait]
    product: Product | None
    axis: Argument
    dropped: Argument | None
    neutral: int | None

    @property
    def keeps_elements(self) -> bool:
        """Whether it returns the elements of its one tensor, perhaps in a different order or dtype."""
        return not self.traits.isdisjoint({Trait.VIEWS, Trait.CASTS}) or self.name in _COPIES

    @property
    def convolves(self) -> bool:
        """Whether it is a convolution, forward or backward."""
        return "conv" in self.name

    @property
    def pools(self) -> bool:
        """Whether one input element may go into several outputs of a window."""
        return "pool" in self.name

    @property
    def has_matmuls_inside(self) -> bool:
        """Return whether the operator computes matmuls among other things."""
        return self.family is Family.ATTENTION or Trait.CHAINS_MATMULS in self.traits


_COPIES = frozenset({"clone", "contiguous"})

_ARITHMETIC = frozenset(
    {"add", "sub", "mul", "matmul", "truediv", "floordiv", "pow", "mod", "and", "or", "xor"}
)
_SPELLINGS = {"truediv": "div", "floordiv": "floordivide", "mod": "remainder", "mse": "mseloss"}
_DUNDER = re.compile(r"__(\w+)__")
_FRAMEWORKS = {"tf": "tensorflow", "ms": "mindspore", "jax": "jax"}


@cache
def _names_of(framework: str) -> dict[str, str]:
    """Operators of another framework that go by another name than the same one here."""
    text = Path(__file__).with_name(f"{framework}_names.csv").read_text(encoding="utf-8")
    return {row["operator"]: row["name"] for row in csv.DictReader(text.splitlines())}


@cache
def canonical_name(op: str) -> str:
    """The bare name that all spellings of an operator share.

    Examples
    --------
    >>> canonical_name("torch.nn.functional.layer_norm"), canonical_name("torch.nn.LayerNorm")
    ('layernorm', 'layernorm')
    >>> canonical_name("torch.Tensor.__iadd__"), canonical_name("aten.add_.Tensor")
    ('add', 'add')
    >>> canonical_name("tf.BiasAdd"), canonical_name("tf.LeakyRelu")
    ('add', 'leakyrelu')
    >>> canonical_name("jax.reduce_sum"), canonical_name("jax.conv_general_dilated.HWIO")
    ('sum', 'conv2dchannelslast')
    """
    framework = _FRAMEWORKS.get(op.partition(".")[0])
    if framework is not None:
        bare = op.partition(".")[2]
        return _names_of(framework).get(bare, bare.lower())
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
def operator_of(op: str) -> Operator:
    """Return the facts about an operator or a module class, by its name alone.

    Examples
    --------
    >>> operator_of("aten.addmm.default").product
    Product(left=1, right=2, added=0, contracted=(-1, -2))
    >>> Trait.CASTS in operator_of("torch.Tensor.half").traits
    True
    """
    name = canonical_name(op)
    family = _FAMILIES.get(name, Family.UNKNOWN)
    return Operator(
        name,
        family,
        frozenset(_TRAITS_OF.get(name, ())),
        _PRODUCT_OF.get(name),
        _AXES.get(name, _AXIS),
        _DROPPED.get(family),
        _NEUTRAL.get(name),
    )


def family_of(op: str) -> Family:
    """Family of an operator or of a module class, by its name alone.

    Examples
    --------
    >>> family_of("torch.Tensor.transpose").value
    'moves data'
    """
    return operator_of(op).family


def chains_matmuls(op: str) -> bool:
    """Whether an operator chains matmuls inside: recurrent layers and cells, whole attention blocks.

    Examples
    --------
    >>> chains_matmuls("torch.nn.GRUCell"), chains_matmuls("torch.nn.GELU")
    (True, False)
    """
    return Trait.CHAINS_MATMULS in operator_of(op).traits


def writes_in_place(op: str) -> bool:
    """Whether an operator writes into the tensor that it is given first, by its name.

    Examples
    --------
    >>> [writes_in_place(op) for op in ("torch._foreach_mul_", "aten.add_.Tensor", "torch.Tensor.__imul__")]
    [True, True, True]
    >>> writes_in_place("torch.Tensor.mul"), writes_in_place("torch.Tensor.__invert__")
    (False, False)
    """
    name = op.split(".")[1] if op.startswith("aten.") else op.rpartition(".")[2]
    dunder = _DUNDER.fullmatch(name)
    if dunder:
        return dunder[1][:1] == "i" and dunder[1][1:] in _ARITHMETIC
    return name.endswith("_")


def agreed_name(reference: str, candidate: str) -> str:
    """Return one name for an operator that two runs spell differently, whichever is the reference."""
    if reference == candidate or not candidate:
        return reference
    if not reference:
        return candidate
    return min((reference, candidate), key=lambda name: (not name.startswith("torch."), name))


# The operators that a script itself calls on the gradient of one parameter: an all-reduce, a division, a clamp.
#
# A loop over the parameters may take them in any order, and share them out over ranks: the parameter tells which call
# is which, where their order tells nothing.


def parameters_by_call(calls: Sequence[Call]) -> dict[int, str]:
    """Return the name of the parameter whose gradient, and no other tensor, a call takes, by the call's id.

    Told by contents: one that is the gradient of several parameters, as zeros may be, tells nothing.
    """
    of: dict[int, str] = {}
    found: dict[int, str] = {}
    for call in calls:
        given, made = call.with_role(Role.INPUT), call.with_role(Role.OUTPUT)
        if call.kind is CallKind.GRADIENT:
            for record in call.with_role(Role.PARAM_GRAD):
                _tell(of, record.content.id, record.name)
        elif call.kind is CallKind.OPERATOR and call.parent == -1 and len(given) == 1:
            name = of.get(given[0].content.id, "")
            if name:
                found[call.id] = name
                for record in made:
                    if record.shape == given[0].shape:  # it is the gradient still
                        _tell(of, record.content.id, name)
    return found


def _tell(of: dict[int, str], content: int, name: str) -> None:
    of[content] = name if of.get(content, name) == name else ""


__all__ = ["parameters_by_call"]
