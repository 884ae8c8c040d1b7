"""The map's write and read as the equations say: numpy, float64, loops over points and a dict of vertices.

Shares no code with the library, and knows neither blocks nor slots nor capacities.
"""

from itertools import product

import numpy as np


def trilinear(point, voxel_size_m):
    """The eight vertices around a point, with their weights."""
    low = np.floor(np.asarray(point, dtype=np.float64) / voxel_size_m).astype(int)
    place = np.asarray(point, dtype=np.float64) / voxel_size_m - low
    for corner in product((0, 1), repeat=3):
        weight = np.prod([r if far else 1 - r for far, r in zip(corner, place)])
        yield tuple(int(i) for i in low + corner), weight


def read(field, point, voxel_size_m, known_precision, known_share):
    """(distance, precision) at a point, or None where too little is known."""
    total = distance = precision = 0.0
    for vertex, weight in trilinear(point, voxel_size_m):
        m, p = field.get(vertex, (0.0, 0.0))
        if p > known_precision:
            total, distance, precision = total + weight, distance + weight * m, precision + weight * p
    return (distance / total, precision / total) if total > known_share else None


def write(old, tokens, rays, how, voxel_size_m):
    """Evidence of a frame on every vertex it reaches: vertex -> (sum of key confidence error, sum of key confidence).

    old: vertex -> (value, precision). tokens: (point, value, sigma) in the order sample, ray. rays: how many.
    """
    known, errors, scales = [], [], []
    for point, value, sigma in tokens:
        corners = [(*old.get(vertex, (0.0, 0.0)), weight) for vertex, weight in trilinear(point, voxel_size_m)]
        known.append(all(p > how["known_precision"] for _, p, _ in corners))
        errors.append(sum(w * m for m, _, w in corners) - value)
        doubt = 1 / max(sum(w * p for _, p, w in corners), 1e3)
        scales.append(np.sqrt(sigma**2 + how["frame_noise_m"] ** 2 + how["wander_m"] ** 2 + doubt))
    gates = [1.0] * rays
    for r in range(rays):
        mine = [i for i in range(r, len(tokens), rays) if known[i]]
        if mine:
            alignment = np.mean([how["evenness"] - 0.5 * (errors[i] / scales[i]) ** 2 for i in mine])
            gates[r] = max(how["floor"], 1 / (1 + np.exp(-alignment)))
    sums = {}
    for i, (point, value, sigma) in enumerate(tokens):
        surprise = abs(errors[i] / scales[i]) if known[i] else 0.0
        confidence = gates[i % rays] * how["huber"] / max(surprise, how["huber"]) / sigma**2
        for vertex, key in trilinear(point, voxel_size_m):
            error = errors[i] if known[i] else old.get(vertex, (0.0, 0.0))[0] - value
            e, c = sums.get(vertex, (0.0, 0.0))
            sums[vertex] = (e + key * confidence * error, c + key * confidence)
    return sums


def running_average(depths, poses, intrinsics, vertices, band_m):
    """TSDF fusion at vertices [P, 3]: (value [P], count [P])."""
    value, count = np.zeros(len(vertices)), np.zeros(len(vertices))
    K = np.asarray(intrinsics, dtype=np.float64)
    for depth, pose in zip(depths, poses):
        local = (vertices - pose[:3, 3]) @ pose[:3, :3]
        for i, (x, y, z) in enumerate(local):
            if z <= 0.05:
                continue
            u, v = round(x / z * K[0, 0] + K[0, 2]), round(y / z * K[1, 1] + K[1, 2])
            if 0 <= v < depth.shape[0] and 0 <= u < depth.shape[1] and depth[v, u] > 0 and depth[v, u] - z > -band_m:
                value[i] = (value[i] * count[i] + min(depth[v, u] - z, band_m)) / (count[i] + 1)
                count[i] += 1
    return value, count
