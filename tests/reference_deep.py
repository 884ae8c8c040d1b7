"""Deep and kernel memories as the papers print them: numpy, float64, one stream, loops, no import of streammem.

A model is (forward, gradient): forward(weights, x) -> y for one token, gradient(weights, x, cotangent) -> one array a
weight. Frames and references are those of reference.py.
"""

import numpy as np
from reference import gelu, gelu_slope, l2, softmax


def linear():
    return lambda w, x: x @ w[0], lambda w, x, c: [np.outer(x, c)]


def affine():
    return lambda w, x: x @ w[0] + w[1][0], lambda w, x, c: [np.outer(x, c), c[None]]


def mlp():
    def gradient(w, x, c):
        return [np.outer(x, (w[1] @ c) * gelu_slope(x @ w[0])), np.outer(gelu(x @ w[0]), c)]

    return lambda w, x: gelu(x @ w[0]) @ w[1], gradient


def biased_mlp():
    def gradient(w, x, c):
        h = x @ w[0] + w[1][0]
        d = (w[2] @ c) * gelu_slope(h)
        return [np.outer(x, d), d[None], np.outer(gelu(h), c), c[None]]

    return lambda w, x: gelu(x @ w[0] + w[1][0]) @ w[2] + w[3][0], gradient


def silu(x):
    return x / (1 + np.exp(-x))


def silu_slope(x):
    s = 1 / (1 + np.exp(-x))
    return s + x * s * (1 - s)


def gated(function=silu, slope=silu_slope):
    def gradient(w, x, c):
        a, b = x @ w[0], x @ w[1]
        back = w[2] @ c
        return [np.outer(x, back * b * slope(a)), np.outer(x, back * function(a)), np.outer(function(a) * b, c)]

    return lambda w, x: (function(x @ w[0]) * (x @ w[1])) @ w[2], gradient


def residual(model, learned=False):
    """x + LN(model(x)), the norm's Jacobian written out as a matrix; with gain and shift as the last two weights."""
    forward, inner_gradient = model

    def split(w):
        return (w[:-2], w[-2][0], w[-1][0]) if learned else (w, 1.0, 0.0)

    def norm(y):
        centred = y - y.mean()
        return centred / np.sqrt((centred**2).mean() + 1e-6), np.sqrt((centred**2).mean() + 1e-6)

    def read(w, x):
        inner, gain, shift = split(w)
        return x + gain * norm(forward(inner, x))[0] + shift

    def gradient(w, x, c):
        inner, gain, _ = split(w)
        n, s = norm(forward(inner, x))
        size = len(n)
        jacobian = (np.eye(size) - np.ones((size, size)) / size - np.outer(n, n) / size) / s
        gradients = inner_gradient(inner, x, jacobian.T @ (gain * c))
        return gradients + [np.zeros_like(a) for a in w[len(inner) :]]

    return read, gradient


def clipped_norm(threshold):
    def slope(prediction, value):
        r = prediction - value
        return r if np.linalg.norm(r) <= threshold else threshold * r / np.linalg.norm(r)

    return slope


def power(p):
    return lambda prediction, value: p * np.sign(prediction - value) * np.abs(prediction - value) ** (p - 1)


class Plain:
    """Weights that are their own dual, decayed or not."""

    def __init__(self, decay=True):
        self.decay = decay

    def dual(self, w):
        return w

    def primal(self, a):
        return a

    def merge(self, a, gate, update):
        return (gate if self.decay else 1.0) * a + update


class Simplex(Plain):
    def __init__(self, total):
        super().__init__()
        self.total = total

    def dual(self, w):
        return np.log(w)

    def primal(self, a):
        return self.total * softmax(a)


class Printed(Plain):
    def __init__(self, q):
        super().__init__()
        self.q = q

    def primal(self, a):
        return a / (np.abs(a) ** self.q).sum() ** ((self.q - 2) / self.q)

    def dual(self, w):
        return w * (np.abs(w) ** self.q).sum() ** ((self.q - 2) / (3 - self.q) / self.q)


class Mirror(Plain):
    """The mirror map as the gradient of 0.5 |a|_p^2, spelled out."""

    def __init__(self, q):
        super().__init__()
        self.q = q

    def primal(self, a):
        p = self.q / (self.q - 1)
        return np.sign(a) * np.abs(a) ** (p - 1) * (np.abs(a) ** p).sum() ** (2 / p - 1)

    def dual(self, w):
        return np.sign(w) * np.abs(w) ** (self.q - 1) * (np.abs(w) ** self.q).sum() ** (2 / self.q - 1)


