"""The state of a daemon: sessions, their slabs, and the processes that map them. Knows no socket."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Iterator
from typing import Any

from lockstep.terminal import printable
from lockstep_cache import messages as m
from lockstep_cache.eviction import KeepWhatIsUsed, Policy
from lockstep_cache.reserves import Reserves
from lockstep_cache.sessions import Session, Table, bytes_for
from lockstep_cache.slabs import Slab, Tier, fitting_slab_bytes, place_of, word_of

_MOST_VARIANTS = 4096
_MOST_ROWS = 1 << 32


class Keeper:
    """Answers each message of each connection; a connection that ends gives back what it held.

    tiers: Where slabs may lie, the first before the second.
    most_sessions: How many sessions there may be; one that nobody uses goes for a new one.
    policy: What goes when there is no room.
    """

    def __init__(self, tiers: list[Tier], most_sessions: int, policy: Policy | None = None) -> None:
        self.tiers = tiers
        self.sessions: dict[str, Session] = {}
        self.slabs: dict[int, Slab] = {}
        self._policy = policy or KeepWhatIsUsed()
        self._most_sessions = most_sessions
        self._number, self._uses = 0, 0
        self._writing: dict[int, dict[tuple[str, str, int], tuple[Slab, int]]] = {}
        self._reserves = Reserves(self._forget_if_free)
        self._answers: dict[type[m.Message], Callable[[int, Any], m.Message | None]] = {
            m.Attach: self._attach, m.Grow: self._grow, m.Place: self._place, m.Unused: self._unused,
            m.Written: self._written,
            m.Lease: self._lease, m.Released: self._released, m.Close: self._close, m.Tell: self._tell,
            m.Confirm: self._confirm, m.Leave: self._leave,
            m.MakeSession: self._make_session, m.Destroy: self._destroy, m.Stat: self._stat,
        }  # fmt: skip

    def answer(self, connection: int, message: m.Message) -> m.Message | None:
        """Return the answer to a message; None for messages that want none."""
        known = self._answers.get(type(message))
        return known(connection, message) if known else m.Refused("a message of no use here")

    def descriptor_of(self, answer: m.Message | None) -> int | None:
        """The file that goes with an answer."""
        name = answer.table if isinstance(answer, m.Attached) else ""
        name = answer.file if isinstance(answer, m.Leased) else name
        return next((tier.files[name] for tier in self.tiers if name in tier.files), None)

    def left(self, connection: int) -> None:
        """Take back what a connection held: places it did not write to, slabs it mapped, sessions it used."""
        for slab, _ in self._writing.pop(connection, {}).values():
            slab.writing -= 1
        self._reserves.left(connection)
        for slab in list(self.slabs.values()):
            self._give_back(slab, connection)
        for session in list(self.sessions.values()):
            self._left_session(session, connection)

    def ended(self, connection: int) -> None:
        """The process of a closed connection has ended, and writes nothing any more."""
        self._reserves.ended(connection)

    def _left_session(self, session: Session, connection: int) -> None:
        """A connection uses a session no more; one without a name goes with its last one."""
        was_there = session.attached.pop(connection, None) is not None
        if was_there and not session.attached and not session.is_lasting:
            self._drop(session)

    def _leave(self, connection: int, told: m.Leave) -> None:
        if told.session in self.sessions:
            self._left_session(self.sessions[told.session], connection)

    # ---------------------------------------------------------------------------------- sessions

    def _attach(self, connection: int, asked: m.Attach) -> m.Message:
        name = asked.session or asked.checksum[:16]
        session = self.sessions.get(name) or self._new_session(name, is_lasting=bool(asked.lasting))
        if isinstance(session, m.Refused):
            return session
        if session.checksum and session.checksum != asked.checksum:
            return m.Refused(
                f"session {name} holds samples of another pipeline", session.description
            )
        if session.closed:
            return m.Refused(f"session {name}: {session.closed}")
        session.checksum, session.description = asked.checksum, asked.description
        session.attach(connection, asked.training)
        self._use(session)
        session.rows = max(session.rows, asked.rows)
        session.checked_within = max(session.checked_within, asked.checked_within)
        return self._table_of(session, asked.variant, asked.rows)

    def _new_session(self, name: str, *, is_lasting: bool = True) -> Session | m.Refused:
        if len(self.sessions) >= self._most_sessions:
            idle = [one for one in self.sessions.values() if not one.attached]
            if not idle:
                why = f"there are {self._most_sessions} sessions already, all in use (--sessions)"
                return m.Refused(why, later=1)
            self._drop(min(idle, key=lambda one: one.last_used))
        self.sessions[name] = session = Session(name, is_lasting=is_lasting)
        return session

    def _table_of(self, session: Session, variant: str, rows: int) -> m.Message:
        if rows > _MOST_ROWS or len(session.tables) >= _MOST_VARIANTS:
            return m.Refused(f"session {session.name}: too many samples, or keys")
        table = session.tables.get(variant)
        if table is None:
            self._number += 1
            name = f"table-{self._number}"
            tier = self._room(bytes_for(rows), lambda tier: tier.make(name, bytes_for(rows)))
            if tier is None:
                return m.Refused(f"no room: {self._why_full()}", later=1)
            table = session.tables[variant] = Table(tier, name, rows)
        elif not table.grow(rows):
            return m.Refused(f"no room: {table.tier.full}")
        return m.Attached(session.name, table.file, table.rows)

    def _grow(self, connection: int, asked: m.Grow) -> m.Message:
        session = self.sessions.get(asked.session)
        if session is None:
            return m.Refused(f"session {asked.session} is gone")
        return self._table_of(session, asked.variant, asked.rows)

    def _use(self, session: Session) -> None:
        self._uses += 1
        session.last_used = self._uses

    def _close(self, connection: int, asked: m.Close) -> m.Message:
        session = self.sessions.get(asked.session)
        if session is None or session.closed:
            return m.Told(0)
        session.closed = asked.why
        for table in session.tables.values():
            table.close(is_wrong=bool(asked.wrong))
        self._drop_samples(session)
        return m.Told(1)

    def _tell(self, connection: int, asked: m.Tell) -> m.Message:
        session = self.sessions.get(asked.session)
        if session is None or asked.what in session.told or len(session.told) > 100:
            return m.Told(0)
        session.told.add(asked.what)
        return m.Told(1)

    def _confirm(self, connection: int, told: m.Confirm) -> None:
        session = self.sessions.get(told.session)
        table = None if session is None else session.tables.get(told.variant)
        if session is None or table is None or session.closed:
            return
        active = frozenset(session.attached.values())
        for row, word in [one for one in told.rows if len(one) == 2]:
            table.confirm(row, word, session.attached.get(connection, 0), active)

    def _make_session(self, connection: int, asked: m.MakeSession) -> m.Message:
        name = asked.session or secrets.token_hex(8)
        if name in self.sessions:
            return m.Refused(f"session {name} is there already")
        made = self._new_session(name)
        return made if isinstance(made, m.Refused) else m.Made(name)

    def _destroy(self, connection: int, asked: m.Destroy) -> m.Message:
        session = self.sessions.get(asked.session)
        if session is None:
            return m.Refused(f"there is no session {asked.session}; lockstep cache stat lists them")
        self._drop(session)
        return m.Made(asked.session)

    # ----------------------------------------------------------------------------------- samples

    def _place(self, connection: int, asked: m.Place) -> m.Message:
        session = self.sessions.get(asked.session)
        table = None if session is None else session.tables.get(asked.variant)
        if session is None or table is None or connection not in session.attached:
            return m.Refused(f"session {asked.session} is gone")
        self._use(session)
        places = [
            self._placed(connection, session, table, asked.variant, one) for one in asked.wanted
        ]
        say = ""
        if (
            any(slab == 0 for slab, _ in places)
            and "full" not in session.told
            and self.tiers[-1].full
        ):
            session.told.add("full")
            known = f" of {session.rows}" if session.rows else ""
            why = f"no room for more than {table.filled}{known} samples ({self._why_full()})"
            say = f"{why}; others are loaded each time"
        ahead = self._reserves.give(connection, session, asked.ahead, self.tiers)
        return m.Placed(places, say, ahead)

    def _why_full(self) -> str:
        return "; ".join(tier.full for tier in self.tiers if tier.full)

    def _placed(
        self, connection: int, session: Session, table: Table, variant: str, wanted: list[int]
    ) -> list[int]:
        if len(wanted) != 2 or wanted[0] >= table.rows or session.closed:
            return [0, 0]
        row, size = wanted
        mine = self._writing.setdefault(connection, {})
        if table.word(row) or (session.name, variant, row) in mine:
            return [0, 0]
        slab, offset = self._take(session, size) or (None, 0)
        if slab is None:
            return [0, 0]
        slab.writing += 1
        mine[session.name, variant, row] = slab, offset
        return [slab.number, offset]

    def _take(self, session: Session, size: int) -> tuple[Slab, int] | None:
        """Bytes in a slab that is being filled, in the first tier that has them."""
        for tier in self.tiers:
            slab = session.open_slabs.get(tier.name)
            offset = None if slab is None else slab.take(size)
            if slab is not None and offset is not None:
                return slab, offset
        slab = self._new_slab(session, size)
        offset = None if slab is None else slab.take(size)
        return None if slab is None or offset is None else (slab, offset)

    def _new_slab(self, session: Session, size: int) -> Slab | None:
        self._number += 1
        number = self._number

        sizes: dict[str, int] = {}

        def make(tier: Tier) -> bool:
            sizes[tier.name] = fitting_slab_bytes(size, tier.bound_bytes, tier.used_bytes)
            return tier.make(f"slab-{number}", sizes[tier.name])

        tier = self._room(size, make)
        if tier is None:
            return None
        slab = self.slabs[number] = Slab(number, tier, sizes[tier.name], session.name)
        session.open_slabs[tier.name] = slab
        return slab

    def _written(self, connection: int, told: m.Written) -> None:
        mine = self._writing.get(connection, {})
        for row in told.rows:
            slab, offset = mine.pop((told.session, told.variant, row), (None, 0))
            if slab is None:
                continue
            slab.writing -= 1
            if slab.retired:
                self._forget_if_free(slab)
            self._enter(connection, told, row, slab, offset)
        for row, offset, size in [one for one in told.ahead if len(one) == 3]:
            slab = self._reserves.written(connection, told.session, offset, size)
            if slab is not None and not self._enter(connection, told, row, slab, offset):
                self.sessions[told.session].is_doubled = True

    def _enter(self, connection: int, told: m.Written, row: int, slab: Slab, offset: int) -> bool:
        """Say in the table where a row lies; False where it says so already of another place."""
        session = self.sessions.get(told.session)
        table = None if session is None else session.tables.get(told.variant)
        if slab.retired or session is None or session.closed or table is None or row >= table.rows:
            return True
        if table.word(row):
            return False
        slab.rows.append((told.variant, row))
        table.set(row, word_of(slab.number, offset), session.attached.get(connection, 0))
        return True

    def _unused(self, connection: int, told: m.Unused) -> None:
        self._reserves.take_back(connection, told.session)

    def _lease(self, connection: int, asked: m.Lease) -> m.Message:
        slab = self.slabs.get(asked.slab)
        if slab is None or slab.retired:
            return m.Leased("", "", 0)
        slab.leases.add(connection)
        is_open = slab.writing or slab in self.sessions[slab.session].open_slabs.values()
        return m.Leased(slab.tier.name, slab.file, slab.size, int(not is_open))

    def _released(self, connection: int, told: m.Released) -> m.Message:
        for number in told.slabs:
            if number in self.slabs:
                self._give_back(self.slabs[number], connection)
        if told.session in self.sessions:
            self.sessions[told.session].hits += told.hits
        return m.Gone(
            [one.number for one in self.slabs.values() if one.retired and connection in one.leases]
        )

    # -------------------------------------------------------------------------------------- room

    def _room(self, size: int, make: Callable[[Tier], bool]) -> Tier | None:
        """The first tier in which so many bytes can be had, if need be for others that go; None where there is none."""
        for tier in [one for one in self.tiers if one.bound_bytes >= size]:
            if make(tier):
                return tier
            for victim in self._victims(tier):
                self._move_down(victim)
                if make(tier):
                    return tier
        return None

    def _move_down(self, slab: Slab) -> None:
        """Move a slab that has to go to the next tier, if there is room; else its samples are dropped."""
        below = self.tiers[self.tiers.index(slab.tier) + 1 :]
        self._number += 1
        moved = Slab(
            self._number, below[0] if below else slab.tier, slab.size, slab.session, slab.used
        )
        if below and moved.tier.make(moved.file, moved.size):
            if slab.copied_to(moved):
                self._take_over(slab, moved)
            else:
                moved.tier.close(moved.file)
                moved.tier.forget(moved.size)
        self._retire(slab)

    def _take_over(self, slab: Slab, moved: Slab) -> None:
        self.slabs[moved.number] = moved
        session = self.sessions[slab.session]
        for variant, row in slab.rows:
            place = place_of(session.tables[variant].word(row))[1]
            session.tables[variant].move(row, word_of(moved.number, place))
        moved.rows, slab.rows = slab.rows, []

    def _victims(self, tier: Tier) -> Iterator[Slab]:
        mine = [slab for slab in self.slabs.values() if slab.tier is tier and not slab.retired]
        return iter(list(self._policy.victims(mine, self.sessions)))

    def _retire(self, slab: Slab) -> None:
        """Take a slab's samples out of the tables and its file away; its bytes count while somebody maps it."""
        session = self.sessions[slab.session]
        for variant, row in slab.rows:
            session.tables[variant].set(row, 0)
        if session.open_slabs.get(slab.tier.name) is slab:
            del session.open_slabs[slab.tier.name]
        slab.rows, slab.retired = [], True
        slab.tier.close(slab.file)
        self._forget_if_free(slab)

    def _give_back(self, slab: Slab, connection: int) -> None:
        slab.leases.discard(connection)
        if slab.retired:
            self._forget_if_free(slab)

    def _forget_if_free(self, slab: Slab) -> None:
        if slab.number in self.slabs and not slab.leases and not slab.writing:
            del self.slabs[slab.number]
            slab.tier.forget(slab.size)

    def _drop_samples(self, session: Session) -> None:
        for slab in [one for one in self.slabs.values() if one.session == session.name]:
            if not slab.retired:
                self._retire(slab)

    def _drop(self, session: Session) -> None:
        self._drop_samples(session)
        for table in session.tables.values():
            table.close()
            table.unmap()
            table.tier.close(table.file)
            table.tier.forget(table.size)
        del self.sessions[session.name]

    def close(self) -> None:
        """Drop everything."""
        for session in list(self.sessions.values()):
            self._drop(session)

    # -------------------------------------------------------------------------------------- stat

    def _stat(self, connection: int, asked: m.Stat) -> m.Message:
        tiers = {
            tier.name: {
                "bound_bytes": tier.bound_bytes,
                "used_bytes": tier.used_bytes,
                "full": tier.full,
            }
            for tier in self.tiers
        }
        sessions = [self._stat_of(one) for one in self.sessions.values()]
        held = sum(slab.size for slab in self.slabs.values() if slab.retired)
        whole = {
            "pid": os.getpid(),
            "tiers": tiers,
            "sessions": sessions,
            "gone_but_mapped_bytes": held,
        }
        return m.Stats(json.dumps(whole))

    def _stat_of(self, session: Session) -> dict[str, object]:
        mine = [
            one for one in self.slabs.values() if one.session == session.name and not one.retired
        ]
        return {
            "session": printable(session.name),
            "checksum": session.checksum[:16],
            "samples": session.filled,
            "of": session.rows or None,
            "memory_bytes": sum(one.used for one in mine if one.tier.name == "memory"),
            "disk_bytes": sum(one.used for one in mine if one.tier.name == "disk"),
            "processes": len(session.attached),
            "hits": session.hits,
            "checked_within": session.checked_within or None,
            "closed": session.closed,
        }
