"""The map: the same algebra on sparse keys. Depth frames in, a signed-distance field of fixed size, readouts out."""

from streammem.mapping.mapper import Mapper
from streammem.mapping.mesh import Mesh, Points
from streammem.mapping.raycast import View
from streammem.mapping.readout import MapReadout
from streammem.mapping.setting import MapSettings

__all__ = ["MapReadout", "MapSettings", "Mapper", "Mesh", "Points", "View"]
