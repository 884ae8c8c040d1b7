"""PandaSearch in MuJoCo: real contacts tell what the analytic ones tell, and the expert finds every hole."""

import numpy as np
import pytest
import torch

gymnasium = pytest.importorskip("gymnasium", reason="needs the extra [robot]")
pytest.importorskip("gymnasium_robotics", reason="needs the extra [robot]")
pytest.importorskip("mujoco", reason="needs the extra [robot]")

from gymnasium.utils.env_checker import check_env  # noqa: E402

from streammem.errors import ConfigError  # noqa: E402
from streammem.policy.tasks import panda, panda_search  # noqa: E402
from streammem.policy.tasks.board import BOARD, DEPTH, PLACES  # noqa: E402
from streammem.policy.tasks.episodes import record  # noqa: E402
from streammem.policy.tasks.panda_search import PandaBoard, PandaSearch  # noqa: E402
from streammem.policy.tasks.search import INSIDE_M, TRYING, SearchTask  # noqa: E402

panda_search.register()
SHORT = {"holes": 3, "attempts": 3, "delay": 20}


@pytest.mark.filterwarnings("ignore:.*:UserWarning")
def test_the_environment_is_what_gymnasium_wants():
    env = gymnasium.make(panda_search.ID, **SHORT)
    check_env(env.unwrapped, skip_render_check=True)
    env.close()


def test_the_expert_finds_the_hole_and_finds_it_at_once_again():
    env = gymnasium.make(panda_search.ID, **SHORT)
    observation, info = env.reset(seed=1)
    attempts, reward, steps, done = [], 0.0, 0, False
    while not done:
        observation, one, done, cut, info = env.step(env.unwrapped.expert())
        assert env.observation_space.contains(observation) and not cut
        attempts += [info["attempts"]] if "attempts" in info else []
        reward, steps = reward + one, steps + 1
    assert reward == 2 and attempts[1] == 1 and 1 <= attempts[0] <= 3 and steps == SearchTask(**SHORT).length


def test_the_expert_repeats_no_hole_where_contacts_are_simulated():
    world = SearchTask(5, attempts=5, delay=0).begun(6, 3, PandaBoard())
    world.reset()
    touched = torch.zeros(6, 8)
    while world.visit == 0:
        stage = world.stage.clone()
        world.step(world.expert())
        miss = (stage == TRYING) & world.contact
        assert (world._over[miss] >= 0).all()
        touched[miss] += torch.nn.functional.one_hot(world._over[miss], 8)
    assert touched.max() == 1 and torch.equal(touched.sum(1) + 1, world.attempts[:, 0])
    assert touched[torch.arange(6), world.open].sum() == 0


@pytest.mark.parametrize("into", [False, True])
def test_the_peg_rests_on_a_lid_and_goes_into_the_hole(into):
    arm = PandaBoard()
    state = arm.reset(1, torch.tensor([5]))
    place, felt = torch.tensor(PLACES[5 if into else 6]), []
    for _ in range(90):
        off = place - state.hand[0, :2]
        down = -0.15 if off.norm() < 0.01 else 2 * (BOARD + 0.06 - state.hand[0, 2])
        state, touched = arm.move(state, torch.tensor([[3 * off[0], 3 * off[1], down]]))
        felt.append(bool(touched))
    height = state.hand[0, 2].item()
    if into:
        assert BOARD - DEPTH - 0.01 < height < BOARD - INSIDE_M and not any(felt)
    else:
        assert height == pytest.approx(BOARD, abs=6e-3) and felt[-1] and not any(felt[:15])
        assert (state.command - state.joints).abs().max() > 0.01  # the joints feel it


def test_nothing_but_the_peg_touches_and_the_other_tasks_have_no_contacts():
    made = panda_search.board_model()
    touching = [made.geom(i).name for i in range(made.ngeom) if made.geom_contype[i] == 1]
    assert touching == ["peg"] and not panda.model().geom_contype.any()


def test_demonstrations_are_recorded_from_it_too():
    episodes = record(SearchTask(2, attempts=2, delay=0), 2, 0, arm=PandaBoard())
    assert episodes.observation.isfinite().all() and episodes.confidence.sum() >= 2 * 3


def test_a_seed_says_which_episode_and_frames_are_dropped():
    def first(seed):
        env = PandaSearch(dropped=0.3, **SHORT)
        rows, valid = [env.reset(seed=seed)[0]], []
        for _ in range(40):
            seen, *_, info = env.step(np.array([0.2, 0.0, 0.1], np.float32))
            rows.append(seen)
            valid.append(info["valid"])
        return np.stack(rows), np.mean(valid)

    (one, share), (two, _), (other, _) = first(1), first(1), first(2)
    assert np.array_equal(one, two) and not np.array_equal(one, other) and 0.4 < share < 0.95


def test_parameters_that_make_no_sense_are_refused():
    for options in ({"dropped": 1.0}, {"render_mode": "human"}, {"holes": 1}):
        with pytest.raises(ConfigError, match="wanted"):
            PandaSearch(**options)
