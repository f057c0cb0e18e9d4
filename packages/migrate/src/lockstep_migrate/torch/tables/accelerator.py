"""This machine's accelerator, asked for when a function is called and never earlier; the CPU where there is none."""

import contextlib
import time

import torch


def device_type():
    """Return the type that torch was built for, "cuda" if for none; no driver is asked."""
    return getattr(torch.accelerator.current_accelerator(), "type", "cuda")


def device(index=None):
    """Return the accelerator, or the CPU if there is none; the process can still fork."""
    kind = device_type()
    chosen = f"{kind}:{index}" if str(index).isdigit() else index or kind
    return chosen if chosen is index or torch.accelerator.device_count() else "cpu"


def default_device(index=None):
    """Return the accelerator that torch was built for, or the CPU; no driver is asked."""
    kind = device_type()
    chosen = f"{kind}:{index}" if str(index).isdigit() else index or kind
    return chosen if chosen is index or torch.accelerator.current_accelerator() else "cpu"


def is_available():
    """Return whether an accelerator is there."""
    return torch.accelerator.device_count() > 0


def module():
    """Return the module of torch that stands for `torch.cuda`."""
    return torch.get_device_module(device_type())


def backend():
    """Return the collective backend of the device that is there."""
    return torch.distributed.get_default_backend_for_device(device())


def default_backend():
    """Return the collective backend of the default device: no driver is asked."""
    return torch.distributed.get_default_backend_for_device(default_device())


def backend_type():
    """Return the accelerator's own collective backend, to compare with."""
    return torch.distributed.get_default_backend_for_device(device_type())


def own(name, otherwise, *given):
    """Call the accelerator's function of a name; return `otherwise` if there is none."""
    function = getattr(module(), name, None) if is_available() else None
    return function(*given) if function else otherwise


def synchronize(device=None):
    """Wait for the accelerator's work; the CPU has none to wait for."""
    if is_available():
        torch.accelerator.synchronize(device)


def set_device(device):
    """Choose the current device; the CPU is the only one."""
    if is_available():
        getattr(module(), "set_device", torch.accelerator.set_device_index)(device)


def current_device():
    """Return the number of the current device, or "cpu"."""
    if not is_available():
        return "cpu"
    return getattr(module(), "current_device", torch.accelerator.current_device_index)()


def device_context(device):
    """Return a context in which the device of this number is the current one."""
    make = getattr(module(), "device", None) if is_available() else None
    return make(device) if make else contextlib.nullcontext()


class Stream:
    """A stream with CUDA's signature; a stand-in on a device with one order of work."""

    def __new__(cls, *given, **named):
        make = getattr(module(), "Stream", None) if is_available() else None
        return make(*given, **named) if make else super().__new__(cls)

    def __init__(self, device=None, priority=0):
        self.device = device

    def query(self):
        self.synchronize()
        return True

    def synchronize(self):
        synchronize()

    def record_event(self, event=None):
        event = event or Event()
        event.record(self)
        return event

    def wait_event(self, event):
        """Do nothing: the one order of work keeps the event's place."""

    def wait_stream(self, stream):
        """Do nothing: there is one order of work."""


class Event:
    """An event with CUDA's signature; on the CPU the time of day."""

    def __new__(cls, enable_timing=False, blocking=False, interprocess=False):
        if not is_available() or not hasattr(module(), "Stream"):
            return super().__new__(cls)
        if device_type() == "cuda":
            return module().Event(enable_timing, blocking, interprocess)
        return module().Event(enable_timing=enable_timing)

    def __init__(self, enable_timing=False, blocking=False, interprocess=False):
        self._event = module().Event(enable_timing=enable_timing) if is_available() else None
        self._time_s = 0.0

    def record(self, stream=None):
        self._time_s = time.perf_counter()
        if self._event:
            self._event.record()

    def query(self):
        return self._event.query() if self._event else True

    def wait(self, stream=None):
        if self._event:
            self._event.wait()

    def synchronize(self):
        if self._event:
            self._event.synchronize()

    def elapsed_time(self, end):
        if self._event:
            return self._event.elapsed_time(end._event)
        return 1000 * (end._time_s - self._time_s)


def current_stream(device=None):
    """Return the stream that work goes to."""
    current = getattr(module(), "current_stream", None) if is_available() else None
    return current(device) if current else Stream()


def stream(stream):
    """Return a context in which work goes to a stream."""
    enter = getattr(module(), "stream", None) if is_available() else None
    return enter(stream) if enter else contextlib.nullcontext(stream)


def manual_seed_all(seed):
    """Seed the random numbers of all devices."""
    getattr(module(), "manual_seed_all", module().manual_seed)(seed)


def seed_all():
    """Seed all devices by chance."""
    getattr(module(), "seed_all", module().seed)()


def initial_seed():
    """Return the device's seed, or the CPU's if the device does not tell its own."""
    return getattr(module(), "initial_seed", torch.initial_seed)()


def get_rng_state_all():
    """Return the random states of all devices."""
    states = getattr(module(), "get_rng_state_all", None)
    return states() if states else [module().get_rng_state()]


def set_rng_state_all(new_states):
    """Set the random states of all devices."""
    restore = getattr(module(), "set_rng_state_all", None)
    return restore(new_states) if restore else module().set_rng_state(new_states[0])


def empty_cache():
    """Free the memory that the device's allocator keeps, if it has one."""
    own("empty_cache", None)


def ipc_collect():
    """Free memory that processes shared, if the device has such."""
    own("ipc_collect", None)


def init():
    """Start the device, if it has to be started."""
    own("init", None)


def is_initialized():
    """Return whether the device has been started; if it needs no start, whether it is there."""
    return own("is_initialized", is_available())


def is_current_stream_capturing():
    """Return whether a graph is being captured."""
    return own("is_current_stream_capturing", False)


def memory_allocated(device=None):
    """Return the bytes that tensors take, or 0 if the device does not count them."""
    return own("memory_allocated", 0, device)


def max_memory_allocated(device=None):
    """Return the most bytes that tensors took, or 0 if the device does not count them."""
    return own("max_memory_allocated", 0, device)


def memory_reserved(device=None):
    """Return the bytes that the allocator keeps, or 0 if the device does not count them."""
    return own("memory_reserved", 0, device)


def max_memory_reserved(device=None):
    """Return the most bytes that the allocator kept, or 0 if the device does not count them."""
    return own("max_memory_reserved", 0, device)


def memory_summary(device=None, abbreviated=False):
    """Return the device's account of its memory, or an empty text."""
    return own("memory_summary", "", device, abbreviated)


def reset_peak_memory_stats(device=None):
    """Forget the most bytes so far, if the device counts them."""
    own("reset_peak_memory_stats", None, device)


def reset_accumulated_memory_stats(device=None):
    """Forget the counts so far, if the device has such."""
    own("reset_accumulated_memory_stats", None, device)


def get_device_name(device=None):
    """Return the device's name, or its type if it has none."""
    return own("get_device_name", device_type() if is_available() else "cpu", device)


def get_device_capability(device=None):
    """Return what the device calls its capability, or None."""
    return own("get_device_capability", None, device)


def is_bf16_supported():
    """Return whether the device computes in bfloat16; False if it cannot tell."""
    return own("is_bf16_supported", False)
