"""Hosts: the schedulers beside trio from which a cache can be used, `banyankv.asyncio` and `banyankv.threads`.

They lie in a folder: at the root, which is the package, a file of that name would hide Python's own from
whoever starts Python there.
"""

import sys

from . import asyncio as asyncio
from . import threads as threads

# `import banyankv.asyncio` looks for it by this name.
_ROOT = __name__.removesuffix("hosts")
sys.modules[f"{_ROOT}asyncio"] = asyncio
sys.modules[f"{_ROOT}threads"] = threads
