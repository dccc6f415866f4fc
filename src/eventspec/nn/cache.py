"""A static KV cache for one sequence: rows are appended in place, a tree is pruned to its accepted path, a prefix is
shared by copy."""

from __future__ import annotations

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
        """Commit the first `rows` rows written by the last forward, then the tree rows `path` (offsets behind them,
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

    def fork(self) -> KVCache:
        """A second cache that starts with the same committed rows."""
        layers, heads, head_dim = len(self.keys), self._store.shape[1], self._store.shape[3]
        twin = KVCache(layers, heads, head_dim, self.capacity, self._store.dtype, self._store.device)
        twin._store[:, :, : self.length] = self._store[:, :, : self.length]
        twin.length = self.length
        return twin
