"""How much each case does. The defaults are the full run; configs/bench/quick.yaml is the minute's."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Quality:
    """Map quality on the kitchen: cases map, stream, retention, robust."""

    frames: int = 150
    voxel_size_m: float = 0.02
    max_depth_m: float = 3.5
    warm_up: int = 30  # frames before the first is scored in the streaming protocol


@dataclass(frozen=True)
class Robust:
    """A moving box in the recording, a removed object and a static scene in synthetic views."""

    box_m: float = 0.4
    view: tuple[int, int] = (240, 320)  # synthetic views: height, width
    look_frames: int = 30  # views of a removed object's place
    static_frames: int = 1000


@dataclass(frozen=True)
class Track:
    """Trajectories without given poses."""

    frames: int = 150
    synthetic_frames: int = 150
    lost_m: float = 0.3  # a larger error must be called lost


@dataclass(frozen=True)
class Endurance:
    """A long synthetic stream."""

    frames: int = 10_000
    settle: int = 500
    view: tuple[int, int] = (60, 80)


@dataclass(frozen=True)
class Speed:
    """Write and ray cast of one map, in turn with Open3D's."""

    build_frames: int = 30
    repeats: int = 20


@dataclass(frozen=True)
class Kill:
    """A run that is killed and resumed."""

    times: int = 20
    frames: int = 60
    view: tuple[int, int] = (120, 160)
    seed: int = 0


@dataclass(frozen=True)
class Rules:
    """Step time of each memory rule."""

    heads: int = 4
    key: int = 64
    value: int = 64
    tokens: int = 16
    repeats: int = 200
    frames: int = 4096  # of a sequence, in chunks of
    chunk: int = 64
    compiled: tuple[str, ...] = ("delta", "gated_delta", "titans", "kalman")  # whose steps are timed compiled, too


@dataclass(frozen=True)
class Targets:
    """Published and derived figures of the rules."""

    seeds: int = 40  # that are reported
    training_seeds: int = 6  # on which hyper-parameters are chosen
    character_seeds: int = 20
    recall_seeds: int = 30
    gate_seeds: int = 60


@dataclass(frozen=True)
class Mqar:
    """Training of multi-query associative recall."""

    seeds: int = 2
    steps: int = 500
    batch: int = 32
    keys: tuple[int, ...] = (32,)  # widths of keys and values
    rate: float = 5e-3


@dataclass(frozen=True)
class Gating:
    """Update rules of the colour-only network on streams longer than in training."""

    lengths: tuple[int, ...] = (16, 32, 64, 128, 256, 512)
    sequences: int = 12
    walks: tuple[str, ...] = ("wander",)
    known: bool = True  # walks through the room that the network was trained in; else rooms it has never seen
    ahead_rad: float | None = 1.0  # walks alone that never turn further from the x axis, as in training; None: all
    resets: tuple[int, ...] = (16,)  # frames after which some rules also start over, worlds aligned
    weights: str | None = None  # None: those of the package


@dataclass(frozen=True)
class Policy:
    """Policies in the loop: case policy."""

    policies: tuple[str, ...] = ()  # by name; none named: all
    modes: tuple[str, ...] = ("place", "weigh")
    seeds: int = 5
    episodes: int = 100  # of a cell and a seed, of three questions each
    histories: tuple[int, ...] = (170, 620, 2120, 8000)
    items: tuple[int, ...] = (3, 6, 12, 20)
    items_delay: int = 200
    false_confidence: tuple[float, ...] = (0.01, 0.1)
    changed: int = 6  # items that are taught again
    simulated: float = 0.5  # share of the demonstrations from the arm in MuJoCo; above 0 policies are tried there too
    faults_history: int = 2120
    timed_history: int = 8000
    longer: float = 1.0  # times the steps of training,
    baselines_longer: float = 10.0  # and of that, of what is not ours
    timed: tuple[str, ...] = ("delta", "memoryless", "GRU", "window 64", "event buffer")
    repeats: int = 1000  # timed steps
    full: bool = True  # whether figures are held to what the whole training reaches


@dataclass(frozen=True)
class Workload:
    """Everything, by group of cases."""

    quality: Quality = field(default_factory=Quality)
    robust: Robust = field(default_factory=Robust)
    track: Track = field(default_factory=Track)
    endurance: Endurance = field(default_factory=Endurance)
    speed: Speed = field(default_factory=Speed)
    kill: Kill = field(default_factory=Kill)
    rules: Rules = field(default_factory=Rules)
    targets: Targets = field(default_factory=Targets)
    mqar: Mqar = field(default_factory=Mqar)
    gating: Gating = field(default_factory=Gating)
    policy: Policy = field(default_factory=Policy)
    retention: tuple[float, ...] = (
        1,
        3,
        10,
        30,
        200,
    )  # frames that the average counts as, for maps without a fast value
