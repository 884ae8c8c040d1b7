"""The reconstruction network's trickier parts in numpy float64, by their definitions, loop by loop."""

import math

import numpy as np

BASE = 100.0


def rope(x: np.ndarray, position: np.ndarray) -> np.ndarray:
    """Heads [H, N, K] turned by positions [N, 2] (y, x): pairs (i, i + q) of each half by p / 100^(i / q)."""
    out, quarter = np.array(x, np.float64), x.shape[-1] // 4
    for n, place in enumerate(position):
        for half, p in enumerate(place):
            for i in range(quarter):
                angle = p / BASE ** (i / quarter)
                a, b = 2 * half * quarter + i, (2 * half + 1) * quarter + i
                u, v = x[:, n, a], x[:, n, b]
                out[:, n, a] = u * math.cos(angle) - v * math.sin(angle)
                out[:, n, b] = v * math.cos(angle) + u * math.sin(angle)
    return out


def maps(query: np.ndarray, key: np.ndarray) -> np.ndarray:
    """Scaled logits [H, N, M] of queries [H, N, K] and keys [H, M, K], before any softmax."""
    return np.einsum("hnk,hmk->hnm", query, key) / math.sqrt(query.shape[-1])


def gate(layers: list[np.ndarray]) -> np.ndarray:
    """TTT3R's gate [N] from the maps [H, N, M] of all layers: the sigmoid of one mean over all weights of a token."""
    return 1 / (1 + np.exp(-np.mean([layer.mean((0, 2)) for layer in layers], 0)))


def attention(query: np.ndarray, key: np.ndarray, value: np.ndarray) -> np.ndarray:
    """softmax(q k^T / sqrt(K)) v. Shapes: [H, N, K], [H, M, K], [H, M, K]."""
    logit = maps(query, key)
    weight = np.exp(logit - logit.max(-1, keepdims=True))
    return np.einsum("hnm,hmk->hnk", weight / weight.sum(-1, keepdims=True), value)


def doubled(x: np.ndarray) -> np.ndarray:
    """A map [h, w] at twice its size, bilinear, corners on corners."""
    h, w = x.shape
    out = np.zeros((2 * h, 2 * w))
    for i in range(2 * h):
        for j in range(2 * w):
            r, c = i * (h - 1) / (2 * h - 1), j * (w - 1) / (2 * w - 1)
            r0, c0 = min(int(r), max(h - 2, 0)), min(int(c), max(w - 2, 0))
            r1, c1 = min(r0 + 1, h - 1), min(c0 + 1, w - 1)
            a, b = r - r0, c - c0
            top, bottom = x[r0, c0] * (1 - b) + x[r0, c1] * b, x[r1, c0] * (1 - b) + x[r1, c1] * b
            out[i, j] = top * (1 - a) + bottom * a
    return out


def kalman(candidates, process, prior, memory) -> np.ndarray:
    """Tokens [S, D] after T candidates [T, S, D] of one stream."""
    tokens, variance, usual = candidates[0].copy(), np.full(candidates.shape[1], prior), None
    for t in range(1, len(candidates)):
        drift = ((candidates[t] - candidates[t - 1]) ** 2).mean(-1)
        usual = drift.mean() if usual is None else memory * usual + (1 - memory) * drift.mean()
        ahead = variance + process * drift / usual
        gain = ahead / (ahead + 1)
        tokens = gain[:, None] * candidates[t] + (1 - gain[:, None]) * tokens
        variance = (1 - gain) ** 2 * ahead + gain**2
    return tokens


def frame_gate(candidates, summaries, gate, memory) -> np.ndarray:
    """Tokens [S, D] after T candidates and summaries [T, E]."""
    tokens, usual = candidates[0].copy(), None
    for t in range(1, len(candidates)):
        a, b = summaries[t], summaries[t - 1]
        change = 1 - a @ b / math.sqrt((a @ a) * (b @ b))
        usual = change if usual is None else memory * usual + (1 - memory) * change
        odds = gate / (1 - gate) * change / usual
        tokens = odds / (1 + odds) * candidates[t] + 1 / (1 + odds) * tokens
    return tokens


def temporal_spatial(candidates, reads, memory) -> np.ndarray:
    """Tokens [S, D] after T candidates and what was read [T, S, D]."""
    tokens, usual = candidates[0].copy(), [None, None]
    for t in range(1, len(candidates)):
        product = 1.0
        for k, change in enumerate((candidates[t] - tokens, reads[t] - reads[t - 1])):
            size = np.sqrt((change**2).sum(-1))
            usual[k] = size.mean() if usual[k] is None else memory * usual[k] + (1 - memory) * size.mean()
            product = product * (size / usual[k]) / (1 + size / usual[k])
        tokens = product[:, None] * candidates[t] + (1 - product[:, None]) * tokens
    return tokens


def orthogonal(candidates, gate, memory) -> np.ndarray:
    """Tokens [S, D] after T candidates."""
    tokens, lately = candidates[0].copy(), np.zeros_like(candidates[0])
    for t in range(1, len(candidates)):
        for j in range(len(tokens)):
            step = candidates[t, j] - tokens[j]
            size = math.sqrt(lately[j] @ lately[j])
            new = step if size == 0 else step - max(0.0, step @ lately[j] / size) * lately[j] / size
            tokens[j] = tokens[j] + gate * new
            lately[j] = memory * lately[j] + (1 - memory) * step
    return tokens


def topk(candidates, share) -> np.ndarray:
    """Tokens [S, D] after T candidates, the tokens of least cosine replaced."""
    tokens = candidates[0].copy()
    count = max(1, round(share * len(tokens)))
    for candidate in candidates[1:]:
        cosine = [a @ b / math.sqrt((a @ a) * (b @ b)) for a, b in zip(tokens, candidate)]
        for j in sorted(range(len(tokens)), key=lambda j: cosine[j])[:count]:
            tokens[j] = candidate[j]
    return tokens
