"""Write gates and the gated delta memory from their equations: numpy, float64, loops; nothing of streammem."""

import numpy as np


def sigmoid(a):
    return 1 / (1 + np.exp(-a))


def softplus(a):
    return np.log1p(np.exp(a))


def aligned(x, w1, b1, w2, b2, queries, bias):
    """a of one token x [D] for each head: mean over queries of q k / sqrt(K), plus the bias."""
    hidden = w1 @ x + b1
    key = w2 @ (hidden * sigmoid(hidden)) + b2
    out = []
    for head in range(len(queries)):
        products = [float(np.dot(q, key)) / np.sqrt(len(key)) for q in queries[head]]
        out.append(sum(products) / len(products) + float(bias[head]))
    return np.array(out)


def hard(a, threshold):
    s = sigmoid(a)
    return s if s > threshold else 0.0


def hard_concrete(a):
    beta, gamma, zeta = 2 / 3, -0.1, 1.1
    rate = min(1.0, max(0.0, sigmoid(a) * (zeta - gamma) + gamma))
    return rate, sigmoid(a - beta * np.log(-gamma / zeta))


def evidence(alignments, elapsed_s, memory_s, high, low):
    """Rates of one head over frames."""
    score, open_, rates = 0.0, False, []
    for a, dt in zip(alignments, elapsed_s):
        leak = np.exp(-dt / memory_s)
        score = leak * score + (1 - leak) * a
        if score > high:
            open_ = True
        elif score <= low:
            open_ = False
        rates.append(sigmoid(score) if open_ else 0.0)
    return np.array(rates)


def confirmed(alignments, confidences, elapsed_s, memory_s, high):
    """Rates of one head over frames."""
    score, rates = 0.0, []
    for a, c, dt in zip(alignments, confidences, elapsed_s):
        score = np.exp(-dt / memory_s) * score + c
        rates.append(c * sigmoid(a) if score > high else 0.0)
    return np.array(rates)


def surprise(a, error, weight, known, threshold, cap):
    z = min(float(np.mean(error**2)), cap)
    return hard(a + softplus(weight) * (z - softplus(known)), threshold)


def gated_delta(keys, values, queries, rates, elapsed_s, fade):
    """Readouts of one head over frames of one token: forgetting by the clock, nothing where the rate is 0."""
    memory, idle, out = np.zeros((keys.shape[1], values.shape[1])), 0.0, []
    for k, v, q, rate, dt in zip(keys, values, queries, rates, elapsed_s):
        idle += dt
        if rate > 0:
            kept = np.exp(-fade * idle) * memory
            memory = kept + rate * np.outer(k, v - k @ kept)
            idle = 0.0
        out.append(np.exp(-fade * idle) * (q @ memory))
    return np.array(out)
