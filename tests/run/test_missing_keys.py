"""Guards look into mappings that make what is asked of them: nothing is made."""

import collections

import pytest
import torch

import preheat


class Made(dict):
    def __missing__(self, key):
        self[key] = {}
        return self[key]


def total(x, table, keys):
    for key in keys:
        x = x + len(table[key])
    return x


@pytest.mark.parametrize("kind", [lambda: collections.defaultdict(dict), Made])
def test_a_variant_that_reads_more_keys_makes_none(kind):
    compiled = preheat.compile(total, options={"cache": False})
    first, second = torch.ones(1), torch.ones(1)
    table = kind()
    for _ in range(3):
        compiled(torch.ones(1), table, [first, second])
    for keys in ([first], [second, first], []):
        table = kind()
        compiled(torch.ones(1), table, keys)
        assert [*map(id, table)] == [*map(id, keys)]
