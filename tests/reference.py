"""The rules as the papers print them: numpy, float64, one stream, loops, no import of streammem.

A frame is (query [N, K], key [N, K], value [N, V], lr [N], retention, momentum). A reference takes the initial memory
and the frames, and returns the readouts after each frame.
"""

from math import erf

import numpy as np


def matrix_rule(residual, retain_first=False, decay=False, momentum=False):
    def run(m, frames):
        s, outs = np.zeros_like(m), []
        for query, k, v, lr, a, b in frames:
            a = a if decay else 1.0
            at = a * m if retain_first else m
            g = sum(lr[i] * np.outer(k[i], residual(k[i] @ at, v[i])) for i in range(len(k)))
            s = (b * s if momentum else 0) - g
            m = a * m + s
            outs.append(query @ m)
        return np.stack(outs)

    return run


def l2(prediction, value):
    return prediction - value


def dot(prediction, value):
    return -value


def huber(threshold):
    return lambda prediction, value: np.clip(prediction - value, -threshold, threshold)


def gelu(x):
    return 0.5 * x * (1 + np.vectorize(erf)(x / np.sqrt(2)))


def gelu_slope(x):
    return 0.5 * (1 + np.vectorize(erf)(x / np.sqrt(2))) + x * np.exp(-x * x / 2) / np.sqrt(2 * np.pi)


def mlp_rule(residual, momentum):
    def run(w, frames):
        w1, w2 = w
        s1, s2, outs = np.zeros_like(w1), np.zeros_like(w2), []
        for query, k, v, lr, a, b in frames:
            g1, g2 = np.zeros_like(w1), np.zeros_like(w2)
            for i in range(len(k)):
                h = k[i] @ w1
                r = lr[i] * residual(gelu(h) @ w2, v[i])
                g2 += np.outer(gelu(h), r)
                g1 += np.outer(k[i], (w2 @ r) * gelu_slope(h))
            s1, s2 = (b * s1 if momentum else 0) - g1, (b * s2 if momentum else 0) - g2
            w1, w2 = a * w1 + s1, a * w2 + s2
            outs.append(gelu(query @ w1) @ w2)
        return np.stack(outs)

    return run


def memora(m, frames):
    log_m, outs = np.log(m), []
    for query, k, v, lr, a, _ in frames:
        w = softmax(log_m)
        log_m = a * log_m - sum(lr[i] * np.outer(k[i], k[i] @ w - v[i]) for i in range(len(k)))
        outs.append(query @ softmax(log_m))
    return np.stack(outs)


def softmax(x):
    e = np.exp(x - x.max(0))
    return e / e.sum(0)


def moneta(p, q):
    def read(a):
        return a / (np.abs(a) ** q).sum() ** ((q - 2) / q)

    def run(m, frames):
        a_t = m * (np.abs(m) ** q).sum() ** ((q - 2) / (3 - q) / q)
        outs = []
        for query, k, v, lr, a, _ in frames:
            g = np.zeros_like(m)
            for i in range(len(k)):
                r = k[i] @ read(a_t) - v[i]
                g += lr[i] * np.outer(k[i], p * np.sign(r) * np.abs(r) ** (p - 1))
            a_t = a * a_t - g
            outs.append(query @ read(a_t))
        return np.stack(outs)

    return run


def muon_hebbian(m, frames):
    outs = []
    for query, k, v, lr, _, _ in frames:
        x = sum(lr[i] * np.outer(k[i], v[i]) for i in range(len(k)))
        x = x / (np.sqrt((x**2).sum()) + 1e-7)
        for _ in range(5):
            u, s, vt = np.linalg.svd(x, full_matrices=False)  # the polynomial acts on singular values alone
            x = u @ np.diag(3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5) @ vt
        m = m + x
        outs.append(query @ m)
    return np.stack(outs)


def ridge(weight):
    """Not a recursion: the batch minimiser over all frames so far, by normal equations."""

    def run(m0, frames):
        outs = []
        for t in range(1, len(frames) + 1):
            a_mat, b_mat = weight * np.eye(m0.shape[0]), weight * m0
            for _, k, v, lr, a, _ in frames[:t]:
                a_mat = a * a_mat + sum(lr[i] * np.outer(k[i], k[i]) for i in range(len(k)))
                b_mat = a * b_mat + sum(lr[i] * np.outer(k[i], v[i]) for i in range(len(k)))
            outs.append(frames[t - 1][0] @ np.linalg.solve(a_mat, b_mat))
        return np.stack(outs)

    return run


def longhorn_full(m, frames):
    """The minimiser of the proximal objective, by its normal equations."""
    outs = []
    for query, k, v, lr, _, _ in frames:
        a_mat = np.eye(m.shape[0]) + sum(lr[i] * np.outer(k[i], k[i]) for i in range(len(k)))
        m = np.linalg.solve(a_mat, m + sum(lr[i] * np.outer(k[i], v[i]) for i in range(len(k))))
        outs.append(query @ m)
    return np.stack(outs)


def longhorn_diag_tokens(m, frames):
    """The published kernel's recurrence, token by token."""
    outs = []
    for query, k, v, lr, _, _ in frames:
        for i in range(len(k)):
            d = lr[i] / (1 + lr[i] * (k[i] ** 2).sum())
            m = (1 - d * k[i] ** 2)[:, None] * m + d * np.outer(k[i], v[i])
        outs.append(query @ m)
    return np.stack(outs)