class Columns(Plain):
    """Columns keep the norm that they had first; kept beside the weights."""

    def dual(self, w):
        return w, np.linalg.norm(w, axis=0)

    def primal(self, a):
        return a[0]

    def merge(self, a, gate, update):
        new = a[0] + update
        return new / np.linalg.norm(new, axis=0) * a[1], a[1]


def svd_polynomial(triples):
    def orthogonal(x):
        u, s, vt = np.linalg.svd(x / (np.sqrt((x**2).sum()) + 1e-7), full_matrices=False)
        for a, b, c in triples:
            s = a * s + b * s**3 + c * s**5
        return u @ np.diag(s) @ vt

    return orthogonal


JORDAN = svd_polynomial(5 * [(3.4445, -4.7750, 2.0315)])


def deep(model, slope=l2, space=None, chunk=1, momentum=False, window=1, muon=None, scaled=False, features=None):
    """Descent on a bias, every choice of the deep rules; gradients at the memory of the start of each chunk."""
    forward, gradient = model
    space, lift = space or Plain(), features or (lambda x: x)

    def run(weights, frames):
        weights = weights if isinstance(weights, list) else [weights]
        duals, outs = [space.dual(w) for w in weights], []
        anchor, balls = list(duals), [np.zeros_like(w) for w in weights]
        for t, (query, _, _, _, a, b) in enumerate(frames):
            at = [space.primal(d) for d in anchor]
            total, rates = [np.zeros_like(w) for w in weights], np.zeros(0)
            for _, k, v, lr, *_ in frames[max(0, t - window + 1) : t + 1]:
                rates = np.concatenate([rates, lr])
                for i in range(len(k)):
                    x = lift(k[i])
                    parts = gradient(at, x, slope(forward(at, x), v[i]))
                    total = [g + lr[i] * part for g, part in zip(total, parts)]
            balls = [b * s - g if momentum else -g for s, g in zip(balls, total)]
            rate = rates.sum() / (window * len(frames[t][3])) if scaled else 1.0
            updates = [rate * muon(s) if muon else s for s in balls]
            duals = [space.merge(d, a, u) for d, u in zip(duals, updates)]
            if (t + 1) % chunk == 0:
                anchor = list(duals)
            weights = [space.primal(d) for d in duals]
            outs.append(np.stack([forward(weights, lift(q)) for q in query]))
        return np.stack(outs)

    return run


def monomials(x):
    """Degrees 0 to 2, each monomial once, weighted so that the kernel is 1 + x.y + (x.y)^2 / 2."""
    pairs = [(x[i] * x[j]) * (1 if i == j else np.sqrt(2)) for i in range(len(x)) for j in range(i, len(x))]
    return np.concatenate([[1.0], x, np.array(pairs) * np.sqrt(0.5)])


def smoother(slots, bandwidth, affine_fit=None):
    """Every token kept in a list; the linear fit by weighted least squares with `affine_fit` as its ridge."""

    def at(q, held):
        keys, values, weights = (np.array([h[i] for h in held]) for i in range(3))
        w = weights * np.exp(-((q - keys) ** 2).sum(1) / (2 * bandwidth**2))
        w = w / w.sum()
        if affine_fit is None:
            return w @ values
        root = np.sqrt(w)[:, None]
        design = np.concatenate([np.ones((len(keys), 1)), keys - q], 1)
        slopes = np.sqrt(affine_fit) * np.eye(1 + len(q))[1:]
        a_mat, b_mat = (
            np.concatenate([root * design, slopes]),
            np.concatenate([root * values, 0 * slopes @ design.T @ values]),
        )
        return np.linalg.lstsq(a_mat, b_mat, rcond=None)[0][0]

    def run(m, frames):
        held, outs = [], []
        for query, k, v, lr, a, _ in frames:
            held = [(key, value, a * weight) for key, value, weight in held]
            held = (held + [(k[i], v[i] - k[i] @ m, lr[i]) for i in range(len(k))])[-slots:]
            outs.append(np.stack([q @ m + at(q, held) for q in query]))
        return np.stack(outs)

    return run


def product(a, b):
    return a @ b


def exponential(sharpness):
    return lambda a, b: np.exp(-0.5 * sharpness * ((a - b) ** 2).sum())


