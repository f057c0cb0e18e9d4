"""Which operators and which tensors of a recording an old dump is to hold: the modes of `set_dump_switch`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from lockstep.errors import UsageError
from lockstep.options import choice_of, patterns_of, truth_of

MODES = ("all", "list", "range", "stack", "acl", "api_list", "api_stack")
_PARTS = ("all", "forward", "backward", "input", "output")
_SCOPES = {
    "list": ("one name or more", lambda count: count > 0),
    "range": ("two names, the first and the last", lambda count: count == 2),
    "stack": ("none, one or two names", lambda count: count <= 2),
}


@dataclass(frozen=True, slots=True)
class DumpChoice:
    """The arguments of `set_dump_switch`.

    mode: One of `MODES`.
    names: Of the mode: names of passes (`Functional_linear_0_forward`), or parts of names for "api_list".
    scalars: Whether whole numbers, truths and plain numbers are written too.
    parts: What of a pass has its tensors written; () for all.
    tensors: Whether tensors are written at all, beside the numbers about them.
    label: What the files are called in place of the mode's name.
    """

    mode: str = "all"
    names: tuple[str, ...] = ()
    scalars: bool = True
    parts: tuple[str, ...] = ()
    tensors: bool = True
    label: str = ""

    @property
    def has_stacks(self) -> bool:
        """Whether stacks are written."""
        return self.mode in ("api_stack", "stack")

    @property
    def stem(self) -> str:
        """The name of the files, without their suffix."""
        return self.label or ("dump" if self.mode == "all" else f"{self.mode}_dump")

    def wants_file(self, name: str) -> bool:
        """Whether a tensor of this name (`Functional_linear_0_forward_input.0`) has a file."""
        if not self.tensors or self.mode == "stack":
            return False
        return not self.parts or any(part in name for part in self.parts)


@dataclass(slots=True)
class ChosenPasses:
    """Says of one pass after the other whether it is wanted; a range is a state."""

    choice: DumpChoice
    _inside: bool = field(default=False)
    _ended: bool = field(default=False)

    def wants(self, name: str) -> bool:
        """Whether a pass of this name is to be dumped."""
        mode, names = self.choice.mode, self.choice.names
        if mode == "list":
            return name in names
        if mode == "api_list":
            return any(one.lower() in name.lower() for one in names)
        if mode == "range" or (mode == "stack" and len(names) == 2):
            return self._in_range(name, *names)
        return mode != "stack" or not names or name.startswith(names[0])

    def _in_range(self, name: str, first: str, last: str) -> bool:
        self._inside = self._inside or (name == first and not self._ended)
        wanted = self._inside
        if name == last:
            self._inside, self._ended = False, wanted or self._ended
        return wanted


def dump_choice(
    mode: str,
    scope: Sequence[str],
    api_list: Sequence[str],
    filter_switch: str,
    dump_mode: str | Sequence[str],
    summary_only: bool,
) -> DumpChoice:
    """Return the choice that these arguments of `set_dump_switch` make.

    Raises UsageError if one is wrong, or asks for what only the vendor's runtime can dump.
    """
    choice_of("mode", mode, MODES)
    if mode == "acl":
        raise UsageError(
            "mode 'acl' is a dump of the vendor's runtime, which Lockstep has not; mode 'api_stack' has the operator's"
            " tensors and its source line"
        )
    names = patterns_of("api_list", api_list) if mode == "api_list" else patterns_of("scope", scope)
    _check_names(mode, names)
    choice_of("filter_switch", filter_switch, ("ON", "OFF"))
    parts = [choice_of("dump_mode", part, _PARTS) for part in patterns_of("dump_mode", dump_mode)]
    return DumpChoice(
        mode, tuple(names), scalars=filter_switch == "OFF", parts=() if "all" in parts else tuple(parts),
        tensors=not truth_of("summary_only", summary_only),
    )  # fmt: skip


def _check_names(mode: str, names: Sequence[str]) -> None:
    if mode == "api_list" and not names:
        raise UsageError("mode 'api_list' needs api_list=, parts of names as in ['relu']")
    what, is_right = _SCOPES.get(mode, ("", lambda count: True))
    if not is_right(len(names)):
        example = "['Functional_linear_0_forward']"
        raise UsageError(f"mode {mode!r} takes {what} as scope, as in {example}, not {len(names)}")
