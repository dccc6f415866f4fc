"""Fewer visual rows for a drafter: dropping, averaging, strided convolution, learned queries, none at all, and a chooser
(SpecVLM, 2509.11815, section 3.2). The target keeps all of its rows, so they change no answer; only `lossy` and `packer` make a
target that sees less itself.

Rows are pairs side by side, float [..., T, 2 D]: the embedding of a row and the target's feature. A compressor gives back rows
[..., M, 2 D] and their places int64 [M] among the T; a place decides a row's position.
"""

from eventspec.compress.elastic import Elastic as Elastic
from eventspec.compress.fastv import FastVTarget as FastVTarget
from eventspec.compress.lossy import CompressedEncoder as CompressedEncoder
from eventspec.compress.packer import Packer as Packer
from eventspec.compress.packer import PackerConfig as PackerConfig
