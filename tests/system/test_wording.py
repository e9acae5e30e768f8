"""Texts of messages: lists of names."""

from flaxformer.system.wording import first_of


def test_the_first_of_some_texts_are_named_and_the_others_counted():
    texts = ["a", "b", "c"]
    assert first_of(texts, 3) == "a, b, c"
    assert first_of(texts, 1) == "a and 2 more"
    assert first_of(texts, 2, "\n  ") == "a\n  b\n  and 1 more"