def longhorn_diag(m, frames):
    """The frame's joint step with the diagonal of its transition; weights by the information form."""
    outs = []
    for query, k, v, lr, _, _ in frames:
        information = np.eye(m.shape[0]) + k.T @ np.diag(lr) @ k
        transition = np.eye(m.shape[0]) - np.linalg.inv(information)
        target = np.linalg.solve(information, k.T @ np.diag(lr) @ v)
        m = (1 - np.diag(transition))[:, None] * m + target
        outs.append(query @ m)
    return np.stack(outs)


def kalman(r=1.0, q=0.0, p0=1.0, most=1.0, h=None, surprise=None, velocity=None):
    """Textbook Kalman filter on stacked rows, tokens one after the other, covariance not in Joseph's form."""

    def run(m0, frames):
        n, outs = m0.shape[0], []
        rows = n if velocity is None else 2 * n
        m = np.zeros((rows, m0.shape[1]))
        m[:n] = m0
        p, score = p0 * np.eye(rows), 0.0
        for query, k, v, lr, a, _ in frames:
            f, noise = np.eye(rows), np.zeros(rows)
            f[:n] *= a
            noise[:n] = q
            if velocity is not None:
                f[:n, n:] = a * np.eye(n)
                noise[n:] = velocity
            m, p = f @ m, f @ p @ f.T + np.diag(noise)
            keys = np.concatenate([k, np.zeros((len(k), rows - n))], 1)
            error = v - keys @ m
            s = np.array([keys[i] @ p @ keys[i] + r / lr[i] for i in range(len(k))])
            if surprise is not None:
                leak, threshold, boost, cap, slack = surprise
                z = np.mean([min((error[i] ** 2).mean() / s[i], cap) for i in range(len(k))]) - 1
                score = max(0.0, leak * score + z - slack)
                p = p + (boost if score > threshold else 0) * np.eye(rows)
            share = [
                1.0 if h is None else min(1.0, h * np.sqrt(s[i]) / np.linalg.norm(error[i])) for i in range(len(k))
            ]
            for i in range(len(k)):
                pk = p @ keys[i]
                gain = pk / (keys[i] @ pk + r / (lr[i] * share[i]))
                m = m + np.outer(gain, v[i] - keys[i] @ m)
                p = p - np.outer(gain, pk)
            scale = np.minimum(1, np.sqrt(most / np.diag(p)))
            p = scale[:, None] * p * scale[None, :]
            outs.append(query @ m[:n])
        return np.stack(outs)

    return run


def kalman_diag(r=1.0, q=0.0, p0=1.0, most=1.0, h=None):
    def run(m, frames):
        p, outs = np.full(m.shape[0], p0), []
        for query, k, v, lr, a, _ in frames:
            m, p = a * m, a * a * p + q
            error = v - k @ m
            weight = lr / r
            if h is not None:
                s = (k**2) @ p + 1 / weight
                weight = weight * np.minimum(1, h * np.sqrt(s) / np.linalg.norm(error, axis=1))
            gain = np.diag(p) @ k.T @ np.linalg.inv(k @ np.diag(p) @ k.T + np.diag(1 / weight))
            m = m + gain @ error
            p = np.minimum(1 / (1 / p + weight @ k**2), most)
            outs.append(query @ m)
        return np.stack(outs)

    return run


def frozen(m, frames):
    return np.stack([query @ m for query, *_ in frames])


def last_frame(weight):
    def run(m, frames):
        outs = []
        for query, k, v, lr, _, _ in frames:
            root = np.sqrt(lr)[:, None]  # augmented least squares
            a_mat = np.concatenate([root * k, np.sqrt(weight) * np.eye(k.shape[1])])
            b_mat = np.concatenate([root * v, np.zeros((k.shape[1], v.shape[1]))])
            outs.append(query @ np.linalg.lstsq(a_mat, b_mat, rcond=None)[0])
        return np.stack(outs)

    return run


def delta_repeated(times):
    def run(m, frames):
        outs = []
        for query, k, v, lr, _, _ in frames:
            for _ in range(times):
                m = m - sum(lr[i] * np.outer(k[i], k[i] @ m - v[i]) for i in range(len(k)))
            outs.append(query @ m)
        return np.stack(outs)

    return run


def gated_delta_tokens(m, frames):
    outs = []
    for query, k, v, lr, a, _ in frames:
        m = a * m
        for i in range(len(k)):
            m = (np.eye(len(m)) - lr[i] * np.outer(k[i], k[i])) @ m + lr[i] * np.outer(k[i], v[i])
        outs.append(query @ m)
    return np.stack(outs)


def windowed_delta(window):
    def run(m, frames):
        outs = []
        for t in range(len(frames)):
            g = 0
            for _, k, v, lr, _, _ in frames[max(0, t - window + 1) : t + 1]:
                g = g + sum(lr[i] * np.outer(k[i], k[i] @ m - v[i]) for i in range(len(k)))
            m = m - g
            outs.append(frames[t][0] @ m)
        return np.stack(outs)

    return run
