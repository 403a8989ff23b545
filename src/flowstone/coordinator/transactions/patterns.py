r"""Regular expressions from clients, matched in a time that is linear in the length of the text.

Python's own `re` backtracks: a pattern of twenty characters may take hours on a text of forty. Here a pattern is
compiled to a nondeterministic automaton, and sets of its states are followed, as in RE2. The pattern must match the
whole text. Back references and look-around, which an automaton cannot do, are refused. So are named classes, which are
rare in transactional ids.

Supported are literals, `.`, classes with ranges and negation, `\d \w \s \D \W \S`, escapes, groups, `|`, `* + ?` and
`{m,n}`, greedy or lazy. `^` and `$` have no effect, because the pattern matches the whole text in any case.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from flowstone.coordinator.transactions.config import (
    PATTERN_CHARACTERS_MAX,
    PATTERN_STATES_MAX,
    PATTERN_STEPS_MAX,
    PATTERN_TEXT_CHARACTERS_MAX,
)

_GROUPS_DEPTH_MAX = 50
_DIGITS = frozenset("0123456789")
_WORDS = _DIGITS | frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_")
_SPACES = frozenset(" \t\n\r\f\v")
_ESCAPED_CLASSES = {"d": _DIGITS, "w": _WORDS, "s": _SPACES}
_ESCAPED_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_SPECIAL = frozenset("\\.[](){}|*+?^$")


class PatternError(ValueError):
    """The pattern is invalid, too large, or uses an unsupported construct."""


@dataclass(frozen=True, slots=True)
class CharacterSet:
    characters: frozenset[str] = frozenset()
    ranges: tuple[tuple[str, str], ...] = ()
    is_negated: bool = False

    def __contains__(self, character: str) -> bool:
        is_in = character in self.characters or any(first <= character <= last for first, last in self.ranges)
        return is_in != self.is_negated


@dataclass(slots=True, eq=False)
class _State:
    """A state of the automaton: a character in `accepts` leads to `targets`; if that is None, no character is
    needed.
    """

    accepts: CharacterSet | None
    targets: list[_State]


@dataclass(slots=True)
class _Fragment:
    """A part of the automaton: its first state, and its last one, which has no targets yet."""

    start: _State
    end: _State


class Pattern:
    """A compiled pattern, with a cache of the automaton's transitions."""

    def __init__(self, text: str) -> None:
        """Compile a pattern. Raises PatternError if it is invalid, too large or not supported."""
        self.followed_count = 0  # the states that were followed so far, which is the time it took
        fragment = _Compiler(text).compile()
        self._end = fragment.end
        self._start = _closure([fragment.start])
        self._steps: dict[tuple[frozenset[_State], str], frozenset[_State]] = {}

    def matches(self, text: str) -> bool:
        """Return whether the pattern matches the whole text, whose length the caller has limited."""
        if len(text) > PATTERN_TEXT_CHARACTERS_MAX:
            return False
        states, steps = self._start, self._steps
        for character in text:
            after = steps.get((states, character))
            if after is None:
                if len(steps) >= PATTERN_STEPS_MAX:
                    steps.clear()
                self.followed_count += len(states)
                waiting = (each for each in states if each.accepts is not None and character in each.accepts)
                after = _closure([target for each in waiting for target in each.targets])
                steps[states, character] = after
            if not after:
                return False
            states = after
        return self._end in states


def _closure(states: list[_State]) -> frozenset[_State]:
    """Return these states and those that can be reached from them without consuming a character."""
    reached = set(states)
    while states:
        state = states.pop()
        if state.accepts is None:
            new = [each for each in state.targets if each not in reached]
            reached.update(new)
            states += new
    return frozenset(reached)


