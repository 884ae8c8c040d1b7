"""A ROS 2 lifecycle node: sensors write at their own rate and stamp, a timer acts. Needs rclpy; the core does not.

python -m apps.examples.ros2_node
"""

import rclpy
import torch
from rclpy.lifecycle import LifecycleNode, TransitionCallbackReturn
from rclpy.qos import qos_profile_sensor_data
from sensor_msgs.msg import JointState
from std_msgs.msg import Float64MultiArray

from streammem.policy.encoders import Observation
from streammem.policy.loop import ControlLoop

from .remembering import policy

JOINTS, ACTIONS, RATE_HZ = 7, 3, 25.0


class MemoryNode(LifecycleNode):
    """/joint_states in, /action out."""

    def __init__(self):
        super().__init__("streammem")

    def on_configure(self, state):
        self.loop = ControlLoop(policy(JOINTS, ACTIONS), RATE_HZ)
        self.loop.warm_up(Observation(vector=torch.zeros(1, JOINTS)))
        self.reader = self.loop.reader()  # callbacks may run in several threads: one writes, the timer reads
        self.out = self.create_publisher(Float64MultiArray, "action", 1)
        return TransitionCallbackReturn.SUCCESS

    def on_activate(self, state):
        self.loop.reset()
        self.create_subscription(JointState, "joint_states", self.sensed, qos_profile_sensor_data)
        self.create_timer(1 / RATE_HZ, self.act)
        return super().on_activate(state)

    def sensed(self, message):
        stamp = message.header.stamp
        x = torch.tensor(message.position, dtype=torch.float32)[None]
        self.loop.observe(Observation(vector=x), stamp.sec + 1e-9 * stamp.nanosec)

    def act(self):
        self.out.publish(Float64MultiArray(data=self.reader.act()[0].tolist()))


if __name__ == "__main__":
    rclpy.init()
    rclpy.spin(MemoryNode())
