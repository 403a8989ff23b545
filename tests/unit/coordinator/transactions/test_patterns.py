"""Patterns of ListTransactions agree with Python's regular expressions, without their time."""

from __future__ import annotations

import re
import time
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowstone.coordinator.transactions.config import (
    PATTERN_CHARACTERS_MAX,
    PATTERN_STATES_MAX,
    PATTERN_STEPS_MAX,
    PATTERN_TEXT_CHARACTERS_MAX,
)
from flowstone.coordinator.transactions.patterns import _GROUPS_DEPTH_MAX, Pattern, PatternError

TEXT = st.text("abc-1_ .\n", max_size=12)
ATOM_TEXTS = r"a b - . \. \d \W \s [ab] [^a-b] [a\d-] 1 \- ] }"
ATOMS = st.sampled_from(ATOM_TEXTS.split())
REPEATS = st.sampled_from(["", "", "*", "+", "?", "*?", "{2}", "{0}", "{1,}", "{0,2}", "{1,3}?"])
PATTERNS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.tuples(inner, REPEATS).map(lambda pair: f"(?:{pair[0]}){pair[1]}"),
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda pair: f"({pair[0]}|{pair[1]})"),
        inner.map(lambda text: f"({text}|)"),
    ),
    max_leaves=6,
)


@given(PATTERNS, st.lists(TEXT, min_size=1, max_size=5))
@settings(max_examples=400, deadline=None, derandomize=True)
def test_a_pattern_matches_what_pythons_does(pattern: str, texts: list[str]) -> None:
    compiled = Pattern(pattern)
    for text in texts:
        assert compiled.matches(text) == (re.fullmatch(pattern, text, re.ASCII) is not None), (pattern, text)


@pytest.mark.parametrize(
    ("pattern", "text", "is_match"),
    [
        ("^app-.*$", "app-1", True),
        ("app", "app-1", False),
        ("", "", True),
        ("", "a", False),
        ("\\tx", "\tx", True),
        ("[\\]a]+", "]a", True),
        ("a{3}", "aaa", True),
        ("a{3}", "aaaa", False),
        ("ä.ö", "äüö", True),
        ("[à-ü]*", "äöü", True),
        ("(a|b)*c", "abbac", True),
    ],
)
def test_patterns_in_common_use(pattern: str, text: str, is_match: bool) -> None:
    assert Pattern(pattern).matches(text) is is_match


NO_PATTERNS = r"""
    ( ) a) (a [ [a [] [b-a] [\d-z [[:alpha:]] [\D] * +a ? a** a{2}{3} a{ a{x} a{3,2} a{1000} (a{100}){100}
    \ \1 \b \p{L} (?=a) (?!a) (?<=a) (?P<n>a) (?i)a a^ $a
"""


@pytest.mark.parametrize("pattern", [*NO_PATTERNS.split(), "x" * (PATTERN_CHARACTERS_MAX + 1), "(" * 100 + ")" * 100])
def test_what_cannot_be_compiled_is_refused(pattern: str) -> None:
    with pytest.raises(PatternError):
        Pattern(pattern)


@pytest.mark.parametrize("pattern", ["(a*)*b", "(a|a)*b", "(a|b|ab)*c", "(.*)*", "(a?){40}a{20}", "(((a+)+)+)+b"])
def test_patterns_that_would_backtrack_for_ever_take_no_time(pattern: str) -> None:
    compiled = Pattern(pattern)
    text = "a" * PATTERN_TEXT_CHARACTERS_MAX
    began_s = time.process_time()
    compiled.matches(text)
    assert time.process_time() - began_s < 1


def test_a_pattern_that_has_many_sets_of_states_is_followed_beyond_those_that_are_remembered() -> None:
    pattern = "(a|b)*a(a|b){20}"
    compiled = Pattern(pattern)
    random = Random(1)
    for _ in range(20):
        text = "".join(random.choices("ab", k=PATTERN_TEXT_CHARACTERS_MAX))
        assert compiled.matches(text) is (text[-21] == "a")
    assert compiled.followed_count > PATTERN_STEPS_MAX


