"""One row a rule: it buys parity with the reference and all the properties."""

from collections.abc import Callable
from dataclasses import dataclass

import reference as ref
import reference_deep as deep
import reference_linear as linear
import torch
from material import (
    B,
    K,
    N,
    V,
    away_from_zero,
    by_channel,
    chained,
    data,
    gated,
    large,
    learned_norm,
    levelled,
    matrix,
    mlp,
    over_features,
    plain,
    residual_mlp,
    simplex,
    simplices,
    slow,
    square,
)

from streammem import tree
from streammem.memory.algorithm import LACT, Momentum, Muon
from streammem.memory.architecture import (
    MLP,
    AffineWeights,
    BiasedMLPWeights,
    Matrix,
    Residual,
    SwiGLU,
)
from streammem.memory.features import Polynomial
from streammem.memory.rule import Rule
from streammem.memory.wrappers import Repeat, TokenByToken, Window
from streammem.rules import RULES
from streammem.rules.deltaformer import Exp, Linear
from streammem.rules.kalman import Steady, Surprise
from streammem.rules.kalman_bank import Member


@dataclass(frozen=True)
class Case:
    name: str
    rule: Rule
    weights: Callable  # (batch, generator) -> initial memory
    reference: Callable  # (initial memory, frames) -> readouts
    ages: bool = False  # a frame without tokens changes the state, though never what is read
    learns: bool = True  # a small write lowers the bias on what was written
    rounding: float = 1  # times the usual, in float32
    tokens: Callable = plain  # frames -> frames, with the gates that the rule takes


SURPRISE = Surprise(leak=0.9, threshold=0.3, boost=0.2, cap=2.0, slack=0.1)
BANK = (Member(0.01, starts_over=True), Member(0.3), Member(0.001, 0.01))