class _Compiler:
    def __init__(self, text: str) -> None:
        self._text, self._position, self._depth, self._state_count = text, 0, 0, 0

    def compile(self) -> _Fragment:
        if len(self._text) > PATTERN_CHARACTERS_MAX:
            self._refuse(f"it has more than {PATTERN_CHARACTERS_MAX} characters")
        fragment = self._alternatives()
        if self._position < len(self._text):
            self._refuse("a ) has no (")
        return fragment

    def _alternatives(self) -> _Fragment:
        fragments = [self._sequence()]
        while self._take("|"):
            fragments.append(self._sequence())
        if len(fragments) == 1:
            return fragments[0]
        end = self._state()
        for each in fragments:
            each.end.targets.append(end)
        return _Fragment(self._state(targets=[each.start for each in fragments]), end)

    def _sequence(self) -> _Fragment:
        start = end = self._state()
        while self._peek() not in ("", "|", ")"):
            fragment = self._repeated()
            end.targets.append(fragment.start)
            end = fragment.end
        return _Fragment(start, end)

    def _repeated(self) -> _Fragment:
        fragment = self._atom()
        bounds = self._bounds()
        if bounds is None:
            return fragment
        self._take("?")  # lazy: what matches as a whole does not depend on it
        if self._peek() in ("*", "+", "?", "{"):
            self._refuse("a repetition is repeated")
        least, most = bounds
        count = max(least, most or 0, 1)
        copies = [fragment, *(self._copy(fragment) for _ in range(count - 1))]
        start = end = self._state()
        for number, each in enumerate(copies):
            after = self._state()  # of its own: what leaves out the copy must not get into a loop at its end
            each.end.targets.append(after)
            end.targets.append(each.start)
            if number >= least:
                end.targets.append(after)
            end = after
        if most is None:
            end.targets.append(copies[-1].start)
        elif most == 0:
            start.targets = [end]
        return _Fragment(start, end)

    def _copy(self, fragment: _Fragment) -> _Fragment:
        copies = {fragment.start: self._state(fragment.start.accepts)}
        uncopied = [fragment.start]
        while uncopied:
            state = uncopied.pop()
            for target in state.targets:
                if target not in copies:
                    copies[target] = self._state(target.accepts)
                    uncopied.append(target)
            copies[state].targets = [copies[target] for target in state.targets]
        return _Fragment(copies[fragment.start], copies[fragment.end])

    def _bounds(self) -> tuple[int, int | None] | None:
        """Parse the repetition `{m,n}` after an atom; an upper bound of None means unlimited."""
        for sign, least_count, most_count in (("*", 0, None), ("+", 1, None), ("?", 0, 1)):
            if self._take(sign):
                return least_count, most_count
        if not self._take("{"):
            return None
        inside, brace, _ = self._text[self._position :].partition("}")
        least, comma, most = inside.partition(",")
        if not brace or not least.isdecimal() or (most and not most.isdecimal()):
            self._refuse("{ begins no repetition")
        self._position += len(inside) + 1
        bounds = int(least), int(most) if most else None if comma else int(least)
        if max(bounds[0], bounds[1] or 0) > PATTERN_STATES_MAX or (bounds[1] is not None and bounds[1] < bounds[0]):
            self._refuse(f"{{{inside}}} is no range of repetitions, or too large")
        return bounds

    def _atom(self) -> _Fragment:
        character = self._next()
        if character == "(":
            return self._group()
        if character == "[":
            return self._one_of(self._class())
        if character == ".":
            return self._one_of(CharacterSet(frozenset("\n"), is_negated=True))
        if character == "\\":
            return self._one_of(self._escape())
        if (character == "^" and self._position == 1) or (character == "$" and self._position == len(self._text)):
            state = self._state()
            return _Fragment(state, state)
        if character in _SPECIAL and character not in "]}":
            self._refuse(f"{character} stands where nothing can be repeated or an anchor says nothing")
        return self._one_of(CharacterSet(frozenset(character)))

    def _group(self) -> _Fragment:
        if self._take("?") and not self._take(":"):
            self._refuse("only (...) and (?:...) are supported")
        self._depth += 1
        if self._depth > _GROUPS_DEPTH_MAX:
            self._refuse("its groups are nested too deeply")
        fragment = self._alternatives()
        if not self._take(")"):
            self._refuse("a ( has no )")
        self._depth -= 1
        return fragment

    def _escape(self) -> CharacterSet:
        character = self._next()
        if character.lower() in _ESCAPED_CLASSES:
            return CharacterSet(_ESCAPED_CLASSES[character.lower()], is_negated=character.isupper())
        if character in _ESCAPED_CONTROLS:
            return CharacterSet(frozenset(_ESCAPED_CONTROLS[character]))
        if character.isalnum():
            self._refuse(f"\\{character} is not supported")
        return CharacterSet(frozenset(character))

    def _class(self) -> CharacterSet:
        is_negated = self._take("^")
        characters: set[str] = set()
        ranges: list[tuple[str, str]] = []
        while not self._take("]"):
            first = self._class_member()
            if len(first) > 1:
                characters |= first
                continue
            (low,) = first
            if self._peek() != "-" or self._text[self._position + 1 : self._position + 2] in ("]", ""):
                characters.add(low)
                continue
            self._next()
            high = min(last := self._class_member())
            if len(last) > 1 or high < low:
                self._refuse("a range of characters ends before it begins")
            ranges.append((low, high))
        if not characters and not ranges:
            self._refuse("a class is empty")
        return CharacterSet(frozenset(characters), tuple(ranges), is_negated)

    def _class_member(self) -> frozenset[str]:
        character = self._next()
        if character == "[":
            self._refuse("[ within a class has to be escaped")
        if character != "\\":
            return frozenset(character)
        escaped = self._escape()
        if escaped.is_negated:
            self._refuse("a negated class within a class is not supported")
        return escaped.characters

    def _one_of(self, accepts: CharacterSet) -> _Fragment:
        end = self._state()
        return _Fragment(self._state(accepts, [end]), end)

    def _state(self, accepts: CharacterSet | None = None, targets: list[_State] | None = None) -> _State:
        self._state_count += 1
        if self._state_count > PATTERN_STATES_MAX:
            self._refuse(f"it takes more than {PATTERN_STATES_MAX} states")
        return _State(accepts, targets or [])

    def _peek(self) -> str:
        return self._text[self._position : self._position + 1]

    def _next(self) -> str:
        character = self._peek()
        if not character:
            self._refuse("it ends too early")
        self._position += 1
        return character

    def _take(self, character: str) -> bool:
        if self._peek() != character:
            return False
        self._position += 1
        return True

    def _refuse(self, reason: str) -> NoReturn:
        raise PatternError(reason)
