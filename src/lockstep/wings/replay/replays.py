"""Running recorded calls again, wherever that is asked for. Loads torch only for another device."""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.core.errors import UsageError
from lockstep.core.records import Call
from lockstep.replay.answers import Chained, Cut, Makes, ModuleCall, Shrunk
from lockstep.replay.calls.held_results import Result
from lockstep.replay.calls.imported import Import, bring
from lockstep.replay.calls.refusals import CannotReplay
from lockstep.replay.process.rerun_process import RerunsApart
from lockstep.replay.questions import Again, OfModule, OnLess


class Replays:
    """Runs calls again on one machine.

    On the CPU that is done in a process apart, which may neither write nor reach out and is replaced where a native
    kernel ends it (`lockstep.replay.process.rerun_process`); another device's driver needs more, so there it is done
    here.

    device, dtype, emulation: As a user names them: `cuda:1`, `bfloat16`, `npu-bf16`; "" for the CPU, the recorded
        dtypes and no emulation.
    memory_bytes: What the whole process may take.
    imports: Custom functions that are imported, and run again too.

    Raises UsageError if there is no such device, dtype or emulated device here.
    """

    def __init__(
        self,
        device: str,
        dtype: str,
        emulation: str,
        *,
        memory_bytes: int,
        imports: Sequence[Import] = (),
    ) -> None:
        self._dtype, self._memory_bytes = dtype, memory_bytes
        self.name, self._device, self._emulation = "cpu", "cpu", emulation
        self._machine = None
        if (device or "cpu") != "cpu" or dtype or emulation:
            from lockstep.replay.calls.machine import machine_of

            machine = machine_of(device, dtype, emulation)
            self.name, self._device = str(machine), machine.device.type
            if self._device != "cpu" or emulation:
                self._machine = machine
        self._imports = tuple(imports)
        self._apart = RerunsApart(memory_bytes, self._imports)

    def prepare(self) -> None:
        """Start the process that runs calls again before there is one. Raises CannotReplay if it cannot be started."""
        if self._machine is None:
            self._apart.prepare()

    def bring(self, *, here: bool = False) -> None:
        """Import what is asked for where calls are run again, and in this process where they are written down.

        Raises UsageError if that cannot be done.
        """
        try:
            if self._machine is None and self._imports:
                self._apart.prepare_imports()
            if here or self._machine is not None:
                bring(self._imports)
        except CannotReplay as error:
            raise UsageError(str(error)) from error

    def is_like(self, call: Call, emulation: str) -> bool:
        """Whether a call was recorded on such a device, emulated or not."""
        kinds = {record.content.device.partition(":")[0] for record in call.records}
        return kinds == {self._device} and emulation == self._emulation

    def again(self, call: Call, *, repeat: int, like: Call | None = None) -> list[Result]:
        """Run a call again, so many times; see `lockstep.replay.calls.again.again`.

        Raises CannotReplay if it cannot be run again at all.
        """
        if self._machine is None:
            return self._apart.ask(Again(call, like, self._dtype, repeat))
        from lockstep.replay.calls.again import again

        return again(call, self._machine, repeat=repeat, like=like, memory_bytes=self._memory_bytes)

    def module(self, module: ModuleCall, *, like_its_own: bool) -> Chained:
        """Run a module's calls again in their order; see `lockstep.replay.chains.chain.chained`.

        Raises CannotReplay if nothing of it can be run again.
        """
        if self._machine is None:
            return self._apart.ask(OfModule(module, like_its_own))
        from lockstep.replay.chains.chain import chained

        return chained(
            module, self._machine, like_its_own=like_its_own, memory_bytes=self._memory_bytes
        )

    def shrunk(self, call: Call, like: Call | None, makes: Makes, seconds: float) -> Shrunk:
        """Smaller inputs on which a call still fails; see `lockstep.replay.smaller.attempts.shrunk`.

        Raises CannotReplay if it cannot be run again on all of its inputs.
        """
        if self._machine is None:
            return self._apart.ask(OnLess(call, like, makes, seconds))
        from lockstep.replay.smaller.attempts import Failure, shrunk

        failure = Failure(call, like, makes, self._machine, self._memory_bytes)
        return shrunk(failure, seconds)

    def on_cut(
        self, call: Call, like: Call | None, makes: Makes, cut: Cut
    ) -> tuple[Call, Call | None]:
        """A call on a part of its inputs, and the one it is held against. Runs in this process, and loads torch.

        Raises CannotReplay if it cannot be run so.
        """
        from lockstep.replay.calls.machine import HERE
        from lockstep.replay.smaller.attempts import Failure

        machine = self._machine or HERE
        return Failure(call, like, makes, machine, self._memory_bytes).on(cut)