def deltaformer(kernel, slots, merge=None, normalised=False):
    """A list of [key, coefficient], the least recently written first."""

    def mixed(x, held):
        w = np.array([kernel(x, key) for key, _ in held])
        return w / w.sum() if normalised else w

    def said(x, held):
        return mixed(x, held) @ np.array([u for _, u in held]) if held else 0.0

    def run(m, frames):
        held, outs = [], []
        for query, k, v, lr, a, _ in frames:
            m, held = a * m, [[key, a * u] for key, u in held]
            for i in range(len(k)):
                error = v[i] - k[i] @ m
                u = error - lr[i] * said(k[i], held) if normalised else lr[i] * (error - said(k[i], held))
                cosines = [key @ k[i] / np.linalg.norm(key) / np.linalg.norm(k[i]) for key, _ in held]
                if merge is not None and held and max(cosines) > merge:
                    key, old = held.pop(int(np.argmax(cosines)))
                    u = u + kernel(k[i], key) * old / kernel(k[i], k[i])
                held = (held + [[k[i], u]])[-slots:]
            outs.append(np.stack([q @ m + said(q, held) for q in query]))
        return np.stack(outs)

    return run


def continuum(periods):
    """A chain of MLPs; the gradient of the first through the second, by hand."""
    forward, gradient = mlp()

    def run(weights, frames):
        blocks = [list(weights[:2]), list(weights[2:])]
        sums, outs = [[np.zeros_like(w) for w in block] for block in blocks], []
        for t, (query, k, v, lr, a, _) in enumerate(frames, 1):
            for i in range(len(k)):
                middle = forward(blocks[0], k[i])
                c = lr[i] * (forward(blocks[1], middle) - v[i])
                back = blocks[1][0] @ ((blocks[1][1] @ c) * gelu_slope(middle @ blocks[1][0]))
                for total, parts in zip(sums, (gradient(blocks[0], k[i], back), gradient(blocks[1], middle, c))):
                    for j, part in enumerate(parts):
                        total[j] = total[j] + part
            for n, period in enumerate(periods):
                if t % period == 0:
                    blocks[n] = [a * w - g for w, g in zip(blocks[n], sums[n])]
                    sums[n] = [np.zeros_like(w) for w in blocks[n]]
            outs.append(np.stack([forward(blocks[1], forward(blocks[0], q)) for q in query]))
        return np.stack(outs)

    return run


def kalman_bank(members, degrees, forget, window, prior, surprise):
    """A textbook filter for each member, (drift, turn, starts over); tokens of a frame at once."""
    leak, threshold, boost, cap, slack = surprise

    def run(m0, frames):
        n, width = m0.shape
        states = [
            [
                np.concatenate([m0, np.zeros((n, width))]),
                np.diag([prior] * n + [1e-4 * prior * (turn > 0)] * n),
                1.0,
                0.0,
                0.0,
            ]
            for _, turn, _ in members
        ]
        tokens, outs = 0.0, []
        for query, k, v, lr, a, _ in frames:
            move = np.eye(2 * n)
            move[:n] *= a
            move[:n, n:] = a * np.eye(n)
            tokens = (1 - 1 / window) * tokens + len(k)
            keys = np.concatenate([k, np.zeros((len(k), n))], 1)
            for (drift, turn, resets), state in zip(members, states):
                m, p, r, evidence, score = state
                m, p = move @ m, move @ p @ move.T + np.diag([drift] * n + [turn] * n)
                error = v - keys @ m
                s = np.array([keys[i] @ p @ keys[i] + 1 / lr[i] for i in range(len(k))])
                z = (error**2).mean(1) / (r * s)
                score = max(0.0, leak * score + np.minimum(z, cap).mean() - 1 - slack)
                if resets and score > threshold:
                    p = p + boost * np.diag([1.0] * n + [0.0] * n)
                s_now = np.array([keys[i] @ p @ keys[i] + 1 / lr[i] for i in range(len(k))])
                weight = lr * np.minimum(1, (degrees + 1) / (degrees + (error**2).mean(1) / (r * s_now)))
                gain = p @ keys.T @ np.linalg.inv(keys @ p @ keys.T + np.diag(1 / weight))
                log = -0.5 * width * np.log(r * s) - 0.5 * (degrees + width) * np.log(1 + width * z / degrees)
                change = (np.minimum(z, 2.25) / 0.7784 - 1).sum() / max(tokens, 1)
                state[:] = m + gain @ error, p - gain @ keys @ p, r, forget * evidence + log.sum(), score
                state[2] = r * min(max(1 + change, 0.5), 2)
            belief = np.exp([s[3] - max(t[3] for t in states) for s in states])
            memory = sum(b * s[0][:n] for b, s in zip(belief / belief.sum(), states))
            outs.append(query @ memory)
        return np.stack(outs)

    return run
