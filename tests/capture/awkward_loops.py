"""Trainings that do to torch what few expect of a training, each of two steps; none may notice that it is recorded."""

from __future__ import annotations

import copy
import ctypes
import gc
import io
import pickle
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from harness import Training, supervised
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

LOOPS: dict[str, Callable[[], Training]] = {}


def loop(build: Callable[[], Training]) -> Callable[[], Training]:
    """Register what makes a training."""
    LOOPS[build.__name__] = build
    return build


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def batch(*shape: int) -> Callable[[], tuple[Tensor, ...]]:
    return lambda: (torch.randn(*(shape or (5, 4))),)


def around(begin: Callable[[], Any], training: Training) -> Training:
    """The training with every step inside of a context."""
    inner = training.step

    def step(number: int) -> Any:
        with begin():
            return inner(number)

    training.step = step
    return training


def before(act: Callable[[nn.Module], Any], model: nn.Module | None = None) -> Training:
    """A plain training of which every step begins with an act upon the model."""
    model = model or net()
    training = supervised(model, batch())
    inner = training.step

    def step(number: int) -> Any:
        act(model)
        return inner(number)

    training.step = step
    return training


# --- storages and views


@loop
def in_place_on_views() -> Training:
    def loss(output: Tensor) -> Tensor:
        grown = torch.zeros(2, *output.shape)
        grown[0].add_(output)
        grown[1][:, :2].copy_(output[:, 1:]).mul_(2.0)
        grown.transpose(1, 2)[0, 1].sub_(1.0)
        return grown.square().mean()

    return supervised(net(), batch(), loss=loss)


@loop
def storages_resized() -> Training:
    model, cache = net(), torch.empty(0)

    def loss(output: Tensor) -> Tensor:
        cache.resize_(output.shape).copy_(output.detach())
        cache.untyped_storage().resize_(0)
        cache.untyped_storage().resize_(4 * output.numel())
        cache.copy_(output.detach() * 2.0)
        return (output - cache).square().mean()

    return supervised(model, batch(), loss=loss)


@loop
def parameters_swapped() -> Training:
    def act(model: nn.Module) -> None:
        first = next(model.parameters())
        first.data = first.data.clone()
        torch.utils.swap_tensors(first, nn.Parameter(first.detach() * 0.5))

    model = net()
    training = before(act, model)

    def step(_: int) -> Tensor:
        act(model)
        model.zero_grad()
        value: Tensor = model(torch.randn(5, 4)).square().mean()
        value.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.sub_(parameter.grad, alpha=0.1)
        return value.detach()

    training.step, training.optimizers = step, []
    return training


@loop
def grown_by_out() -> Training:
    model, room = net(), torch.empty(1)

    def loss(output: Tensor) -> Tensor:
        room.resize_(0)
        torch.cumsum(output.detach(), 0, out=room)
        return (output * room).mean()

    return supervised(model, batch(), loss=loss)


@loop
def one_array_refilled() -> Training:
    array = np.zeros((5, 4), np.float32)
    shared = torch.from_numpy(array)

    def refill() -> tuple[Tensor, ...]:
        array[:] = torch.randn(5, 4).numpy()
        return (shared,)

    return supervised(net(), refill)


@loop
def memory_written_behind_torch() -> Training:
    def act(model: nn.Module) -> None:
        weight = next(model.parameters())
        value = (ctypes.c_float * 1)(0.25)
        ctypes.memmove(weight.data_ptr(), value, 4)

    return before(act)


@loop
def expanded_beyond_memory() -> Training:
    def loss(output: Tensor) -> Tensor:
        endless = output.detach()[:1, :1].expand(1 << 20, 1 << 13)
        return output.square().mean() + endless[7, 9]

    return supervised(net(), batch(), loss=loss)


@loop
def channels_last() -> Training:
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(48, 2))
    return supervised(model.to(memory_format=torch.channels_last), batch(3, 2, 6, 6))


@loop
def conjugates_and_complex() -> Training:
    def loss(output: Tensor) -> Tensor:
        spectrum = torch.fft.fft(output)
        return (spectrum * spectrum.conj()).real.mean() + spectrum.conj().imag.square().sum()

    return supervised(net(), batch(), loss=loss)