def test_an_id_that_is_too_long_is_never_matched() -> None:
    assert Pattern("a*").matches("a" * PATTERN_TEXT_CHARACTERS_MAX)
    assert not Pattern("a*").matches("a" * (PATTERN_TEXT_CHARACTERS_MAX + 1))


def test_a_pattern_may_have_as_many_characters_as_the_limit() -> None:
    longest = "[" + "a" * (PATTERN_CHARACTERS_MAX - 2) + "]"
    assert Pattern(longest).matches("a")
    with pytest.raises(PatternError, match=f"more than {PATTERN_CHARACTERS_MAX} characters"):
        Pattern(longest + "a")


def test_a_pattern_may_take_as_many_states_as_the_limit() -> None:
    # Two states for each letter, one for the whole, one for an anchor.
    most = (PATTERN_STATES_MAX - 2) // 2
    least = "a" * most if PATTERN_STATES_MAX % 2 else "^" + "a" * most
    assert Pattern(least).matches("a" * most)
    with pytest.raises(PatternError, match=f"more than {PATTERN_STATES_MAX} states"):
        Pattern(least + "$")


def test_groups_may_be_nested_as_deeply_as_the_limit() -> None:
    assert Pattern("(" * _GROUPS_DEPTH_MAX + "a" + ")" * _GROUPS_DEPTH_MAX).matches("a")
    assert Pattern("(a)" * (_GROUPS_DEPTH_MAX + 1)).matches("a" * (_GROUPS_DEPTH_MAX + 1))
    with pytest.raises(PatternError, match="nested too deeply"):
        Pattern("(" * (_GROUPS_DEPTH_MAX + 1) + "a" + ")" * (_GROUPS_DEPTH_MAX + 1))


@pytest.mark.parametrize("count", [PATTERN_STATES_MAX + 1, 10**9])
def test_a_repetition_above_the_limit_of_states_is_refused_before_states_are_made(count: int) -> None:
    for pattern in (f"a{{{count}}}", f"a{{0,{count}}}", f"a{{{count},}}"):
        with pytest.raises(PatternError, match="no range of repetitions"):
            Pattern(pattern)
    with pytest.raises(PatternError, match="states"):
        Pattern(f"a{{{PATTERN_STATES_MAX}}}")


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("a{0}b", ["b"], ["ab"]),
        ("a{0,0}b", ["b"], ["ab"]),
        ("a{0,1}", ["", "a"], ["aa"]),
        ("a{1,1}", ["a"], ["", "aa"]),
        ("a{2,}", ["aa", "aaa"], ["a"]),
        ("a{0,}", ["", "a", "aaa"], ["b"]),
        ("a?", ["", "a"], ["aa"]),
        ("a+", ["a", "aa"], [""]),
        ("a*", ["", "a", "aa"], ["b"]),
        ("[a-]", ["a", "-"], ["b"]),
        ("[-a]", ["a", "-"], ["b"]),
        ("[a-a]", ["a"], ["b", "-"]),
        ("[\\da]", ["5", "a"], ["-", "d"]),
        ("[\\d-]", ["5", "-"], ["a"]),
        ("a|b|c", ["a", "b", "c"], ["", "ab"]),
        ("a*?b", ["b", "ab", "aab"], ["a"]),
        (".", ["a", "\t"], ["\n", ""]),
    ],
)
def test_the_ends_of_ranges_and_repetitions(pattern: str, matching: list[str], others: list[str]) -> None:
    compiled = Pattern(pattern)
    assert [text for text in (*matching, *others) if compiled.matches(text)] == matching


def test_what_a_match_costs_is_counted_once_for_each_step_that_is_new() -> None:
    compiled = Pattern("a*")
    assert compiled.followed_count == 0
    compiled.matches("aaaa")
    first = compiled.followed_count
    compiled.matches("aaaa")
    assert compiled.followed_count == first > 0


def test_no_more_steps_are_remembered_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flowstone.coordinator.transactions.patterns.PATTERN_STEPS_MAX", 2)
    compiled = Pattern("[abc]")
    counts = []
    for character in "abacc":
        assert compiled.matches(character)
        counts.append(compiled.followed_count // len(compiled._start))
    assert counts == [1, 2, 2, 3, 3]  # the third step takes the place of both others
    assert compiled.matches("a")
    assert compiled.followed_count // len(compiled._start) == 4
