"""One recorded step as a program: its calls in order of time, and where each takes its tensors from.

A recording tells each tensor by its content. Here every input of a call becomes a *link*: to the result of an earlier
call, or to a source, which is a number that enters the step (a parameter, a buffer, a batch). Calls on which no loss,
gradient, update or buffer depends are left out. Knows no torch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from lockstep.core.operators import AUTOGRAD_GRAD, BY_HAND
from lockstep.core.records import (
    BEGAN_ANEW,
    GIVEN,
    GIVES_GRADIENTS,
    HOOK_OF,
    LEAF,
    NO_GRADIENT,
    Call,
    TensorRecord,
)
from lockstep.core.site import CallKind, Role
from lockstep.laws.function_bodies import as_operators, called_forward, with_body
from lockstep.laws.step_events import (
    RESULTS,
    Backward,
    Enters,
    Gathered,
    Link,
    Node,
    NotApplicable,
    Operator,
    Passing,
    Source,
    StepProgram,
    Taken,
    Update,
    asked_of,
    finished,
)
from lockstep.laws.written_views import WrittenViews, without_written_updates, written_updates

SENT = (Role.GRAD_INPUT, Role.PARAM_GRAD)


def step_program(calls: Sequence[Call]) -> StepProgram:
    """The program that leads from what enters a step to the gradients of its parameters.

    calls: All recorded calls of one step of one rank.

    Raises NotApplicable if the recording does not hold the whole of it.
    """
    try:
        return _gathered(calls)
    except NotApplicable:
        plain = without_written_updates(calls)
        if plain is None:
            raise
        return _gathered(plain)


def _gathered(calls: Sequence[Call]) -> StepProgram:
    builder = ProgramBuilder(calls)
    builder.gather()
    return finished(builder.program, builder.makers)


class ProgramBuilder:
    """Links the calls of one rank; `finished` makes a program of it.

    calls: All recorded calls of the step.
    passing: What passes between the ranks; None for a rank alone.

    program: What has been gathered.
    makers: Which call made each result.
    hooked: What hooks have made of the gradient of a parameter, by its name.
    """

    def __init__(self, calls: Sequence[Call], passing: Passing | None = None) -> None:
        self._calls = sorted(calls, key=lambda one: one.sequence)
        self._passing = passing
        self.program = StepProgram()
        self.makers: dict[Node, Operator] = {}
        self.hooked: dict[str, Node] = {}
        self._made: dict[int, list[Node]] = defaultdict(list)
        self._named: dict[str, tuple[int, Link]] = {}
        self._versions: dict[str, int] = {}
        self._gradient_of: dict[int, tuple[str, int]] = {}
        """Of a content: the parameter, and when its gradient arrived."""
        self._gradient_now: dict[str, int] = {}
        self._gradient_made: dict[str, Node] = {}
        """What a call has made of a parameter's gradient in place, by the last update that took it."""
        self._arrived: set[int] = set()
        self._hooked: dict[str, list[int]] = {}
        """By parameter: what the last hook that has run on it has made of its gradient, by number of the content."""
        self._passed_back: set[int] = set()
        self._back: dict[Node, set[int]] = defaultdict(set)
        self._edges: dict[int, Node] = {}
        self._taken: set[Link] = set()
        self._updated: set[str] = set()
        self._gathered: dict[tuple[str, int], Node] = {}
        self._states: dict[int, TensorRecord] = {}
        """What the optimizer keeps whose step is being put in, by number of the content."""
        self._left: dict[int, TensorRecord] = {}
        """What updates have left of parameters, by number of the content."""
        self._in_body = False
        self._views = WrittenViews()
        self._asked = _asked_contents(self._calls)
        self._written_updates = written_updates(self._calls)
        self._of_group = {one.id for group in self._written_updates.values() for one in group}
        self._sent: dict[str, list[TensorRecord]] = defaultdict(list)
        for call in self._calls:
            for one in call.with_role(Role.PARAM_GRAD) if call.kind is CallKind.OPERATOR else ():
                self._sent[one.name].append(one)

    def gather(self) -> None:
        """Link all calls. Raises NotApplicable if the recording does not hold the whole of the step."""
        if not any(call.kind is CallKind.LOSS for call in self._calls):
            raise NotApplicable("no backward pass was recorded in it")
        if not any(call.kind is CallKind.OPERATOR for call in self._calls):
            raise NotApplicable("no operators were recorded (--level api)")
        for position, call in enumerate(self._calls):
            self._add(position, call)

    def _add(self, position: int, call: Call) -> None:
        if call.kind is CallKind.DATA:
            self._arrived |= {one.content.id for one in call.with_role(Role.OUTPUT)}
        elif call.kind is CallKind.OPERATOR and HOOK_OF in call.arguments:
            self._add_hook(call, call.arguments[HOOK_OF])
        elif call.kind is CallKind.OPERATOR and not call.recomputed:
            self._add_operator(call)
        elif call.kind is CallKind.LOSS:
            self._add_backward(position, call)
        elif call.kind is CallKind.GRADIENT:
            self._add_gradient(call)
        elif call.kind is CallKind.OPTIMIZER:
            self._add_update(call)

    def _add_gradient(self, call: Call) -> None:
        for one in call.with_role(Role.PARAM_GRAD):
            made = self._is_made_since(one)
            if made and call.arguments.get(GIVEN):
                continue
            hooked = self._hooked.pop(one.name, [])
            if made and one.content.id in hooked:
                self._gradient_now.pop(one.name, None)
                self.hooked[one.name] = self._made[one.content.id][-1]
                self.program.hooked[one.name] = one
                continue
            if made or hooked not in ([], [one.content.id]):
                raise NotApplicable(f"a hook changes a part of the gradient of {one.name}")
            self._note_sent(one)
            self._gradient_of[one.content.id] = one.name, call.sequence
            self._gradient_now[one.name] = one.content.id
            self.program.gradients[one.name] = one

    def _add_hook(self, call: Call, name: str) -> None:
        """Put in what a hook on a parameter makes of the gradient that the pass has sent there."""
        if "raised" in call.arguments:
            return
        for one in call.with_role(Role.INPUT):
            if not self._is_made_since(one):
                arrived = replace(one, role=Role.PARAM_GRAD, name=name)
                self._note_sent(arrived)
                self._gradient_of[one.content.id] = name, call.sequence
                self._gradient_now[name] = one.content.id
                self.program.gradients[name] = arrived
        with self._within_body():
            for each in as_operators(call.body):
                self._add_operator(each)
        self._hooked[name] = [one.content.id for one in call.with_role(Role.OUTPUT)]

    def _note_sent(self, arrived: TensorRecord) -> None:
        """Keep what one call alone has sent to a parameter in the first pass that reaches it; ranks exchange theirs."""
        if self._passing is not None or arrived.name in self.program.gradients:
            return
        since = max(
            (one.call.sequence for one in self.program.losses if one.accumulates), default=-1
        )
        sent = [
            one
            for one in self._sent.get(arrived.name, ())
            if since < one.sequence < arrived.sequence and one.shape == arrived.shape
        ]
        if len(sent) == 1:
            self.program.sent[arrived.name] = sent[0], arrived

    def _is_made_since(self, record: TensorRecord) -> bool:
        """Whether a call made a gradient after the last backward pass: what the script gives is a result then."""
        made = self._made.get(record.content.id)
        since = self.makers[made[-1]].call.sequence if made else -1
        passes = [one.call.sequence for one in self.program.losses if one.accumulates]
        return since > max(passes, default=-1)

    def _add_update(self, call: Call) -> None:
        if call.id in self._of_group:
            self._add_written(self._written_updates.get(call.id, ()))
            return
        by_hand = call.site.op == BY_HAND
        for record in call.with_role(Role.PARAM):
            made = self._made_by_hand(call, record.name) if by_hand else None
            start = Source(Enters.NAMED, record.name)
            link = self._entering(start, record) if made else self._named_link(record)
            parameter = Taken(link, record)
            gradient = self._gradient_taken(call, record.name)
            if not by_hand:
                self._note_made(record.name, gradient)
            self.program.events.append(Update(call, parameter, gradient, made))
        self._updated |= {one.name for one in call.with_role(Role.PARAM_AFTER)}
        for one in call.with_role(Role.PARAM_AFTER) if not by_hand else ():
            source = Source(Enters.NAMED, one.name, self._next_version(one.name))
            self._named[one.name] = one.content.id, source
            self._left[one.content.id] = one

    def _note_made(self, name: str, gradient: Taken | None) -> None:
        """Keep what calls have made of a gradient that an update takes, for a later pass to add to."""
        if gradient is not None and isinstance(gradient.link, Node):
            self._gradient_made[name] = gradient.link

    def _gradient_taken(self, call: Call, name: str) -> Taken | None:
        """The gradient that an update takes of a parameter."""
        for one in call.with_role(Role.PARAM_GRAD):
            if one.name == name:
                return Taken(self._gradient_link(one), one)
        return None

    def _add_written(self, group: Sequence[Call]) -> None:
        """Put in what one step of an optimizer calls, and then its updates."""
        taken = [
            (call, Taken(self._named_link(one), one), self._gradient_taken(call, one.name))
            for call in group
            for one in call.with_role(Role.PARAM)
        ]
        self._states = {one.content.id: one for call in group for one in call.with_role(Role.STATE)}
        with self._within_body():
            for call in as_operators(group[0].body if group else ()):
                self._add_operator(call)
        for call, parameter, gradient in taken:
            made = {one.name: self._made_in_step(one) for one in _left_by_update(call)}
            name = parameter.record.name
            self._note_made(name, gradient)
            kept = {each.partition("|")[2]: node for each, node in made.items() if each != name}
            self.program.events.append(Update(call, parameter, gradient, made[name], kept))
            self.program.buffers.pop(name, None)
            self._updated.add(name)

    def _made_in_step(self, record: TensorRecord) -> Node:
        """The result that a parameter or state is after an update."""
        known = self._named.get(record.name)
        if known is not None and known[0] == record.content.id and isinstance(known[1], Node):
            return known[1]
        if not self._made.get(record.content.id):
            raise NotApplicable(f"no recorded call makes {record.name} as it is after its update")
        return self._made[record.content.id][-1]

    def _made_by_hand(self, call: Call, name: str) -> Node:
        """The result that a script has made of a parameter."""
        for one in call.with_role(Role.PARAM_AFTER):
            if one.name == name and self._made.get(one.content.id):
                return self._made[one.content.id][-1]
        raise NotApplicable(f"a script updates {name} by hand, past every recorded call")

    def _gradient_link(self, record: TensorRecord) -> Link:
        """The gradient that an update takes: as backward left it, or as a call behind that made it."""
        link = self._latest(record) or self._reduced(record, record.name)
        if link is None:
            self.program.moved.append(record)
            return self._entering(Source(Enters.ARRIVED, str(record.content.id)), record)
        return link

    def _latest(self, record: TensorRecord) -> Link | None:
        """A gradient or result of this content, whichever came last."""
        content = record.content.id
        made = self._made.get(content)
        name, since = self._gradient_of.get(content, ("", -1))
        if self._gradient_now.get(record.name) == content:
            name = record.name
        if made and self.makers[made[-1]].call.sequence > since:
            return made[-1]
        return self._entering(Source(Enters.GRADIENT, name), record) if name else None

    def _reduced(self, record: TensorRecord, name: str = "") -> Node | None:
        """A gradient that the ranks have made of theirs out of sight."""
        if self._passing is None or not self.program.gradients:
            return None
        operator = self._passing.reduced(record, name)
        if operator is None:
            return None
        node = self._out_of_sight(operator, record)
        self._made[record.content.id].append(node)
        return node

    def _next_version(self, name: str) -> int:
        self._versions[name] = self._versions.get(name, 0) + 1
        return self._versions[name]

    def _add_operator(self, call: Call) -> None:
        if "raised" in call.arguments:
            return
        sent = {one.index: one for one in call.with_role(*SENT)}
        arrived = call.with_role(Role.GRAD_OUTPUT)
        taken = {}
        for record in call.with_role(Role.INPUT):
            back = sent.get(record.index)
            link = self._link(record, back)
            if back is None and _enters(link) and _hands_on(call, record):
                self.program.unplaced.append(_no_call(record))
            if record.edge is None:
                detached = back is None and bool(arrived)
            else:
                detached = record.edge == NO_GRADIENT
            link = self._completed(link, record, call)
            taken[record.index] = Taken(link, record, detached)
            self._taken.add(link)
        operator = self._with_body(Operator(call, taken))
        self.program.events.append(operator)
        self._views.add(operator)
        gone = {one.index: one.content.id for one in arrived}
        for one in call.with_role(*RESULTS):
            node = Node(call.id, one.index)
            self._made[one.content.id].append(node)
            if one.edge is not None and one.edge > LEAF:
                self._edges[one.edge] = node
            self.makers[node] = operator
            self.program.results[node] = one
            if one.index in gone:
                self._back[node] |= {each.content.id for each in arrived if each.index == one.index}
        self._written(call, taken)
        self._passed_back |= {one.content.id for one in call.with_role(Role.GRAD_INPUT)}

    @contextmanager
    def _within_body(self) -> Iterator[None]:
        """What is put in meanwhile is called by a custom function or an optimizer."""
        before, self._in_body = self._in_body, True
        try:
            yield
        finally:
            self._in_body = before

    def _with_body(self, operator: Operator) -> Operator:
        """A call of a custom function with what it calls, of which the forward calls are put before it."""
        call = operator.call
        if not call.body:
            return operator
        with self._within_body():
            for one in called_forward(call):
                self._add_operator(one)
            found = with_body(operator, self._made, lambda record: self._link(record, None))
        self._taken |= {one.link for one in found.taken.values()}
        return found

    def _written(self, call: Call, taken: dict[int, Taken]) -> None:
        """Keep what a call has written to parameters and buffers."""
        names = {one.record.name: one for one in taken.values() if _is_named(one.record)}
        for one in call.with_role(*RESULTS):
            if one.name in names:
                self._named[one.name] = one.content.id, Node(call.id, one.index)
                self.program.buffers[one.name] = Node(call.id, one.index)
        if call.site.op.endswith("_") and not call.site.op.endswith("__"):
            first = next(iter(taken.values()), None)
            result = next(iter(call.with_role(Role.OUTPUT)), None)
            if first is not None and result is not None and _is_named(first.record):
                node = Node(call.id, result.index)
                self._named[first.record.name] = result.content.id, node
                self.program.buffers[first.record.name] = node

    def _link(self, record: TensorRecord, back: TensorRecord | None) -> Link:
        if _is_named(record):
            link = self._named_link(record)
            by_call = isinstance(link, Node) and link not in self._gathered.values()
            if by_call and record.edge == LEAF and back is not None:
                self.program.unplaced.append(
                    f"a gradient goes back to {record.name}, which a call of the step has written to"
                )
            return link
        content = record.content.id
        if record.edge in self._edges:
            node = self._edges[record.edge]
            known = self.program.results[node].content.id == content
            return (
                node
                if known
                else self._put(self._views.changed_of(node, record, self._number())) or node
            )
        if content in self._gradient_of and content not in self._arrived:
            found = self._latest(record)
            if found is not None:
                return found
        made = self._made.get(content)
        if made:
            return self._chosen(made, record, back)
        reduced = self._reduced(record) if content not in self._arrived else None
        if reduced is not None:
            return reduced
        if content not in self._arrived:
            written = self._put(self._views.changed(record, self._number()))
            if written is not None:
                return written
        held = self._held_as(content) if record.edge == NO_GRADIENT else None
        if held is not None:
            return held
        if content in self._passed_back and content not in self._arrived:
            raise NotApplicable("a gradient taken by torch.autograd.grad goes into it")
        state = self._states.get(content)
        if state is not None:
            return self._entering(Source(Enters.NAMED, state.name), state)
        if back is not None and content not in self._asked:
            self.program.unplaced.append(_no_call(record))
        source = Source(Enters.ARRIVED, str(content))
        if self._in_body:
            self.program.held.add(source)
        return self._entering(source, record)

    def _held_as(self, content: int) -> Link | None:
        """The parameter or buffer that has these numbers now, as its `.data` has."""
        return next((link for known, link in self._named.values() if known == content), None)

    def _number(self) -> int:
        """A number for a call that no recording holds."""
        return -1 - len(self.program.results) if self._passing is None else self._passing.number()

    def _put(self, operator: Operator | None) -> Node | None:
        """Have the program hold a call more; the result of it."""
        if operator is None:
            return None
        (record,) = operator.call.with_role(Role.OUTPUT)
        node = Node(operator.call.id, record.index)
        self.program.events.append(operator)
        self.makers[node] = operator
        self.program.results[node] = record
        self._made[record.content.id].append(node)
        self._taken |= {one.link for one in operator.taken.values()}
        return node

    def _named_link(self, record: TensorRecord) -> Link:
        content = record.content.id
        gathered = None if self._passing is None else self._passing.gathered(record)
        if gathered is not None:
            return self._gathered_link(record, gathered)
        known = self._named.get(record.name)
        if known is not None and self._is_as_updated(known, record):
            known = self._named[record.name] = content, known[1]
        if known is not None and known[0] == content:
            if isinstance(known[1], Source):
                self._entering(known[1], record)
            return known[1]
        version = 0
        made = self._made.get(content)
        if known is not None and made:  # written through another name of it, such as its `.data`
            self._named[record.name] = content, made[-1]
            return made[-1]
        changed = None
        if known is not None:
            changed = self._views.changed_of(known[1], record, self._number())
        written = self._put(changed)
        if written is not None:
            self._named[record.name] = content, written
            self.program.buffers[record.name] = written
            return written
        if known is not None:
            version = self._next_version(record.name)
            self.program.moved.append(record)
        link = self._entering(Source(Enters.NAMED, record.name, version), record)
        self._named[record.name] = content, link
        return link

    def _is_as_updated(self, known: tuple[int, Link], record: TensorRecord) -> bool:
        """Whether a parameter is what its update left: one taken behind it is kept whole, as a content of its own."""
        left = self._left.get(known[0])
        return left is not None and left.digest is not None and left.digest == record.digest

    def _completed(self, link: Link, record: TensorRecord, call: Call) -> Link:
        """An input as a call takes it: the whole of all ranks' parts, where it was one."""
        completing = None if self._passing is None else self._passing.completing(record, call)
        if completing is None:
            return link
        return self._out_of_sight(Operator(completing, {0: Taken(link, record)}), record)

    def _gathered_link(self, record: TensorRecord, gathered: Gathered) -> Link:
        if record.name in self._updated:
            raise NotApplicable(f"{record.name} is put together again behind its update")
        key = record.name, record.content.id
        if key not in self._gathered:
            self._named_link(gathered.shard)
            self._gathered[key] = self._out_of_sight(gathered.operator, record)
        return self._gathered[key]

    def _out_of_sight(self, operator: Operator, record: TensorRecord) -> Node:
        """The result of a call that stands for what was not recorded."""
        node = Node(operator.call.id, 0)
        self.program.events.append(operator)
        self.program.results[node] = record
        self.makers[node] = operator
        return node

    def _entering(self, source: Source, record: TensorRecord) -> Source:
        self.program.sources.setdefault(source, record)
        return source

    def _chosen(
        self, made: Sequence[Node], record: TensorRecord, back: TensorRecord | None
    ) -> Node:
        """Which of several results of one content a call has taken: the gradient that it sent tells.

        Without one, it is the first that none has taken: in 16 bit many norms of gradients are equal, of which each
        goes on by itself.
        """
        if len(made) == 1:
            return made[0]
        if back is None or record.edge == NO_GRADIENT:
            return next((node for node in made if node not in self._taken), made[-1])
        carry = [node for node in made if self._back[node]]
        exact = [node for node in carry if back.content.id in self._back[node]]
        if len(exact) != 1 and len(carry) > 1:
            self.program.unplaced.append(
                f"{record.name} of {record.site} is one of {len(carry)} equal tensors"
            )
        return (exact or carry or list(made))[-1]

    def _add_backward(self, position: int, call: Call) -> None:
        reached, anew = set(), set()
        for later in self._calls[position + 1 :]:
            if later.kind is CallKind.LOSS:
                break
            if later.kind is CallKind.GRADIENT:
                names = {one.name for one in later.with_role(Role.PARAM_GRAD)}
                reached |= names
                anew |= names if later.arguments.get(BEGAN_ANEW) else set()
        for record in call.with_role(Role.LOSS):
            made = self._made.get(record.content.id)
            exact = self._edges.get(record.edge or NO_GRADIENT)
            if not made:
                raise NotApplicable("no recorded call made the loss")
            carry = [node for node in made if self._back[node]] or made
            loss = Taken(exact or carry[-1], record)
            gradient = self._begun_with(call, exact or carry[-1])
            accumulates = not call.arguments.get(GIVES_GRADIENTS)
            if accumulates and gradient is None and record.content.numel != 1:
                raise NotApplicable(
                    "a backward pass begins at a tensor of several elements, with a gradient that is not known"
                )
            onto = {one: node for one, node in self._gradient_made.items() if one not in anew}
            if accumulates:
                self._gradient_made = {}
            self.program.events.append(
                Backward(call, loss, frozenset(anew), frozenset(reached), gradient, onto)
            )

    def _begun_with(self, call: Call, loss: Node) -> Taken | None:
        """The gradient that a backward pass begins with: what arrives at its loss, if nothing else takes the loss."""
        if call.arguments.get(GIVES_GRADIENTS):
            return None
        arrived = [
            one
            for one in self.makers[loss].call.with_role(Role.GRAD_OUTPUT)
            if one.index == loss.index and one.sequence > call.sequence
        ]
        if not arrived or loss in self._taken or _is_one(arrived[0]):
            return None
        record = arrived[0]
        made = [
            one
            for one in self._made.get(record.content.id, ())
            if self.program.results[one].edge == NO_GRADIENT
        ]
        source = Source(Enters.ARRIVED, str(record.content.id))
        return Taken(made[-1] if made else self._entering(source, record), record, detached=True)


