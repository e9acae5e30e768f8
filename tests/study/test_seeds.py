"""Seeds that a command line names."""

import pytest

from flaxformer.study.seeds import parse_seeds
from flaxformer.system.errors import UserError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1", [0]),
        ("4", [0, 1, 2, 3]),
        ("1000:1003", [1000, 1001, 1002]),
        ("3,5,8", [3, 5, 8]),
        ("8,3", [8, 3]),
        (" 3 , 10 : 12 ", [3, 10, 11]),
        ("0:2,7", [0, 1, 7]),
        ("2147483647:2147483648", [2**31 - 1]),
    ],
)
def test_a_number_a_range_or_a_list_names_seeds(text, expected):
    assert parse_seeds(text) == tuple(expected)


@pytest.mark.parametrize("text", ["", "a", "-1", "3,", ",3", "1:", ":4", "1:2:3", "1.5", "1e3", "3 4", "0x10"])
def test_malformed_seeds_are_refused(text):
    with pytest.raises(UserError, match=f"seeds is '{text}'; expected a number N for 0 to N − 1, A:B"):
        parse_seeds(text)


@pytest.mark.parametrize(
    ("text", "what"),
    [("0", "no seed"), ("5:5", "no seed"), ("7:3", "no seed"), ("3,3", "a seed twice"), ("0:4,3", "a seed twice")],
)
def test_no_seeds_and_repeated_seeds_are_refused(text, what):
    with pytest.raises(UserError, match=f"seeds is '{text}', which names {what}; expected at least one, all different"):
        parse_seeds(text)


@pytest.mark.parametrize("text", ["99999999", "0:2147483649", "4294967296,1"])
def test_too_many_and_too_large_seeds_are_refused(text):
    message = f"seeds is '{text}'; expected at most 1,000,000 seeds, each at most 2,147,483,647"
    with pytest.raises(UserError, match=message):
        parse_seeds(text)
