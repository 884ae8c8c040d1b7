"""What finds the camera's pose from depth and colour alone: ours and the peers', as poses [T, 4, 4]."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from streammem.metrics import trajectory_error

from .case import Skip
from .ours import Ours, as_frame
from .peers import DEPTH_SCALE
from .protocols import FAR_M, Shot
from .workload import Quality

TRUSTED = ("tracked", "weak")


class Track(NamedTuple):
    """A trajectory that starts at the identity, and what the tracker said of each frame."""

    poses: np.ndarray  # [T, 4, 4] float64, first_from_camera
    statuses: tuple[str, ...]


def ours(shots: Sequence[Shot], quality: Quality) -> Track:
    """The library's map, finding each frame against itself."""
    method, poses, statuses = Ours(quality), [], []
    for shot in shots:
        readout = method.mapper.step(as_frame(shot, posed=False))
        pose = readout.world_from_camera.reshape(4, 4).numpy()
        if not np.isfinite(pose).all():
            pose = poses[-1] if poses else np.eye(4)
        poses.append(pose)
        statuses.append(readout.status)
    return Track(np.stack(poses), tuple(statuses))


def opencv(shots: Sequence[Shot], quality: Quality) -> Track:
    """OpenCV's RGB-D odometry, frame to frame: a frame that fails keeps the last pose.

    Raises: Skip where OpenCV 5 is not installed.
    """
    try:
        import cv2
    except ImportError as error:
        raise Skip("needs OpenCV 5 (the extra [peers])") from error
    settings = cv2.OdometrySettings()
    settings.setCameraMatrix(shots[0].intrinsics.astype(np.float32))
    settings.setMaxDepth(quality.max_depth_m)
    odometry = cv2.Odometry(cv2.ODOMETRY_TYPE_RGB_DEPTH, settings, cv2.ODOMETRY_ALGO_TYPE_COMMON)
    poses, statuses, last = [np.eye(4)], ["tracked"], None
    for shot in shots:
        depth = np.where(shot.depth > 0, shot.depth, np.nan).astype(np.float32)
        frame = cv2.OdometryFrame(depth, np.ascontiguousarray(shot.image[..., ::-1]))
        odometry.prepareFrame(frame)
        if last is not None:
            found, motion = odometry.compute(frame, last)
            poses.append(poses[-1] @ motion if found else poses[-1])
            statuses.append("tracked" if found else "lost")
        last = frame
    return Track(np.stack(poses), tuple(statuses))


def open3d(shots: Sequence[Shot], quality: Quality) -> Track:
    """Open3D's dense SLAM, frame to model."""
    import open3d as o3d

    device, slam = o3d.core.Device("CPU:0"), o3d.t.pipelines.slam
    intrinsics = o3d.core.Tensor(shots[0].intrinsics)
    seen, cast = (slam.Frame(*shots[0].size, intrinsics, device) for _ in range(2))
    model = slam.Model(quality.voxel_size_m, 16, 10_000, o3d.core.Tensor(np.eye(4)), device)
    poses, statuses, far, cut = [np.eye(4)], [], quality.max_depth_m, 0.08 / quality.voxel_size_m
    for index, shot in enumerate(shots):
        millimetres = np.rint(shot.depth * DEPTH_SCALE).astype(np.uint16)
        seen.set_data_from_image("depth", o3d.t.geometry.Image(o3d.core.Tensor(millimetres)))
        seen.set_data_from_image("color", o3d.t.geometry.Image(o3d.core.Tensor(shot.image)))
        status = "tracked"
        if index:
            try:
                motion = model.track_frame_to_model(seen, cast, DEPTH_SCALE, far, 0.07).transformation.numpy()
            except RuntimeError:  # a singular system
                motion, status = np.eye(4), "lost"
            poses.append(poses[-1] @ motion)
        statuses.append(status)
        model.update_frame_pose(index, o3d.core.Tensor(poses[-1]))
        model.integrate(seen, DEPTH_SCALE, far, cut)
        model.synthesize_model_frame(cast, DEPTH_SCALE, 0.1, min(far, FAR_M), cut, False)
    return Track(np.stack(poses), tuple(statuses))


def truth(shots: Sequence[Shot]) -> np.ndarray:
    """The recorded poses, from the first camera: [T, 4, 4]; NaN where the recording has none."""
    return np.linalg.inv(shots[0].pose) @ np.stack([x.pose for x in shots])


def ate(poses: np.ndarray, exact: np.ndarray) -> float:
    """Absolute trajectory error [m] after the best rigid alignment: root of the mean square over all frames."""
    return trajectory_error(torch.from_numpy(poses), torch.from_numpy(exact)).rmse_m


def silent(track: Track, exact: np.ndarray, lost_m: float) -> int:
    """Frames that are further than `lost_m` from the truth, in the first camera's axes, and were called found."""
    off = np.linalg.norm(track.poses[:, :3, 3] - exact[:, :3, 3], axis=-1)
    return int(sum(error > lost_m and status in TRUSTED for error, status in zip(off, track.statuses)))
