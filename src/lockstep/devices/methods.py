"""Methods of tensors as torch made them, as functions.

A script may have put functions of its own in their place, on `torch.Tensor`, which count their calls, print, or change
what comes back. What Lockstep does with a tensor of the script's must not run them.
"""

from __future__ import annotations

from torch._C import TensorBase

add = TensorBase.add
all_ = TensorBase.all
as_strided = TensorBase.as_strided
contiguous = TensorBase.contiguous
copy_ = TensorBase.copy_
cpu = TensorBase.cpu
data_ptr = TensorBase.data_ptr
detach = TensorBase.detach
double = TensorBase.double
equal = TensorBase.equal
element_size = TensorBase.element_size
index_fill_ = TensorBase.index_fill_
is_conj = TensorBase.is_conj
is_contiguous = TensorBase.is_contiguous
is_floating_point = TensorBase.is_floating_point
is_inference = TensorBase.is_inference
is_neg = TensorBase.is_neg
item = TensorBase.item
narrow = TensorBase.narrow
numel = TensorBase.numel
resolve_conj = TensorBase.resolve_conj
resolve_neg = TensorBase.resolve_neg
scatter_ = TensorBase.scatter_
set_item = TensorBase.__setitem__
storage_offset = TensorBase.storage_offset
stride = TensorBase.stride
sum_ = TensorBase.sum
take = TensorBase.take
to = TensorBase.to
untyped_storage = TensorBase.untyped_storage
view = TensorBase.view
view_as = TensorBase.view_as