@loop
def nested_tensors() -> Training:
    model = nn.Linear(4, 3)

    def step_batch() -> tuple[Tensor, ...]:
        parts = [torch.randn(2, 4), torch.randn(3, 4)]
        return (torch.nested.as_nested_tensor(parts, layout=torch.jagged),)

    def loss(output: Tensor) -> Tensor:
        return output.to_padded_tensor(0.0).square().mean()

    return supervised(model, step_batch, loss=loss)


@loop
def sparse_gradients() -> Training:
    model = nn.EmbeddingBag(10, 3, sparse=True, mode="sum")
    optimizer = torch.optim.SparseAdam(list(model.parameters()))
    return supervised(model, lambda: (torch.randint(0, 10, (4, 2)),), optimizer=optimizer)


# --- what scripts patch, wrap and switch


@loop
def patched_module_call() -> Training:
    @contextmanager
    def patched() -> Iterator[None]:
        original = nn.Module.__call__

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            result = original(module, *args, **kwargs)
            return result * 1.5 if isinstance(module, nn.Tanh) else result

        nn.Module.__call__ = call  # type: ignore[method-assign]
        try:
            yield
        finally:
            nn.Module.__call__ = original  # type: ignore[method-assign]

    return around(patched, supervised(net(), batch()))


@loop
def wrapped_backward() -> Training:
    @contextmanager
    def wrapped() -> Iterator[None]:
        original = Tensor.backward

        def backward(tensor: Tensor, *args: Any, **kwargs: Any) -> None:
            original(tensor, *args, **kwargs)
            with torch.no_grad():
                counted.add_(1.0)

        Tensor.backward = backward  # type: ignore[method-assign]
        try:
            yield
        finally:
            Tensor.backward = original  # type: ignore[method-assign]

    counted = torch.zeros(())
    training = around(wrapped, supervised(net(), batch()))
    training.others["counted"] = counted
    return training


