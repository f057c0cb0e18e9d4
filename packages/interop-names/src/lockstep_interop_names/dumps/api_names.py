"""Translate the operator names of mindstudio-probe and its predecessors into those of torch's API."""

from __future__ import annotations

PREFIXES = {
    "Tensor": "torch.Tensor", "Torch": "torch", "Functional": "torch.nn.functional", "VF": "torch",
    "NPU": "torch_npu", "Aten": "torch.ops.aten", "Distributed": "torch.distributed",
    "MindSpeed": "mindspeed", "Jit": "torch.jit",
}  # fmt: skip
"""Where the operators of a kind live; of another kind than these, the kind itself is told."""

_SPELLED = {
    "__add__": "add", "__radd__": "add", "__iadd__": "add_", "__sub__": "sub", "__isub__": "sub_", "__mul__": "mul",
    "__rmul__": "mul", "__imul__": "mul_", "__truediv__": "div", "__div__": "div", "__itruediv__": "div_",
    "__idiv__": "div_", "__matmul__": "matmul", "__neg__": "neg", "__abs__": "abs", "__mod__": "remainder",
    "__gt__": "gt", "__lt__": "lt", "__ge__": "ge", "__le__": "le", "__ne__": "ne", "__invert__": "bitwise_not",
}  # fmt: skip
"""Operators of the language that torch calls by the name of what they compute."""


def operator_name(kind: str, name: str) -> str:
    """The operator as torch's API spells it.

    >>> operator_name("Functional", "gelu"), operator_name("Tensor", "__add__"), operator_name("Triton", "rope")
    ('torch.nn.functional.gelu', 'torch.Tensor.add', 'Triton.rope')
    """
    if kind == "Tensor":
        name = _SPELLED.get(name, name)
    return f"{PREFIXES.get(kind, kind)}.{name}"


_CLASSES = """
    AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveAvgPool3d AdaptiveMaxPool1d AdaptiveMaxPool2d AdaptiveMaxPool3d
    AlphaDropout AvgPool1d AvgPool2d AvgPool3d BCELoss BCEWithLogitsLoss BatchNorm1d BatchNorm2d BatchNorm3d Bilinear
    CELU CTCLoss ChannelShuffle ConstantPad1d ConstantPad2d ConstantPad3d Conv1d Conv2d Conv3d ConvTranspose1d
    ConvTranspose2d ConvTranspose3d CosineEmbeddingLoss CosineSimilarity CrossEntropyLoss Dropout Dropout1d Dropout2d
    Dropout3d ELU Embedding EmbeddingBag FeatureAlphaDropout Flatten Fold GELU GLU GRU GRUCell GaussianNLLLoss GroupNorm
    Hardshrink Hardsigmoid Hardswish Hardtanh HingeEmbeddingLoss HuberLoss Identity InstanceNorm1d InstanceNorm2d
    InstanceNorm3d KLDivLoss L1Loss LSTM LSTMCell LayerNorm LeakyReLU Linear LocalResponseNorm LogSigmoid LogSoftmax
    MSELoss MarginRankingLoss MaxPool1d MaxPool2d MaxPool3d MaxUnpool1d MaxUnpool2d MaxUnpool3d Mish ModuleDict
    ModuleList MultiLabelMarginLoss MultiLabelSoftMarginLoss MultiMarginLoss MultiheadAttention NLLLoss PReLU
    PairwiseDistance PixelShuffle PixelUnshuffle PoissonNLLLoss RMSNorm RNN RNNCell RReLU ReLU ReLU6 ReflectionPad1d
    ReflectionPad2d ReflectionPad3d ReplicationPad1d ReplicationPad2d ReplicationPad3d SELU Sequential SiLU Sigmoid
    SmoothL1Loss SoftMarginLoss Softmax Softmax2d Softmin Softplus Softshrink Softsign SyncBatchNorm Tanh Tanhshrink
    Threshold Transformer TransformerDecoder TransformerDecoderLayer TransformerEncoder TransformerEncoderLayer
    TripletMarginLoss Unflatten Unfold Upsample UpsamplingBilinear2d UpsamplingNearest2d ZeroPad1d ZeroPad2d ZeroPad3d
"""
CLASSES = frozenset(_CLASSES.split())
"""Modules of torch.nn, which those tools tell without where they live."""


def class_name(name: str) -> str:
    """A module's class as Lockstep tells it: torch's own with where it lives.

    >>> class_name("Linear"), class_name("Block")
    ('torch.nn.Linear', 'Block')
    """
    return f"torch.nn.{name}" if name in CLASSES else name
