"""The linear rules and their relatives as the papers print them, as `reference` has the others.

Where a rule removes at a rate of its own, its frames have a seventh part: erase [N, K]. lr is [N, V] or [N, K] where
the rule takes a rate by channel, retention [K, 1].
"""

import numpy as np


def delta_tokens(m, frames):
    outs = []
    for query, k, v, lr, _, _ in frames:
        for i in range(len(k)):
            m = (np.eye(len(m)) - lr[i] * np.outer(k[i], k[i])) @ m + lr[i] * np.outer(k[i], v[i])
        outs.append(query @ m)
    return np.stack(outs)


def gdn2(m, frames):
    outs = []
    for query, k, v, w, a, _, b in frames:
        eye, n = np.eye(len(m)), range(len(k))
        m = (eye - sum(np.outer(k[i], b[i] * k[i]) for i in n)) @ (a * m) + sum(np.outer(k[i], w[i] * v[i]) for i in n)
        outs.append(query @ m)
    return np.stack(outs)


def comba(feedback, correction):
    def run(m, frames):
        outs = []
        for query, k, v, lr, a, _ in frames:
            eye, n = np.eye(len(m)), range(len(k))
            m = (eye - sum(lr[i] * feedback * np.outer(k[i], k[i]) for i in n)) @ (a * m)
            m = m + sum(lr[i] * np.outer(k[i], v[i]) for i in n)
            outs.append((query - correction * k) @ m)
        return np.stack(outs)

    return run


def rwkv7(mix, removal):
    def run(m, frames):
        outs = []
        for query, k, v, lr, w, _, xi in frames:
            transition, written = np.diag(w[:, 0]), 0
            for i in range(len(k)):
                h = k[i] * xi[i] / np.linalg.norm(k[i] * xi[i])
                transition = transition - np.outer(removal * lr[i] * h, h)
                written = written + np.outer(k[i] * ((1 - mix) + mix * lr[i]), v[i])
            m = transition @ m + written
            outs.append(query @ m)
        return np.stack(outs)

    return run


def preconditioned(base, centre, decay):
    def run(m, frames):
        a_diag, outs = np.ones(len(m)), []
        for query, k, v, lr, a, _ in frames:
            a_diag = decay * a_diag + (k**2).sum(0)
            r = np.log(a_diag) - centre
            p = base ** (-r / (1 + np.abs(r)))
            kept = a * m
            m = kept + sum(lr[i] * np.outer(p * k[i], v[i] - k[i] @ kept) for i in range(len(k)))
            outs.append(query @ m)
        return np.stack(outs)

    return run


def nlms(ridge):
    def run(m, frames):
        outs = []
        for query, k, v, lr, _, _ in frames:
            m = m + k.T @ np.linalg.inv(k @ k.T + ridge * np.eye(len(k))) @ (lr[:, None] * (v - k @ m))
            outs.append(query @ m)
        return np.stack(outs)

    return run


def kdn(r, w, p0, iso=False):
    """One token after the other for the mean, for tokens of one frame share one covariance: a joint condition."""

    def run(m, frames):
        width, outs = len(m), []
        c = np.full(width, 1 / p0)
        for query, k, v, lr, a, _ in frames:
            a = np.broadcast_to(np.reshape(a, -1), width)
            square = np.full(width, (a**2).mean()) if iso else a**2
            p = square / c + w
            m, cov = a[:, None] * m, np.diag(p)
            seen = (lr[:, None] * k**2).sum(0) / r
            c = 1 / p + width * (np.full(width, seen.mean()) if iso else seen)
            for i in range(len(k)):
                gain = cov @ k[i] / (k[i] @ cov @ k[i] + r / lr[i])
                m, cov = m + np.outer(gain, v[i] - k[i] @ m), cov - np.outer(gain, k[i] @ cov)
            outs.append(query @ m)
        return np.stack(outs)

    return run


def kalman_iso(r=1.0, q=0.0, p0=1.0, most=1.0):
    def run(m, frames):
        p, outs, width = p0, [], len(m)
        for query, k, v, lr, a, _ in frames:
            m, p = a * m, a * a * p + q
            m = m + p * k.T @ np.linalg.inv(p * k @ k.T + np.diag(r / lr)) @ (v - k @ m)
            p = min(1 / (1 / p + (lr[:, None] * k**2).sum() / (r * width)), most)
            outs.append(query @ m)
        return np.stack(outs)

    return run


def mesa(ridge, adaptive=0.0):
    """Not a recursion: the ridge of its time, by normal equations over all frames so far."""

    def run(m0, frames):
        outs = []
        for t in range(1, len(frames) + 1):
            h, g = np.zeros((len(m0), len(m0))), np.zeros_like(m0)
            for _, k, v, lr, a, _ in frames[:t]:
                h = a * h + sum(lr[i] * np.outer(k[i], k[i]) for i in range(len(k)))
                g = a * g + sum(lr[i] * np.outer(k[i], v[i]) for i in range(len(k)))
            level = ridge + adaptive * np.sqrt((h**2).sum())
            outs.append(frames[t - 1][0] @ np.linalg.solve(h + level * np.eye(len(h)), g + level * m0))
        return np.stack(outs)

    return run


def log_linear(levels):
    """Not a recursion: each frame's write, carried through all later transitions, at the level of its age."""

    def run(weights, frames):
        m0, share = weights
        outs, eye = [], np.eye(len(m0))

        def transition(frame):
            _, k, _, lr, a, _ = frame
            return (eye - sum(lr[i] * np.outer(k[i], k[i]) for i in range(len(k)))) * a

        for t in range(len(frames)):
            memory, through, level = np.zeros_like(m0), eye, levels_by_age(t + 1, levels)
            for age in range(t + 1):
                _, k, v, lr, _, _ = frames[t - age]
                written = sum(lr[i] * np.outer(k[i], v[i]) for i in range(len(k)))
                memory = memory + share[level[age], 0, 0] * through @ written
                through = through @ transition(frames[t - age])
            memory = memory + share[levels - 1, 0, 0] * through @ m0
            outs.append(frames[t][0] @ memory)
        return np.stack(outs)

    return run


def levels_by_age(count: int, levels: int) -> list[int]:
    """Level of each of `count` frames, youngest first: it alone, then the set bits of how many others there are."""
    found, others = [0], count - 1
    for bit in range(others.bit_length()):
        found += [min(bit + 1, levels - 1)] * (2**bit if others >> bit & 1 else 0)
    return found