@loop
def dispatch_mode() -> Training:
    class Counting(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    seen: list[str] = []
    training = around(Counting, supervised(net(), batch()))  # type: ignore[arg-type]
    training.others["seen"] = seen
    return training


@loop
def function_mode() -> Training:
    class Louder(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            result = func(*args, **(kwargs or {}))
            return result * 2.0 if func is torch.tanh else result

    return around(Louder, supervised(net(), batch()))


@loop
def tensors_of_another_class() -> Training:
    class Named(torch.Tensor):
        pass

    return supervised(net(), lambda: (torch.randn(5, 4).as_subclass(Named),))


@loop
def saved_tensors_packed() -> Training:
    def pack(tensor: Tensor) -> Tensor:
        return tensor.to(torch.float16)

    def unpack(tensor: Tensor) -> Tensor:
        return tensor.to(torch.float32)

    return around(
        lambda: torch.autograd.graph.saved_tensors_hooks(pack, unpack), supervised(net(), batch())
    )


@loop
def anomalies_detected() -> Training:
    return around(lambda: torch.autograd.set_detect_anomaly(True), supervised(net(), batch()))


@loop
def profiled() -> Training:
    return around(lambda: torch.profiler.profile(), supervised(net(), batch()))


@loop
def another_default_dtype() -> Training:
    @contextmanager
    def double() -> Iterator[None]:
        torch.set_default_dtype(torch.float64)
        try:
            yield
        finally:
            torch.set_default_dtype(torch.float32)

    return around(double, supervised(net().double(), lambda: (torch.randn(5, 4),)))


@loop
def autocast_in_part() -> Training:
    model = net()

    def loss(output: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return model(output @ output.new_ones(3, 4)).float().square().mean()

    return supervised(model, batch(), loss=loss)


@loop
def garbage_collected_all_the_time() -> Training:
    @contextmanager
    def eager() -> Iterator[None]:
        thresholds = gc.get_threshold()
        gc.set_threshold(1)
        try:
            yield
        finally:
            gc.set_threshold(*thresholds)

    return around(eager, supervised(nn.Linear(4, 3), batch()))


# --- graphs


@loop
def torch_func() -> Training:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(_: int) -> Tensor:
        parameters = {name: p.detach() for name, p in model.named_parameters()}

        def loss(given: dict[str, Tensor], x: Tensor) -> Tensor:
            return torch.func.functional_call(model, given, (x,)).square().mean()

        each = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, torch.randn(5, 4))
        for name, parameter in model.named_parameters():
            parameter.grad = each[name].mean(0)
        optimizer.step()
        return each["0.weight"].norm()

    return Training(model, step, optimizers=[optimizer])


@loop
def functionalized() -> Training:
    model = net()
    return before(lambda _: torch.func.functionalize(model)(torch.randn(5, 4)), model)


@loop
def scripted() -> Training:
    class Part(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * torch.sigmoid(x)

    with quiet_scripting():
        part = torch.jit.script(Part())
    return supervised(nn.Sequential(nn.Linear(4, 3), part, nn.Linear(3, 2)), batch())


@loop
def traced() -> Training:
    model = net()
    with quiet_scripting():
        part = torch.jit.trace(nn.Sequential(nn.Linear(3, 3), nn.Tanh()), torch.ones(2, 3))
    return supervised(nn.Sequential(model, part), batch())


@contextmanager
def quiet_scripting() -> Iterator[None]:
    """TorchScript is deprecated, and people train with it."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@loop
def exported_within_a_step() -> Training:
    return before(lambda model: torch.export.export(model, (torch.ones(2, 4),)))


@loop
def run_without_data_within_a_step() -> Training:
    from torch._subclasses.fake_tensor import FakeTensorMode

    def act(model: nn.Module) -> None:
        with FakeTensorMode(allow_non_fake_inputs=True):
            model(torch.ones(2, 4)).sum()

    return before(act)


@loop
def run_on_meta_within_a_step() -> Training:
    return before(lambda model: copy.deepcopy(model).to("meta")(torch.ones(2, 4, device="meta")))


@loop
def gradient_penalty() -> Training:
    class Penalised(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net()

        def forward(self, x: Tensor) -> Tensor:
            x = x.requires_grad_()
            out = self.net(x)
            (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
            return out.square().mean() + (slope.norm(dim=1) - 1).square().mean()

    return supervised(Penalised(), batch(), loss=lambda value: value)


@loop
def backward_twice() -> Training:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(_: int) -> Tensor:
        optimizer.zero_grad()
        output = model(torch.randn(5, 4))
        output.square().mean().backward(retain_graph=True)
        output.abs().mean().backward()
        optimizer.step()
        return output.detach()

    return Training(model, step, optimizers=[optimizer])


@loop
def hooks_everywhere() -> Training:
    def halve(parameter: Tensor) -> None:
        parameter.grad.mul_(0.5)

    model = net()
    model[0].register_forward_hook(lambda module, args, output: output * 1.5)
    model[2].register_full_backward_hook(
        lambda module, taken, given: tuple(g if g is None else g * 0.5 for g in taken)
    )
    model[0].weight.register_hook(lambda gradient: gradient * 2.0)
    model[2].weight.register_post_accumulate_grad_hook(halve)
    return supervised(model, batch())


@loop
def own_autograd_function() -> Training:
    class Half(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x.clamp(min=0.0)

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return gradient * (x > 0) * 0.5

    return supervised(net(), batch(), loss=lambda output: Half.apply(output).square().mean())


@loop
def fake_quantised() -> Training:
    def loss(output: Tensor) -> Tensor:
        return torch.fake_quantize_per_tensor_affine(output, 0.1, 0, -128, 127).square().mean()

    return supervised(net(), batch(), loss=loss)


# --- optimizers and models that are handled


@loop
def lbfgs() -> Training:
    model, x = net(), torch.linspace(-1, 1, 20).reshape(5, 4)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

    def closure() -> Tensor:
        optimizer.zero_grad()
        value: Tensor = model(x).square().mean()
        value.backward()
        return value

    return Training(model, lambda _: optimizer.step(closure).detach(), optimizers=[optimizer])


@loop
def averaged_weights() -> Training:
    model = net()
    mean = torch.optim.swa_utils.AveragedModel(model)
    training = before(lambda _: mean.update_parameters(model), model)
    training.others["mean"] = mean
    return training


@loop
def parametrized() -> Training:
    class Symmetric(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.triu() + x.triu(1).mT

    model = nn.Sequential(nn.Linear(4, 4), parametrizations.weight_norm(nn.Linear(4, 3)))
    parametrize.register_parametrization(model[0], "weight", Symmetric())
    return supervised(model, batch())


@loop
def spectrally_normed() -> Training:
    return supervised(nn.Sequential(parametrizations.spectral_norm(nn.Linear(4, 3))), batch())


@loop
def pruned() -> Training:
    model = net()
    prune.l1_unstructured(model[0], "weight", amount=0.3)
    return supervised(model, batch())


@loop
def copied_within_a_step() -> Training:
    return before(lambda model: copy.deepcopy(model)(torch.randn(5, 4)))


@loop
def pickled_within_a_step() -> Training:
    def act(model: nn.Module) -> None:
        pickle.loads(pickle.dumps(model))
        file = io.BytesIO()
        torch.save(model.state_dict(), file)
        file.seek(0)
        model.load_state_dict(torch.load(file))

    return before(act)


@loop
def two_models_in_turn() -> Training:
    maker, judge = nn.Linear(2, 4), net()
    makes = torch.optim.Adam(maker.parameters())
    judges = torch.optim.Adam(judge.parameters())

    def step(_: int) -> Tensor:
        judges.zero_grad()
        fake = maker(torch.randn(5, 2))
        (judge(torch.randn(5, 4)).mean() - judge(fake.detach()).mean()).backward()
        judges.step()
        makes.zero_grad()
        value = judge(fake).mean()
        value.backward()
        makes.step()
        return value.detach()

    return Training(judge, step, others={"maker": maker}, optimizers=[makes, judges])


@loop
def model_made_within_a_step() -> Training:
    return before(lambda _: nn.init.kaiming_uniform_(nn.Linear(8, 8).weight))


@loop
def data_parallel() -> Training:
    model = net()
    return supervised(nn.DataParallel(model), batch())


@loop
def names_nobody_expects() -> Training:
    model = nn.Sequential()
    for name in ("a\ud800b", "=cmd|' /C calc'!A0", "\x1b[31mred\n", "\u202eback", "x" * 3000):
        model.add_module(name, nn.Linear(4, 4))
    return supervised(model, batch())


# --- threads


@loop
def another_thread_computes() -> Training:
    def act(model: nn.Module) -> None:
        thread = threading.Thread(target=lambda: model(torch.ones(3, 4)).sum().item())
        thread.start()
        thread.join()

    return before(act)


@loop
def trained_in_another_thread() -> Training:
    training = supervised(net(), batch())
    inner = training.step

    def step(number: int) -> Any:
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(inner(number)))
        thread.start()
        thread.join()
        return found[0]

    training.step = step
    return training


@loop
def an_error_that_is_caught() -> Training:
    def act(model: nn.Module) -> None:
        try:
            model(torch.ones(3, 5))
        except RuntimeError:
            F.relu(torch.ones(2))

    return before(act)


@loop
def evaluated_within_a_step() -> Training:
    def act(model: nn.Module) -> None:
        model.eval()
        with torch.inference_mode():
            model(torch.ones(3, 4))
        model.train()

    return before(act)


# --- classes of the script's that are asked


def _around_one() -> nn.Module:
    """A module that holds exactly one other."""
    return nn.Sequential(nn.Linear(4, 3))


@loop
def scripted_around_one_module() -> Training:
    with quiet_scripting():
        return supervised(torch.jit.script(_around_one()), batch())


@loop
def traced_around_one_module() -> Training:
    with quiet_scripting():
        return supervised(torch.jit.trace(_around_one(), torch.ones(5, 4)), batch())


@loop
def sparse_leaves_that_take_a_gradient() -> Training:
    model = net()
    with torch.sparse.check_sparse_tensor_invariants(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that support is in beta state, says torch
        parts = [torch.eye(5).to_sparse(), torch.eye(5).to_sparse_csr()]
    leaves = [part.requires_grad_() for part in parts]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(_: int) -> Any:
        optimizer.zero_grad()
        output = model(torch.randn(5, 4))
        loss = sum(torch.sparse.mm(leaf, output).square().mean() for leaf in leaves)
        loss.backward()
        optimizer.step()
        return [loss.detach(), leaves[0].grad.to_dense()]

    return Training(model, step, optimizers=[optimizer])


class Asked(nn.Parameter):
    """Counts how often torch asks it what to do."""

    count = 0

    @classmethod
    def __torch_function__(cls, *call: Any, **options: Any) -> Any:
        Asked.count += 1
        return super().__torch_function__(*call, **options)


@loop
def tensors_that_count_what_they_are_asked() -> Training:
    model = net()
    model[0].weight, table = Asked(model[0].weight.detach()), Asked(torch.ones(3))
    training = supervised(model, batch(), loss=lambda output: (output * table).square().mean())
    inner = training.step

    def step(number: int) -> Any:
        Asked.count = 0
        return [inner(number), (table + number).detach().as_subclass(Tensor), Asked.count]

    training.step = step
    return training
