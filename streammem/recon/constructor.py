"""The text of a constructor call in official files, read as literals: never evaluated."""

import ast
import dataclasses
import math

from streammem.errors import CheckpointError
from streammem.recon.config import ReconConfig
from streammem.recon.pickled import Stub

MOST_LETTERS = 8_000  # of a text; a longer one could exhaust the parser
RENAMED = {"img_size": "image_size"}
MUST_BE = {  # what the network here is; a file that says otherwise is of another one
    "pos_embed": ("RoPE100",),
    "rgb_head": (True,),
    "pose_head": (True,),
    "output_mode": ("pts3d+pose",),
    "depth_mode": (("exp", -math.inf, math.inf),),
    "conf_mode": (("exp", 1, math.inf),),
    "pose_mode": (("exp", -math.inf, math.inf),),
    "patch_embed_cls": ("ManyAR_PatchEmbed", "PatchEmbedDust3R"),
    "mlp_ratio": (4,),
    "norm_im2_in_dec": (True,),
}
NAMES = {"inf": math.inf, "nan": math.nan}


def config(text: str) -> ReconConfig:
    """The configuration that a constructor's text states, as in "Net(Config(head_type='dpt', enc_depth=24))".

    Raises: CheckpointError where the text is no call with literal arguments, or states another network than ours.
    """
    said = arguments(text)
    for name, allowed in MUST_BE.items():
        if name in said and said[name] not in allowed:
            raise CheckpointError(f"{name} is {said[name]!r:.80}; this network has {' or '.join(map(repr, allowed))}")
    fields = {field.name for field in dataclasses.fields(ReconConfig)}
    known = {RENAMED.get(name, name): value for name, value in said.items()}
    try:
        return ReconConfig(**{name: value for name, value in known.items() if name in fields})
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"its configuration cannot be used: {error}") from error


def arguments(text: str) -> dict[str, object]:
    """Keyword arguments of a call, and of calls that are its arguments; values are literals, inf included.

    Raises: CheckpointError for anything else, which is named and not evaluated.
    """
    if len(text) > MOST_LETTERS:
        raise CheckpointError(f"the text of its configuration has {len(text)} letters; wanted at most {MOST_LETTERS}")
    try:
        node = ast.parse(text.strip(), mode="eval").body
        return _of_call(node)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise CheckpointError(
            f"its configuration is no call with literal arguments: {error}; nothing was run"
        ) from error


def text_of(args: object) -> str | None:
    """The text under `model` of what an official file calls `args`: a namespace, a dict, or a tree of OmegaConf's."""
    value = _member(args, "model")
    if isinstance(value, Stub):
        value = _member(value, "_val")
    return value if isinstance(value, str) else None


def _member(thing: object, name: str) -> object:
    """What an object, or what lies inside it, has under a name."""
    if isinstance(thing, Stub):
        inside = thing.state if isinstance(thing.state, dict) else thing.items
        if name not in inside and isinstance(inside.get("_content"), dict):
            inside = inside["_content"]
        return inside.get(name, thing.items.get(name))
    return thing.get(name) if isinstance(thing, dict) else None


def _of_call(node: ast.AST) -> dict[str, object]:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        raise ValueError(f"{ast.unparse(node):.80} stands where a class with arguments was wanted")
    said = {}
    for inner in node.args:
        said |= _of_call(inner)
    for keyword in node.keywords:
        if keyword.arg is None:
            raise ValueError("it unpacks arguments")
        said[keyword.arg] = _literal(keyword.value)
    return said


def _literal(node: ast.AST) -> object:
    if isinstance(node, ast.Name) and node.id in NAMES:
        return NAMES[node.id]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _literal(node.operand)
        if isinstance(value, (int, float)):
            return -value
    if isinstance(node, (ast.Tuple, ast.List)):
        return tuple(_literal(item) for item in node.elts)
    if isinstance(node, ast.Constant):
        return node.value
    raise ValueError(f"{ast.unparse(node):.80} is no literal")
