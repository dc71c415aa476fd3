"""The network of the `decoder` architecture, and its key-value cache."""

from dataclasses import dataclass
from typing import Self, cast

import torch
from torch import Tensor, nn

CONTEXT = 128
VOCABULARY = 256


class Block(nn.Module):
    """Causal attention and a two-layer perceptron, each around a residual."""

    def __init__(self, *, heads: int, width: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.attention_in = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.perceptron_norm = nn.LayerNorm(width)
        self.perceptron = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, rows: Tensor, past: tuple[Tensor, Tensor] | None, start: int) -> Tensor:
        """Advance `[rows, length, width]`; `past` holds `[heads, context, width/heads]` keys and values."""
        query, key, value = (self._by_head(part) for part in self._split(rows))
        if past is not None:
            end = start + rows.shape[1]
            for cached, fresh in zip(past, (key, value), strict=True):
                cached[:, start:end] = fresh[0]
            key, value = (cached[:, :end].unsqueeze(0) for cached in past)
        attended = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=start == 0)
        rows = rows + cast(Tensor, self.attention_out(attended.transpose(1, 2).flatten(2)))
        return rows + cast(Tensor, self.perceptron(self.perceptron_norm(rows)))

    def _split(self, rows: Tensor) -> tuple[Tensor, ...]:
        return cast(Tensor, self.attention_in(self.attention_norm(rows))).chunk(3, dim=-1)

    def _by_head(self, part: Tensor) -> Tensor:
        rows, length, _ = part.shape
        return part.view(rows, length, self.heads, -1).transpose(1, 2)


class DecoderNetwork(nn.Module):
    """Embeddings, blocks, and a head that shares the embedding's weights."""

    def __init__(self, *, layers: int, heads: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(CONTEXT, width)
        self.blocks = nn.ModuleList(Block(heads=heads, width=width) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor, cache: "KeyValueCache | None" = None) -> Tensor:
        """Return `[rows, length, 256]` logits.

        With a cache, `tokens` is one row: the whole prompt first, then one token at a time.
        """
        start, length = cache.length if cache else 0, tokens.shape[1]
        numbers = torch.arange(start, start + length, device=tokens.device)
        rows = self.embedding(tokens) + self.positions(numbers)
        for index, block in enumerate(self.blocks):
            rows = block(rows, (cache.keys[index], cache.values[index]) if cache else None, start)
        if cache:
            cache.length += length
        return cast(Tensor, self.head(self.norm(rows)))


@dataclass(eq=False)
class KeyValueCache:
    """Keys and values of what one answer consists of so far: `[layers, heads, context, width/heads]`."""

    keys: Tensor
    values: Tensor
    length: int = 0

    @classmethod
    def empty(cls, network: DecoderNetwork) -> Self:
        """Allocate a cache for a network."""
        heads, width = cast(Block, network.blocks[0]).heads, network.embedding.embedding_dim
        shape = (len(network.blocks), heads, CONTEXT, width // heads)
        device, dtype = network.embedding.weight.device, network.embedding.weight.dtype
        keys, values = (torch.zeros(shape, device=device, dtype=dtype) for _ in range(2))
        return cls(keys, values)
