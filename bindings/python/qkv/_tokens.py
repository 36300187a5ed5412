"""Texts beside rows and columns of weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ._given import text

#: One list for all batch entries, or a list of lists, one for each.
Tokens = Sequence[str] | Sequence[Sequence[str]]


def token_lists(name: str, tokens: Any, batches: int | None) -> list[list[str]]:
    """Lists of texts: none, one for all batch entries, or one for each. batches: how many there are, where that is known.

    Raises TypeError for what is no list of texts, ValueError where there are not as many lists as batch entries.
    """
    if tokens is None:
        return []
    if isinstance(tokens, str):
        raise TypeError(f"{name} is one text, expected a list of texts; pass {name}.split()")
    try:
        entries = list(tokens)
    except TypeError:
        raise TypeError(f"{name} is a {type(tokens).__name__}, expected a list of texts") from None
    lists = [list(x) for x in entries] if are_lists(entries) else [entries]
    for entry in lists:
        for token in entry:
            if not isinstance(token, str):
                raise TypeError(
                    f"{name} holds a {type(token).__name__}, expected texts; of the ids of a tokenizer pass "
                    "tokenizer.convert_ids_to_tokens(ids)"
                )
    if batches is not None and len(lists) not in (1, batches):
        raise ValueError(f"{name} has {len(lists)} lists, expected one, or one for each of {batches} batch entries")
    return [[text(name, token) for token in entry] for entry in lists]


def are_lists(entries: Sequence[Any]) -> bool:
    """Whether there is a list for each batch entry. A text has a length too."""
    return len(entries) > 0 and all(hasattr(x, "__iter__") and not isinstance(x, str) for x in entries)


def of_both_axes(
    tokens: Any, query_tokens: Any, batches: int, queries: int, keys: int, at_the_end: bool
) -> tuple[list[list[str]], list[list[str]]]:
    """Those of the queries and of the keys.

    Queries are the tokens that their keys are where there are as many, and the last of them where they stand at the end.
    """
    of_keys = token_lists("tokens", tokens, batches)
    if query_tokens is not None:
        return token_lists("query_tokens", query_tokens, batches), of_keys
    if queries == keys:
        return of_keys, of_keys
    if at_the_end and queries < keys:
        return [entry[len(entry) - queries :] for entry in of_keys], of_keys
    return [], of_keys
