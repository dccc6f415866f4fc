"""A static KV cache for one sequence: rows are appended in place, a tree is pruned to its accepted path, a prefix is
copied from another."""

from __future__ import annotations

import weakref

import torch


class KVCache:
    """Keys and values float [layer][head, row, head_dim] of one sequence, in storage that is allocated once.

    Rows [0, length) are committed. A forward over T rows writes rows [length, length + T); `keep` then says which stay.
    """

    def __init__(
        self, layers: int, heads: int, head_dim: int, capacity: int, dtype: torch.dtype, device: torch.device | str = "cpu"
    ) -> None:
        # Not zeroed: a row is written before any mask lets it be seen.
        store = torch.empty(2 * layers, heads, capacity, head_dim, dtype=dtype, device=device)
        self._store = store
        self.keys = [store[2 * i] for i in range(layers)]
        self.values = [store[2 * i + 1] for i in range(layers)]
        self.capacity = capacity
        self.length = 0

    def keep(self, rows: int, path: list[int]) -> None:
        """Commit the first `rows` rows written by the last forward, then the tree rows `path` (offsets after them,
        ascending)."""
        base = self.length + rows
        if path and path != list(range(len(path))):
            source = torch.tensor(path, device=self._store.device) + base
            # Ascending offsets never lie before their destination, but index_select copies first, so overlap is safe too.
            self._store[:, :, base : base + len(path)] = self._store.index_select(2, source)
        self.length = base + len(path)

    def truncate(self, length: int) -> None:
        """Forget every row from `length` on."""
        assert 0 <= length <= self.length
        self.length = length

    def beginning(self, rows: int, capacity: int) -> KVCache:
        """Another cache that starts with the first `rows` committed rows."""
        layers, heads, head_dim = len(self.keys), self._store.shape[1], self._store.shape[3]
        twin = KVCache(layers, heads, head_dim, capacity, self._store.dtype, self._store.device)
        twin._store[:, :, :rows] = self._store[:, :, :rows]
        twin.length = rows
        return twin


class Loan:
    """Held by the session that appends to a lent cache; once it is dropped the cache is cut back and lent again."""


class LentCache:
    """A cache whose beginning one answer after the other goes on from. While one of them lives, others get a copy."""

    def __init__(self, cache: KVCache) -> None:
        self.cache = cache
        self._loan: weakref.ref[Loan] | None = None

    @property
    def taken(self) -> bool:
        """Whether a session appends to it."""
        return self._loan is not None and self._loan() is not None

    def lend(self, rows: int, capacity: int) -> tuple[KVCache, Loan]:
        """A cache of at least `capacity` rows that starts with the first `rows` committed ones, to append to."""
        loan = Loan()
        if self.taken:
            return self.cache.beginning(rows, capacity), loan
        if self.cache.capacity < capacity:
            self.cache = self.cache.beginning(rows, capacity)
        else:
            self.cache.truncate(rows)
        self._loan = weakref.ref(loan)
        return self.cache, loan
