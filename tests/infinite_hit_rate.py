"""Compute the hit rate of a cache without limits from a Mooncake trace alone.

Shares no code with the package, on purpose: it is what a replay is held against. The prompts form a
trie of 512-token blocks; a request reuses floor(min(common, length - 1)) tokens, where `common` is
its longest common prefix with what earlier requests published, `floor` goes down to whole pages, and
a request publishes floor(length) tokens.

With states (`--states`) a boundary also needs a state, of which each request leaves one at the last
multiple of 256 in its prompt, and one at the last multiple of 256 that it could have reused had there
been a state, each only where it lies beyond what the request reused.

    python tests/infinite_hit_rate.py TRACE [--page-size 16] [--limit N] [--states]
"""

import argparse
import itertools
import json
from pathlib import Path

BLOCK = 512
GRID = 256


class Block:
    """A block in the trie: how many of its tokens are published, where states stand, what follows."""

    __slots__ = ("children", "published", "states")

    def __init__(self):
        self.published = 0
        self.states = set()
        self.children = {}


def hit_tokens(requests, page_size=16, states=False):
    """Give the reused tokens of each (length, block ids), in order.

    States are modelled for page sizes that divide the grid of 256 tokens.
    """
    root = Block()
    grid = GRID if states else page_size
    hits = []
    for length, ids in requests:
        floor = length - length % page_size
        path = []
        common = 0
        block = root
        for index, block_id in enumerate(ids):
            block = block.children.setdefault(block_id, Block())
            path.append(block)
            if common == index * BLOCK:
                common += min(block.published, length - common)
            block.published = max(block.published, min(BLOCK, floor - index * BLOCK))
        reuse = min(common, length - 1)
        reuse -= reuse % grid
        if states:
            fork = reuse
            while reuse and reuse not in path[(reuse - 1) // BLOCK].states:
                reuse -= grid
            for place in (length - length % grid, fork):
                if place > reuse:
                    path[(place - 1) // BLOCK].states.add(place)
        hits.append(reuse)
    return hits


def read(path, limit=None):
    """Read (length, block ids) of a trace's first `limit` requests."""
    with Path(path).open() as lines:
        rows = [json.loads(line) for line in itertools.islice(lines, limit)]
    return [(row["input_length"], row["hash_ids"]) for row in rows]


def main():
    """Print requests, tokens, hit tokens and the hit rate as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace")
    parser.add_argument("--page-size", type=int, default=16)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--states", action="store_true")
    options = parser.parse_args()
    requests = read(options.trace, options.limit)
    hits = sum(hit_tokens(requests, options.page_size, options.states))
    tokens = sum(length for length, _ in requests)
    print(
        json.dumps(
            {
                "requests": len(requests),
                "tokens": tokens,
                "hit_tokens": hits,
                "hit_rate": hits / tokens,
            }
        )
    )


if __name__ == "__main__":
    main()