CASES = [
    Case("frozen", RULES["frozen"](), matrix, ref.frozen, learns=False),
    Case("last_frame", RULES["last_frame"](), matrix, ref.last_frame(1e-3)),
    Case("hebbian", RULES["hebbian"](), matrix, ref.matrix_rule(ref.dot)),
    Case("gated_hebbian", RULES["gated_hebbian"](), matrix, ref.matrix_rule(ref.dot, decay=True)),
    Case("delta", RULES["delta"](), matrix, ref.matrix_rule(ref.l2)),
    Case("gated_delta", RULES["gated_delta"](), matrix, ref.matrix_rule(ref.l2, retain_first=True, decay=True)),
    Case("longhorn", RULES["longhorn"](), matrix, ref.longhorn_full),
    Case("longhorn_diag", RULES["longhorn"]("diag"), matrix, ref.longhorn_diag),
    Case("longhorn_diag_tokens", TokenByToken(RULES["longhorn"]("diag")), matrix, ref.longhorn_diag_tokens),
    Case("rls", RULES["rls"](2.0), matrix, ref.ridge(2.0)),
    Case("kalman", RULES["kalman"](0.5), matrix, ref.kalman(0.5)),
    Case("kalman_drift", RULES["kalman"](0.5, 0.1), matrix, ref.kalman(0.5, 0.1), ages=True),
    Case("kalman_huber", RULES["kalman"](0.5, huber=1.0), matrix, ref.kalman(0.5, h=1.0)),
    Case(
        "kalman_surprise",
        RULES["kalman"](0.05, huber=1.5, surprise=SURPRISE),
        matrix,
        ref.kalman(0.05, h=1.5, surprise=(0.9, 0.3, 0.2, 2.0, 0.1)),
    ),
    Case(
        "kalman_steady",
        RULES["kalman"](0.5, 0.01, max_variance=2.0, motion=Steady(0.02)),
        matrix,
        ref.kalman(0.5, 0.01, most=2.0, velocity=0.02),
        ages=True,
    ),
    Case("kalman_diag", RULES["kalman_diag"](0.5), matrix, ref.kalman_diag(0.5)),
    Case(
        "kalman_diag_huber",
        RULES["kalman_diag"](0.5, 0.1, huber=1.0),
        matrix,
        ref.kalman_diag(0.5, 0.1, h=1.0),
        ages=True,
    ),
    Case("titans", RULES["titans"](), mlp, ref.mlp_rule(ref.l2, momentum=True)),
    Case("titans_matrix", RULES["titans"](Matrix()), matrix, ref.matrix_rule(ref.l2, decay=True, momentum=True)),
    Case("yaad", RULES["yaad"](0.5), mlp, ref.mlp_rule(ref.huber(0.5), momentum=False)),
    Case("yaad_matrix", RULES["yaad"](0.5, Matrix()), matrix, ref.matrix_rule(ref.huber(0.5), decay=True)),
    Case("memora", RULES["memora"](), simplex, ref.memora),
    Case("moneta", RULES["moneta"](memory=Matrix()), matrix, ref.moneta(3, 4)),
    Case("muon_hebbian", RULES["muon_hebbian"](), matrix, ref.muon_hebbian),
    Case("kalman_iso", RULES["kalman_diag"](0.5, 0.1, isotropic=True), matrix, linear.kalman_iso(0.5, 0.1), ages=True),
    Case("kda", RULES["kda"](), matrix, ref.matrix_rule(ref.l2, True, True), tokens=by_channel(retention=K)),
    Case("gla", RULES["gated_hebbian"](), matrix, ref.matrix_rule(ref.dot, decay=True), tokens=by_channel(retention=K)),
    Case("gdn2", RULES["gdn2"](), matrix, linear.gdn2, tokens=by_channel(V, K, K)),
    Case("comba", RULES["comba"](0.7, 0.3), matrix, linear.comba(0.7, 0.3)),
    Case("rwkv7", RULES["rwkv7"](removal=1.5), matrix, linear.rwkv7(1.0, 1.5), tokens=by_channel(K, K, K)),
    Case("preconditioned_delta", RULES["preconditioned_delta"](), matrix, linear.preconditioned(1.5, -0.2, 0.99)),
    Case("nlms", RULES["nlms"](0.1), matrix, linear.nlms(0.1)),
    Case("kdn", RULES["kdn"]("diag", 0.5), matrix, linear.kdn(0.5, 0.01, 1.0), ages=True, tokens=by_channel(1, K)),
    Case(
        "kdn_iso",
        RULES["kdn"]("iso", 0.5),
        matrix,
        linear.kdn(0.5, 0.01, 1.0, iso=True),
        ages=True,
        tokens=by_channel(1, K),
    ),
    Case("mesa", RULES["mesa"](iterations=12), matrix, linear.mesa(1.0)),
    Case("mesa_adaptive", RULES["mesa"](0.5, 0.1, "chebyshev", 50), matrix, linear.mesa(0.5, 0.1)),
    Case("delta_product", RULES["delta_product"](), matrix, linear.delta_tokens),
    Case("gated_delta_product", RULES["gated_delta_product"](), matrix, ref.gated_delta_tokens),
    Case("log_linear", RULES["log_linear"](levels=3), levelled, linear.log_linear(3), ages=True),
    Case("repeat", Repeat(RULES["delta"](), 3), matrix, ref.delta_repeated(3)),
    Case("token_by_token", TokenByToken(RULES["gated_delta"]()), matrix, ref.gated_delta_tokens),
    Case("window", Window(RULES["delta"](), 3, N), matrix, ref.windowed_delta(3), ages=True),
    Case(
        "ttt_linear",
        RULES["ttt_linear"](4),
        learned_norm(AffineWeights),
        deep.deep(deep.residual(deep.affine(), True), space=deep.Plain(False), chunk=4),
        ages=True,
        tokens=square,
    ),
    Case(
        "ttt_linear_matrix",
        RULES["ttt_linear"](4, Matrix()),
        matrix,
        deep.deep(deep.linear(), space=deep.Plain(False), chunk=4),
        ages=True,
    ),
    Case(
        "ttt_mlp",
        RULES["ttt_mlp"](4),
        learned_norm(BiasedMLPWeights),
        deep.deep(deep.residual(deep.biased_mlp(), True), space=deep.Plain(False), chunk=4),
        ages=True,
        tokens=square,
    ),
    Case("titans_chunk", RULES["titans"](MLP(), 4), mlp, deep.deep(deep.mlp(), chunk=4, momentum=True), ages=True),
    Case(
        "titans_residual",
        RULES["titans"](Residual(MLP())),
        residual_mlp,
        deep.deep(deep.residual(deep.mlp()), momentum=True),
        tokens=square,
    ),
    Case("yaad_norm", RULES["yaad"](0.5, form="norm"), mlp, deep.deep(deep.mlp(), deep.clipped_norm(0.5))),
    Case("yaad_chunk", RULES["yaad"](0.5, chunk=4), mlp, deep.deep(deep.mlp(), ref.huber(0.5), chunk=4), ages=True),
    Case("moneta_mlp", RULES["moneta"](), mlp, deep.deep(deep.mlp(), deep.power(3), deep.Printed(4))),
    Case(
        "moneta_mirror",
        RULES["moneta"](map="mirror", chunk=4),
        away_from_zero,
        deep.deep(deep.mlp(), deep.power(3), deep.Mirror(4), chunk=4),
        ages=True,
        tokens=slow,
    ),
    Case(
        "memora_mlp",
        RULES["memora"](MLP(), 2.0, 4),
        simplices,
        deep.deep(deep.mlp(), space=deep.Simplex(2.0), chunk=4),
        ages=True,
    ),
    Case("omega", RULES["omega"](MLP(), 3, N), mlp, deep.deep(deep.mlp(), window=3), ages=True),
    Case(
        "omega_features",
        RULES["omega"](Matrix(), 3, N, Polynomial(), chunk=4),
        over_features,
        deep.deep(deep.linear(), window=3, chunk=4, features=deep.monomials),
        ages=True,
    ),
    Case(
        "atlas",
        RULES["atlas"](SwiGLU("gelu"), 3, N),
        gated,
        deep.deep(deep.gated(ref.gelu, ref.gelu_slope), momentum=True, window=3, muon=deep.JORDAN, scaled=True),
        ages=True,
    ),
    Case(
        "lact",
        RULES["lact"](Muon(5, LACT)),
        large,
        deep.deep(deep.gated(), ref.dot, deep.Columns(), muon=deep.svd_polynomial(LACT)),
        rounding=10,  # four tokens leave singular values of zero, and five steps of Muon raise their rounding 500 times
    ),
    Case(
        "lact_momentum",
        RULES["lact"](Momentum()),
        gated,
        deep.deep(deep.gated(), ref.dot, deep.Columns(), momentum=True),
    ),
    Case("kernel_smoother", RULES["kernel_smoother"](10, 1.5), matrix, deep.smoother(10, 1.5), ages=True),
    Case(
        "kernel_smoother_linear",
        RULES["kernel_smoother"](10, 1.5, "linear", 0.1),
        matrix,
        deep.smoother(10, 1.5, 0.1),
        ages=True,
    ),
    Case(
        "deltaformer",
        RULES["deltaformer"](Exp(0.5), 10, 0.7),
        matrix,
        deep.deltaformer(deep.exponential(0.5), 10, 0.7),
    ),
    Case(
        "deltaformer_linear", RULES["deltaformer"](Linear(), 10, None), matrix, deep.deltaformer(lambda a, b: a @ b, 10)
    ),
    Case(
        "deltaformer_normalised",
        RULES["deltaformer"](Exp(0.5), 10, None, True),
        matrix,
        deep.deltaformer(deep.exponential(0.5), 10, normalised=True),
    ),
    Case("continuum", RULES["continuum"](periods=(1, 4)), chained, deep.continuum((1, 4)), ages=True),
    Case(
        "kalman_bank",
        RULES["kalman_bank"](BANK, 3.0, 0.9, 20.0, 10.0, SURPRISE),
        matrix,
        deep.kalman_bank(BANK, 3.0, 0.9, 20.0, 10.0, (0.9, 0.3, 0.2, 2.0, 0.1)),
        ages=True,
    ),
]


def start(case: Case, batch: int = B, dtype=torch.float64):
    """The frames, and the state before them."""
    frames, g = data(batch, dtype=dtype)
    return case.tokens(frames), case.rule.init(tree.map(lambda a: a.to(dtype), case.weights(batch, g)))