def _enters(link: Link) -> bool:
    """Whether it is of no call of the step, and no parameter, buffer or state."""
    return isinstance(link, Source) and link.kind is Enters.ARRIVED


def _hands_on(call: Call, record: TensorRecord) -> bool:
    """Whether a call returns a tensor with a history as it is: what comes back to its result goes to that history."""
    has_history = record.edge is not None and record.edge > LEAF
    return has_history and any(one.edge == record.edge for one in call.with_role(*RESULTS))


def _no_call(record: TensorRecord) -> str:
    return f"a gradient goes back to {record.name} of {record.site}, which no recorded call made"


def _asked_contents(calls: Sequence[Call]) -> frozenset[int]:
    """Contents of the leaves whose gradients `torch.autograd.grad` gives."""
    return frozenset(
        one.content.id
        for call in calls
        if call.site.op == AUTOGRAD_GRAD
        for one in call.with_role(Role.INPUT)
        if one.index in asked_of(call) and one.edge == LEAF
    )


def _is_one(record: TensorRecord) -> bool:
    """Whether a gradient is the 1 that a loss of one element begins with."""
    known = record.statistics
    return record.content.numel == 1 and known is not None and known.minimum == known.maximum == 1.0


def _left_by_update(call: Call) -> tuple[TensorRecord, ...]:
    """A parameter and its states after an update; numbers that a script keeps as tensors, such as a count, aside."""
    return call.with_role(Role.PARAM_AFTER, Role.STATE_AFTER)


def _is_named(record: TensorRecord) -> bool:
    """Whether an input is a parameter or a buffer, called by its own name."""
    return bool(record.argument)
